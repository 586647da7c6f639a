"""The folder of a report: its data, that it appears whole, and what is never replaced."""

from __future__ import annotations

import fcntl
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.cache import open_cache
from pipeline.duplicate_tables import CLUSTER_SCHEMA
from pipeline.gaps import find_gaps
from pipeline.layout import CacheLayout
from pipeline.overview import frame_rate, take_overview, tokens_per_clip
from pipeline.peeking import peek
from pipeline.places import to_place
from pipeline.portraying import choose_evenly, portray
from pipeline.probing import read_probes
from pipeline.report_folder import MARK, write_report
from pipeline.storage import publish_rows
from schemas.errors import CacheDamaged, UsageError
from schemas.sample import Sample, decode_npy
from schemas.video import Probe, Source
from tests.pipeline.handmade import make_sample, write_cache
from tests.pipeline.pictured import (
    LONG,
    MISSING,
    PLAIN,
    SINGLE,
    STRANGE,
    VIDEOS,
    grey_level,
    make_pictured,
    write_pictured,
)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> CacheLayout:
    return write_pictured(tmp_path_factory.mktemp("pictured") / "cache")


def _data(path: Path) -> list[Any]:
    text = path.read_text(encoding="ascii")
    start, end = text.index("("), text.rindex(")")
    values: list[Any] = json.loads(f"[{text[start + 1 : end]}]")
    return values


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_report_has_all_videos_and_is_the_same_every_time(
    layout: CacheLayout, tmp_path: Path
) -> None:
    done = []
    with open_cache(layout.root) as cache:
        written = write_report(cache, tmp_path / "a", on_video=lambda: done.append(1))
        write_report(cache, tmp_path / "b")
    assert len(done) == len(VIDEOS)
    files = _files(tmp_path / "a")
    assert files == _files(tmp_path / "b")
    assert written.num_files == len(files)
    assert written.num_bytes == sum(map(len, files.values()))
    pages = [name for name in files if "/" not in name and name != MARK]
    assert written.page_bytes == sum(len(files[name]) for name in pages)
    (data,) = _data(tmp_path / "a" / "data.js")
    columns = data["videos"]["columns"]
    assert set(columns["id"]) == set(VIDEOS)
    assert dict(zip(columns["id"], columns["clips"], strict=True)) == VIDEOS
    assert len({len(column) for column in columns.values()}) == 1
    assert data["rejects"]["count"] == 1
    number = columns["id"].index(PLAIN)
    assert columns["missing"][number] == MISSING.num_clips
    assert columns["events"][number] == {"scene": 2, "transcript": 1}
    assert columns["tokens"][number] == 3 * 4 * (4 * 4 + 3 * 3)


def test_a_portrait_tells_times_pictures_and_changes(layout: CacheLayout) -> None:
    with open_cache(layout.root) as cache:
        video = next(v for v in take_overview(cache).videos if v.video_id == PLAIN)
        portrait = portray(cache, video, most_clips=48)
        sample = cache[f"{PLAIN}_000001"]
    data = portrait.data
    assert data["starts"] == [0.0, 2.0, 4.0]
    assert data["frames"][1]["times"] == sample.times.tolist()
    assert data["frames"][1]["real"] == 3
    image, video_maps = data["maps"]
    assert (image["rows"], image["columns"], video_maps["rows"]) == (4, 4, 3)
    # Of the picture: known by the greys; the step from a clip's last real frame to the next clip.
    expected = {
        (2 * clip + frame / 2): grey_level(clip, frame) - grey_level(*before)
        for clip in range(3)
        for frame, before in enumerate([(clip - 1, 2), (clip, 0), (clip, 1)])
        if before[0] >= 0
    }
    found = {start: change for start, _, change in data["picture_change"]}
    assert found == pytest.approx({t: abs(d) / 255 for t, d in expected.items()}, abs=0.01)
    pooled = sample.decode("image").mean(axis=(1, 2)).astype(np.float64)
    cosine = pooled[1] @ pooled[0] / np.linalg.norm(pooled[0]) / np.linalg.norm(pooled[1])
    (change,) = [c for start, _, c in image["change"] if start == 2.5]
    assert change == pytest.approx(1 - cosine, abs=2e-4)
    assert data["sound"] is None
    assert data["static"] == [0.25] * 3
    merged = data["json"]["common"] | data["json"]["own"][1]
    assert merged == sample.info
    assert portrait.sheet is not None
    with Image.open(io.BytesIO(portrait.sheet)) as sheet:
        assert sheet.size == (4 * 96, 3 * 64)


