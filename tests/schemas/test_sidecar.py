"""The sidecar's JSON: a golden file, a round trip, and what counts as damage."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import CacheDamaged
from schemas.quality import Quality
from schemas.reject import REASONS, Reject, is_retryable
from schemas.sidecar import MissingClips, SampleEntry, Sidecar, VideoOutcome

GOLDEN = Path(__file__).parents[1] / "golden" / "sidecar.json"
SIDECAR = Sidecar(
    name="train-000003-3fa9c1d2",
    index=3,
    split="train",
    fingerprint="3fa9c1d2" * 8,
    recipe_fingerprint="ab" * 32,
    tar_sha256="cd" * 32,
    tar_bytes=10240,
    samples=(
        SampleEntry(
            key="cat_000000",
            video_id="cat",
            clip_index=0,
            start_seconds=0.0,
            end_seconds=1.7,
            num_frames=3,
            offset=0,
            num_bytes=4096,
            members={"image.npy": (512, 1152), "json": (2560, 300)},
            truncated=False,
            corrupt=True,
            quality=Quality(brightness=0.5, black=0.0, static=0.25, blur=0.5, loudness=-20.0),
        ),
    ),
    videos=(
        VideoOutcome(
            video_id="cat",
            num_clips=1,
            num_frames_decoded=41,
            num_decode_errors=1,
            truncated=False,
            corrupt=True,
            order="selected",
            why="",
        ),
    ),
    missing=(MissingClips(video_id="cat", first_clip=1, num_clips=2, reason="corrupt"),),
    rejects=(
        Reject(
            uri="/videos/ä 'b'\n.mp4",
            video_id="b",
            stage="decode",
            reason="no_frames",
            detail="0 packets failed to decode",
        ),
    ),
    versions={"numpy": "2.4.6", "av": "18.1.0"},
)


def damaged(**fields: object) -> str:
    return json.dumps(json.loads(SIDECAR.to_json()) | fields)


def with_sample(**fields: object) -> str:
    entry = json.loads(SIDECAR.to_json())["samples"][0]
    return damaged(samples=[entry | fields])


def test_sidecar_is_the_golden_one():
    text = SIDECAR.to_json()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "a FORMAT break"


def test_a_sidecar_survives_its_json():
    assert Sidecar.from_json(SIDECAR.to_json(), where="x") == SIDECAR


def test_a_sidecar_without_samples_survives_its_json():
    empty = replace(SIDECAR, samples=(), videos=(), tar_sha256="", tar_bytes=0)
    assert Sidecar.from_json(empty.to_json(), where="x") == empty


def test_the_json_does_not_depend_on_the_order_of_mappings():
    turned = replace(SIDECAR, versions=dict(reversed(SIDECAR.versions.items())))
    assert turned.to_json() == SIDECAR.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '"text"',
        SIDECAR.to_json()[:-20],
        SIDECAR.to_json()[:1000],
        damaged(unknown=1),
        damaged(samples=None),
        damaged(samples=[3]),
        damaged(videos=[{"video_id": "cat"}]),
        damaged(rejects=[{"reason": "unheard_of"}]),
        damaged(missing={"a": 1}),
        with_sample(members=None),
        with_sample(members={"json": 5}),
        with_sample(members={"json": []}),
        with_sample(other=1),
    ],
)
def test_another_text_is_damage_and_names_the_file(text):
    with pytest.raises(CacheDamaged, match=r"shards/a\.json: not a sidecar"):
        Sidecar.from_json(text, where="shards/a.json")


@pytest.mark.parametrize("field", list(json.loads(SIDECAR.to_json())))
def test_a_missing_field_is_damage(field):
    fields = json.loads(SIDECAR.to_json())
    del fields[field]
    if field == "format_version":  # has a default
        assert Sidecar.from_json(json.dumps(fields), where="x") == SIDECAR
        return
    with pytest.raises(CacheDamaged):
        Sidecar.from_json(json.dumps(fields), where="x")


def test_the_reasons_of_rejects_are_a_closed_list():
    with pytest.raises(ValueError, match="unheard_of"):
        Reject(uri="/a", video_id="", stage="probe", reason="unheard_of", detail="")
    with pytest.raises(KeyError):
        is_retryable("unheard_of")


@pytest.mark.parametrize("reason", REASONS)
def test_a_reject_as_a_row_says_whether_to_try_again(reason):
    row = Reject(uri="/a", video_id="v", stage="probe", reason=reason, detail="d").to_row()
    assert row == {
        "uri": "/a",
        "video_id": "v",
        "stage": "probe",
        "reason": reason,
        "detail": "d",
        "retryable": REASONS[reason][1],
    }


def test_a_sidecar_without_quality_is_read():
    text = SIDECAR.to_json()
    fields = json.loads(text)
    del fields["samples"][0]["quality"]
    (entry,) = Sidecar.from_json(json.dumps(fields), where="x").samples
    assert entry.quality is None
    assert replace(entry, quality=SIDECAR.samples[0].quality) == SIDECAR.samples[0]
