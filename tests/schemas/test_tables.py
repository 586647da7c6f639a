"""Rows of the cache's tables, through Arrow and back."""

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.plan import Piece, ShardSpec, specs_from_rows
from schemas.reject import REASONS, Reject
from schemas.sidecar import SampleEntry, Sidecar
from schemas.tables import (
    INDEX_SCHEMA,
    PLAN_SCHEMA,
    PROBE_SCHEMA,
    REJECT_SCHEMA,
    index_rows,
    probe_from_row,
    probe_to_row,
)
from schemas.video import Probe, Source

JSON = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
SECONDS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def sources(draw):
    start = draw(st.none() | st.floats(-10, 10))
    return Source(
        uri=draw(st.text(min_size=1)),
        video_id=draw(st.none() | st.text(min_size=1)),
        start_seconds=start,
        end_seconds=draw(st.none() | st.floats(11, 20)),
        extra=draw(st.dictionaries(st.text(), JSON, max_size=3)),
    )


@st.composite
def probes(draw):
    probe = Probe(
        source=draw(sources()),
        video_id=draw(st.text()),
        content_sha256=draw(st.text(alphabet="0123456789abcdef", max_size=64)),
        size_bytes=draw(st.integers(0, 2**50)),
        mtime_ns=draw(st.integers(0, 2**62)),
        container=draw(st.text(max_size=5)),
        codec=draw(st.text(max_size=5)),
        width=draw(st.integers(0, 2**20)),
        height=draw(st.integers(0, 2**20)),
        average_fps=draw(SECONDS),
        num_packets=draw(st.integers(0, 2**40)),
        first_seconds=draw(SECONDS),
        last_seconds=draw(SECONDS),
        duration_seconds=draw(SECONDS),
        has_audio=draw(st.booleans()),
        truncated=draw(st.booleans()),
    )
    if draw(st.booleans()):
        return probe
    return probe.rejected(draw(st.sampled_from(sorted(REASONS))), draw(st.text()))


def through_arrow(rows: list[dict], schema: pa.Schema) -> list[dict]:
    return pa.Table.from_pylist(rows, schema=schema).to_pylist()


@given(probes=st.lists(probes(), max_size=4))
def test_probes_survive_their_table(probes):
    rows = through_arrow([probe_to_row(probe) for probe in probes], PROBE_SCHEMA)
    assert [probe_from_row(row) for row in rows] == probes


@given(probe=probes())
def test_a_row_of_probes_has_exactly_the_columns_of_its_table(probe):
    assert sorted(probe_to_row(probe)) == sorted(PROBE_SCHEMA.names)


def test_a_probe_row_has_the_columns_that_the_contract_names():
    row = probe_to_row(Probe(source=Source(uri="/a.mp4"), video_id="v1"))
    assert (row["video_id"], row["uri"], row["status"]) == ("v1", "/a.mp4", "ok")


def test_columns_that_are_not_json_are_kept_as_text():
    probe = Probe(source=Source(uri="/a", extra={"raw": b"\xff", "labels": ["x", None]}))
    extra = probe_from_row(probe_to_row(probe)).source.extra
    assert extra == {"raw": "b'\\xff'", "labels": ["x", None]}


def piece(video_id: str, **fields: object) -> Piece:
    values: dict = {
        "uri": f"/{video_id}.mp4",
        "video_id": video_id,
        "content_sha256": "ab" * 32,
        "size_bytes": 10,
        "mtime_ns": 11,
        "start_seconds": None,
        "end_seconds": None,
        "duration_seconds": 9.5,
        "truncated": False,
        "has_audio": True,
        "first_clip": 0,
        "num_clips": 5,
        "is_last": True,
        "estimated_bytes": 1000,
    }
    return Piece(**values | fields)


def test_a_plan_survives_its_table_whatever_the_order_of_its_shards():
    specs = [
        ShardSpec(
            index=index,
            split="train",
            recipe_fingerprint="ef" * 32,
            pieces=(piece(f"a{index}"), piece(f"b{index}", start_seconds=1.0, end_seconds=2.5)),
        )
        for index in (4, 0, 2)
    ]
    rows = through_arrow([row for spec in specs for row in spec.to_rows()], PLAN_SCHEMA)
    assert sorted(rows[0]) == sorted(PLAN_SCHEMA.names)
    assert specs_from_rows(rows) == specs


def test_a_shard_is_named_by_split_index_and_fingerprint():
    spec = ShardSpec(index=7, split="train", recipe_fingerprint="r", pieces=(piece("a"),))
    assert spec.name == f"train-000007-{spec.fingerprint[:8]}"


def spec_fingerprint(**fields: object) -> str:
    pieces = (dataclasses.replace(piece("a"), **fields),)
    return ShardSpec(index=0, split="train", recipe_fingerprint="r", pieces=pieces).fingerprint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("video_id", "b"),
        ("content_sha256", "cd" * 32),
        ("start_seconds", 1.0),
        ("end_seconds", 2.0),
        ("first_clip", 1),
        ("num_clips", 6),
        ("is_last", False),
    ],
)
def test_a_shards_fingerprint_changes_with_content_and_clips(field, value):
    assert spec_fingerprint(**{field: value}) != spec_fingerprint()


@pytest.mark.parametrize(
    ("field", "value"), [("uri", "/moved/a.mp4"), ("mtime_ns", 99), ("estimated_bytes", 1)]
)
def test_a_shards_fingerprint_does_not_change_when_a_file_moves(field, value):
    assert spec_fingerprint(**{field: value}) == spec_fingerprint()


def test_an_index_row_says_where_every_member_lies():
    entry = SampleEntry(
        key="a_000000",
        video_id="a",
        clip_index=0,
        start_seconds=0.0,
        end_seconds=2.0,
        num_frames=4,
        offset=1024,
        num_bytes=2048,
        members={"image.npy": (1536, 200), "json": (2560, 30)},
        truncated=False,
        corrupt=False,
    )
    sidecar = Sidecar(
        name="train-000000-00000000",
        index=0,
        split="train",
        fingerprint="",
        recipe_fingerprint="",
        tar_sha256="",
        tar_bytes=0,
        samples=(entry,),
        videos=(),
        missing=(),
        rejects=(),
        versions={},
    )
    (row,) = through_arrow(index_rows(sidecar), INDEX_SCHEMA)
    assert sorted(row) == sorted(INDEX_SCHEMA.names)
    assert (row["shard"], row["offset"], row["bytes"]) == ("train-000000-00000000", 1024, 2048)
    assert row["member_names"] == ["image.npy", "json"]
    assert row["member_offsets"] == [1536, 2560]
    assert row["member_bytes"] == [200, 30]


def test_a_reject_fits_its_table():
    reject = Reject(uri="/a", video_id="", stage="plan", reason="id_conflict", detail="é\n")
    assert through_arrow([reject.to_row()], REJECT_SCHEMA) == [reject.to_row()]