def test_of_a_long_video_clips_are_chosen_evenly(layout: CacheLayout) -> None:
    with open_cache(layout.root) as cache:
        video = next(v for v in take_overview(cache).videos if v.video_id == LONG)
        data = portray(cache, video, most_clips=7).data
    assert len(data["starts"]) == VIDEOS[LONG]
    assert data["chosen"] == [0, 10, 20, 30, 39, 49, 59]
    assert len(data["frames"]) == len(data["sheet"]["there"]) == 7
    # No clip follows another one: no step between clips is known.
    assert len(data["picture_change"]) == 7 * 2


def test_features_are_read_of_as_many_clips_as_are_allowed(
    layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cache(layout.root) as cache:
        video = next(v for v in take_overview(cache).videos if v.video_id == LONG)
        sizes = cache.row(video.keys[0]).members
        monkeypatch.setattr(
            "pipeline.portraying.FEATURE_BYTES", 3 * (sizes["image.npy"][1] + sizes["video.npy"][1])
        )
        data = portray(cache, video, most_clips=20).data
    assert len(data["chosen"]) == 20
    assert [stream["mapped"] for stream in data["maps"]] == [[0, 10, 19]] * 2


@pytest.mark.parametrize(("count", "most"), [(1, 1), (5, 1), (5, 5), (100, 7), (48, 48), (49, 48)])
def test_choosing_evenly(count: int, most: int) -> None:
    chosen = choose_evenly(count, most=most)
    assert len(chosen) == min(count, most) == len(set(chosen))
    assert chosen == sorted(chosen)
    assert 0 <= chosen[0] <= chosen[-1] < count
    steps = np.diff(chosen)
    assert steps.size == 0 or steps.max() - steps.min() <= 1


def test_gaps_are_when_the_clips_would_be(layout: CacheLayout) -> None:
    with open_cache(layout.root) as cache:
        gaps = find_gaps(cache, read_probes(layout))
    (gap,) = gaps.pop(PLAIN)
    assert gaps == {}
    assert (gap.start_seconds, gap.end_seconds, gap.num_clips) == (6.0, 10.0, 2)
    assert gap.reason == "corrupt"


def test_peeking_gives_the_members_that_were_asked_for(layout: CacheLayout) -> None:
    with open_cache(layout.root) as cache:
        key = f"{PLAIN}_000001"
        members = peek(cache, key, names=["time.npy", "json", "no such", "image.npy"])
        sample = cache[key]
    assert set(members) == {"time.npy", "json", "image.npy"}
    assert np.array_equal(decode_npy(members["time.npy"]), sample.times)
    assert json.loads(bytes(members["json"])) == sample.info
    assert np.array_equal(decode_npy(members["image.npy"]), sample.features["image"])


def test_the_overview_counts_tokens_and_rates(layout: CacheLayout) -> None:
    with open_cache(layout.root) as cache:
        assert tokens_per_clip(cache) == 4 * (16 + 9)
        overview = take_overview(cache)
    facts = {video.video_id: video for video in overview.videos}
    assert list(facts) == sorted(VIDEOS)
    assert facts[LONG].seconds == 120.0
    assert facts[PLAIN].quality["static"] == pytest.approx(0.25)
    assert facts[PLAIN].quality["loudness"] is None
    probe = Probe(source=Source(uri="/a"), first_seconds=2.0, last_seconds=4.0, num_packets=51)
    assert frame_rate(probe) == pytest.approx(25)
    assert frame_rate(replace(probe, average_fps=30.0)) == 30
    assert frame_rate(replace(probe, num_packets=1)) is None


def test_only_some_videos_can_be_opened(layout: CacheLayout, tmp_path: Path) -> None:
    with open_cache(layout.root) as cache:
        written = write_report(cache, tmp_path / "r", most_portraits=2)
    assert (written.num_videos, written.num_portraits) == (len(VIDEOS), 2)
    assert len(list((tmp_path / "r" / "videos").glob("*.js"))) == 2


def test_a_report_is_replaced_whole_and_nothing_else_is(
    layout: CacheLayout, tmp_path: Path
) -> None:
    folder = tmp_path / "report"
    with open_cache(layout.root) as cache:
        folder.mkdir()  # an empty folder is nobody's
        write_report(cache, folder, most_portraits=3)
        (folder / "videos" / "000777.js").write_text("of an older report")
        write_report(cache, folder, most_portraits=1)
        assert not (folder / "videos" / "000777.js").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]
        other = tmp_path / "other"
        other.mkdir()
        (other / "mine.txt").write_text("mine")
        with pytest.raises(UsageError, match="no report"):
            write_report(cache, other)
        with pytest.raises(UsageError, match="is a file"):
            write_report(cache, other / "mine.txt")
        with pytest.raises(UsageError, match="no report"):
            write_report(cache, Path(str(layout.root)))
    assert _files(other) == {"mine.txt": b"mine"}


def test_a_report_that_fails_leaves_the_one_before(
    layout: CacheLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "report"
    with open_cache(layout.root) as cache:
        write_report(cache, folder, most_portraits=1)
        before = _files(folder)

        def fail(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("pipeline.report_folder.portray", fail)
        with pytest.raises(KeyboardInterrupt):
            write_report(cache, folder)
    assert _files(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


def test_what_a_killed_one_has_left_goes_and_what_is_being_written_stays(
    layout: CacheLayout, tmp_path: Path
) -> None:
    left, others, young = (
        tmp_path / name for name in (".r.0a.part", ".report.0b.part", ".r.0c.part")
    )
    with open_cache(layout.root) as cache:
        for path in (left, others, young):
            (path / "videos").mkdir(parents=True)
        for path in (left, others):
            os.utime(path, (0, 0))
        held = os.open(others, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        write_report(cache, tmp_path / "r")
        assert not left.exists() and others.exists() and young.exists()
        write_report(cache, tmp_path / "report")
        assert others.exists()
        os.close(held)
        seen: list[bool] = []

        def another() -> None:
            if not seen:
                (part,) = tmp_path.glob(".report.*.part")
                os.utime(part, (0, 0))
                write_report(cache, tmp_path / "report")
                seen.append(part.exists())

        write_report(cache, tmp_path / "report", on_video=another)
    assert seen == [True] and not others.exists()


def test_a_cache_without_pictures_and_quality_has_a_report(tmp_path: Path) -> None:
    def make(video_id: str, clip_index: int) -> Sample:
        return replace(make_sample(video_id, clip_index), preview=None)

    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, [{"a": 2}, {"b": 1}], make=make)  # without probes, too
    with open_cache(layout.root) as cache:
        write_report(cache, tmp_path / "report")
    assert not list((tmp_path / "report" / "videos").glob("*.jpg"))
    _, data = _data(tmp_path / "report" / "videos" / "000000.js")
    assert (data["id"], data["sheet"], data["picture_change"]) == ("a", None, None)
    assert data["static"] is data["loudness"] is None
    assert data["maps"][0]["png"].startswith("data:image/png;base64,")


def test_a_damaged_sample_is_said(tmp_path: Path) -> None:
    layout = write_pictured(tmp_path / "cache")
    (tar,) = [path for path in layout.shards.iterdir() if path.suffix == ".tar"]
    with tar.open("r+b") as file:
        file.truncate(30_000)
    with open_cache(layout.root) as cache, pytest.raises(CacheDamaged) as caught:
        write_report(cache, tmp_path / "report")
    assert "pipeline verify" in caught.value.hint
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    "change", [{"times": np.full((4, 2), np.nan)}, {"times": np.zeros((4, 2)), "info": {"a": "b"}}]
)
def test_members_that_are_not_as_written_are_said(tmp_path: Path, change: dict[str, Any]) -> None:
    def make(video_id: str, clip_index: int) -> Sample:
        return replace(make_sample(video_id, clip_index), **change)

    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, [{"a": 1}], make=make)
    with open_cache(layout.root) as cache:
        if np.isnan(change["times"]).any():
            with pytest.raises(CacheDamaged, match="finite"):
                write_report(cache, tmp_path / "report")
        else:
            write_report(cache, tmp_path / "report")


def test_strange_ids_have_plain_files(layout: CacheLayout, tmp_path: Path) -> None:
    with open_cache(layout.root) as cache:
        write_report(cache, tmp_path / "r")
    names = {path.name for path in (tmp_path / "r" / "videos").iterdir()}
    assert names == {
        f"{number:06d}{suffix}"
        for number in range(len(VIDEOS))
        for suffix in (".js", ".jpg", "-small.jpg")
    }
    assert len(STRANGE) > 2
    assert make_pictured(SINGLE, 0).preview is not None


def test_clusters_of_duplicates_are_told(tmp_path: Path) -> None:
    layout = write_pictured(tmp_path / "cache")
    place = layout.root / "duplicates" / "clusters.parquet"
    nothing = dict.fromkeys(CLUSTER_SCHEMA.names)
    shared = {
        "kind": "part",
        "score": 0.9,
        "shared_start_seconds": 0.0,
        "shared_end_seconds": 5.5,
        "like_video": PLAIN,
        "like_start_seconds": 2.0,
        "like_end_seconds": 7.5,
    }
    rows = [
        nothing | {"cluster": 0, "video_id": PLAIN, "kept": True},
        nothing | shared | {"cluster": 0, "video_id": LONG, "kept": False},
    ]
    publish_rows(rows, CLUSTER_SCHEMA, place, scratch=layout.scratch)
    with open_cache(layout.root) as cache:
        write_report(cache, tmp_path / "report", most_portraits=0)
        (data,) = _data(tmp_path / "report" / "data.js")
        columns = data["videos"]["columns"]
        told = zip(columns["id"], columns["cluster"], columns["kept"], strict=True)
        assert {(i, c, k) for i, c, k in told if c >= 0} == {(PLAIN, 0, 1), (LONG, 0, 0)}
        like = dict(zip(columns["id"], columns["like"], strict=True))
        assert like.pop(LONG) == ["part", 0.9, 0.0, 5.5, 2.0, 7.5]
        assert set(like.values()) == {0}
        place.write_bytes(layout.index.read_bytes())
        with pytest.raises(CacheDamaged, match="clusters"):
            write_report(cache, tmp_path / "report")


def test_a_cache_elsewhere_has_the_same_report(layout: CacheLayout, tmp_path: Path) -> None:
    url = f"memory://report-{tmp_path.name}/cache"
    place = to_place(url)
    assert isinstance(layout.root, Path)
    place.fs.put(str(layout.root), place.path, recursive=True)
    with open_cache(layout.root) as cache, open_cache(url) as elsewhere:
        write_report(cache, tmp_path / "a")
        write_report(elsewhere, tmp_path / "b")
    here, there = _files(tmp_path / "a"), _files(tmp_path / "b")
    assert url.encode() in there.pop("data.js")
    del here["data.js"]
    assert here == there
