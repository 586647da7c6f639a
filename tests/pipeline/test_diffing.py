"""diff: what differs between two caches is said, with numbers that are right; nothing else is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import beam_runner
from pipeline.cache import FeatureCache, open_cache
from pipeline.diffing import CacheDiff, diff_caches
from pipeline.feature_errors import FeatureErrors
from pipeline.layout import CacheLayout
from pipeline.sources import read_sources
from schemas.compact import pool_by_area
from schemas.errors import CacheDamaged
from schemas.sample import Sample
from tests.pipeline.handmade import make_sample, write_cache
from tests.pipeline.odd_videos import RECIPE
from tests.pipeline.test_slicing import slice_of

if TYPE_CHECKING:
    from tests.clips import ClipShelf

SHARDS = [{"a": 3}, {"b": 2, "c": 1}]
Change = Callable[[Sample], Sample]


def cache(path: Path, change: Change = lambda sample: sample, shards: Any = SHARDS) -> Path:
    write_cache(CacheLayout(path), shards, make=lambda *which: change(make_sample(*which)))
    return path


def with_image(change: Callable[[Any], Any]) -> Change:
    def of(sample: Sample) -> Sample:
        image = sample.features["image"]
        return replace(sample, features={**sample.features, "image": change(image)})

    return of


def diff(a: Path, b: Path, **options: Any) -> CacheDiff:
    with open_cache(a) as first, open_cache(b) as second:
        return diff_caches(first, second, **options)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return cache(tmp_path / "a")


def test_a_cache_is_the_same_as_itself_and_is_not_read(
    a: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeatureCache, "read_members", None)
    told: list[int] = []
    found = diff(a, a, progress=told.append)
    assert found.is_same
    assert (found.num_same_videos, found.num_common) == (3, 6)
    assert found.num_compared == found.num_equal == sum(told) == 6
    assert [(one.name, one.num_equal, one.difference) for one in found.streams] == [
        ("image", 6, None),
        ("video", 6, None),
    ]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_tar_that_is_not_there_is_equal_to_nothing(
    a: Path, tmp_path: Path, which: int, how: str
) -> None:
    both = a, Path(shutil.copytree(a, tmp_path / "b"))
    tar = max((both[which] / "shards").glob("*.tar"))
    os.truncate(tar, 512) if how == "cut" else tar.unlink()
    with pytest.raises(CacheDamaged, match=f"{tar.name}: is not there as it was written"):
        diff(*both)
    assert diff(*both, videos_only=True).is_same


def test_the_same_clips_in_other_shards_are_equal(a: Path, tmp_path: Path) -> None:
    found = diff(a, cache(tmp_path / "b", shards=[{"a": 3, "b": 2}, {"c": 1}]))
    assert found.is_same
    assert found.num_equal == 6


def test_videos_clips_times_and_frames(a: Path, tmp_path: Path) -> None:
    def later(sample: Sample) -> Sample:
        is_odd = sample.key == "a_000001"
        return replace(sample, mask=np.array([True, True, False, False])) if is_odd else sample

    b = cache(tmp_path / "b", later, shards=[{"a": 4}, {"b": 1}, {"d": 2}])
    found = diff(a, b, videos_only=True)
    assert (found.only_a, found.only_b, found.num_same_videos) == (("c",), ("d",), 0)
    assert [
        (v.video_id, v.only_a, v.only_b, v.other_times, v.other_frames) for v in found.videos
    ] == [
        ("a", 0, 1, 0, 1),
        ("b", 1, 0, 0, 0),
    ]
    assert (found.num_common, found.num_compared, found.is_same) == (4, 0, False)


def test_clips_at_other_times_are_not_compared(
    a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = cache(tmp_path / "b")
    opened = open_cache(b)
    column = opened.index.column("start_seconds").to_numpy().copy()
    column[1] += 0.25
    import pyarrow as pa

    place = opened.index.schema.names.index("start_seconds")
    opened._table = opened.index.set_column(place, "start_seconds", pa.array(column))
    found = diff_caches(open_cache(a), opened)
    assert [(v.video_id, v.other_times) for v in found.videos] == [("a", 1)]
    assert found.num_common == found.num_compared == 5


@pytest.mark.parametrize("factor", [1.25, 0.5])
def test_errors_are_those_that_were_made(a: Path, tmp_path: Path, factor: float) -> None:
    b = cache(tmp_path / "b", with_image(lambda image: image * np.float16(factor)))
    found = diff(a, b)
    image, video = found.streams
    assert image.difference is not None and video.difference is None
    # The error is of the second cache's features: |1 - f| / f.
    expected = abs(1 - factor) / factor
    assert image.difference.channel_error_median == pytest.approx(expected, rel=1e-3)
    assert image.difference.channel_error_max == pytest.approx(expected, rel=1e-2)
    assert image.difference.cosine_mean == pytest.approx(1, abs=1e-6)
    assert (image.num_clips, image.num_equal, video.num_equal) == (6, 0, 6)
    assert found.members == {"image.npy": 6}
    assert not found.is_same


def test_the_worst_clip_is_named(a: Path, tmp_path: Path) -> None:
    def of(sample: Sample) -> Sample:
        scale = {"b_000001": -1.0, "a_000000": 0.9}.get(sample.key, 1.0)
        return with_image(lambda image: (image * scale).astype(np.float16))(sample)

    image = diff(a, cache(tmp_path / "b", of)).streams[0]
    assert image.worst_key == "b_000001"
    assert image.num_equal == 4
    assert image.difference is not None
    assert image.difference.cosine_min == pytest.approx(-1)


@pytest.mark.parametrize("swap", [False, True])
def test_a_finer_grid_is_averaged(a: Path, tmp_path: Path, swap: bool) -> None:
    def pooled(image: Any) -> Any:
        return pool_by_area(image.astype(np.float32), grid=(2, 2)).astype(np.float16)

    b = cache(tmp_path / "b", with_image(pooled))
    image = diff(*((b, a) if swap else (a, b))).streams[0]
    assert image.compared_at == "2 x 2"
    assert image.difference is not None
    assert 0 < image.difference.channel_error_max < 1e-3, "what rounding to float16 takes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda image: image[:, :3, :3], "neither of 4 x 4 and 3 x 3 cells divides the other"),
        (lambda image: image[:, :2], ""),
        (lambda image: image[:2], "4 x 4 x 4 x 32 and 2 x 4 x 4 x 32"),
        (lambda image: image[..., :8], "4 x 4 x 4 x 32 and 4 x 4 x 4 x 8"),
    ],
)
def test_what_cannot_be_compared_is_said(
    a: Path, tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    found = diff(a, cache(tmp_path / "b", with_image(lambda i: np.ascontiguousarray(change(i)))))
    assert found.streams[0].not_comparable == words
    assert not found.is_same
    assert found.streams[1].num_equal == 6


def test_no_number_is_made_of_what_is_none(a: Path, tmp_path: Path) -> None:
    def of(sample: Sample) -> Sample:
        def spoil(image: Any) -> Any:
            return np.where(sample.key == "c_000000", np.float16(np.nan), image * np.float16(2))

        return with_image(spoil)(sample)

    found = diff(a, cache(tmp_path / "b", of))
    image = found.streams[0]
    assert image.num_not_finite == 1
    assert image.difference is not None
    assert image.difference.channel_error_max == pytest.approx(0.5)
    assert "NaN" not in json.dumps(image.difference.channel_error_median)


def test_other_members_and_fields_are_counted(a: Path, tmp_path: Path) -> None:
    def of(sample: Sample) -> Sample:
        if sample.key != "a_000002":
            return sample
        return replace(sample, preview=None, info=sample.info | {"decoder": "x"})

    found = diff(a, cache(tmp_path / "b", of))
    assert found.members == {"json": 1, "preview.jpg": 1}
    assert found.info == {"decoder": 1}
    assert (found.num_compared, found.num_equal, found.is_same) == (6, 5, False)


def test_a_json_that_is_none_is_damage(a: Path, tmp_path: Path) -> None:
    b = cache(tmp_path / "b", shards=[{"a": 3, "b": 2}, {"c": 1}])
    for tar in (b / "shards").glob("*.tar"):
        data = tar.read_bytes()
        assert b'{"' in data
        tar.write_bytes(data.replace(b'{"', b'["'))
    with pytest.raises(CacheDamaged, match="its json, here or there"):
        diff(a, b)


def test_a_sample_is_the_same_each_time(a: Path, tmp_path: Path) -> None:
    b = cache(tmp_path / "b", with_image(lambda image: image * np.float16(2)))
    one, two = (diff(a, b, max_clips=2) for _ in range(2))
    assert one == two
    assert (one.num_common, one.num_compared) == (6, 2)
    assert diff(a, b, max_clips=99).num_compared == 6


def test_a_slice_is_equal_where_it_is(odd_cache: Path, tmp_path: Path) -> None:
    slice_of(odd_cache, tmp_path / "out", where="clip_index < 2")
    found = diff(odd_cache, tmp_path / "out")
    assert found.num_compared == found.num_equal == len(open_cache(tmp_path / "out"))
    assert not (found.only_a or found.only_b or found.fields)
    assert found.videos and all(one.only_a and not one.only_b for one in found.videos)


def test_one_content_under_two_ids_is_one_video(
    odd_cache: Path, tmp_path: Path, clips: ClipShelf
) -> None:
    copy = tmp_path / "plain.mp4"
    shutil.copy(clips["starts_at_10s.mp4"].path, copy)
    sources = read_sources([str(copy)]).sources
    beam_runner.run(sources, RECIPE, cache_path=tmp_path / "cache")
    found = diff(odd_cache, tmp_path / "cache")
    assert "late" not in found.only_a and found.only_b == ()
    (video,) = found.videos
    assert (video.video_id, video.other_id[:1], video.only_a) == ("late", "v", 0)
    assert found.num_compared == 3
    assert [(one.num_clips, one.num_equal) for one in found.streams] == [(3, 3)] * 3
    assert found.info == {"source_name": 3, "video_id": 3}
    assert not found.is_same
    other = diff(tmp_path / "cache", odd_cache, videos_only=True)
    assert [one.other_id for one in other.videos] == ["late"]


def test_sound_is_compared(odd_cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    with open_cache(copy) as opened:
        row = opened.row(opened.videos["late"][1])
    offset, size = row.members["audio.npy"]
    tar = CacheLayout(copy).tar(row.shard)
    data = bytearray(tar.read_bytes())
    data[offset + size - 1] ^= 1
    tar.write_bytes(data)
    info = json.loads((copy / "cache.json").read_text())
    for entry in info["shards"]:
        entry["sha256"] = "0" * 64
    (copy / "cache.json").write_text(json.dumps(info))
    found = diff(odd_cache, copy)
    assert found.members == {"audio.npy": 1}
    audio = found.streams[-1]
    assert (audio.name, audio.num_clips - audio.num_equal) == ("audio", 1)
    assert audio.difference is not None
    assert 0 < audio.difference.channel_error_max < 1


def test_recipes_and_streams_that_differ(odd_cache: Path, a: Path) -> None:
    found = diff(a, odd_cache)
    assert any(line.startswith("audio") for line in found.fields)
    assert any("streams[image].dtype" in line for line in found.fields)
    assert found.streams[-1].not_comparable == "the first cache has none"
    assert diff(odd_cache, a).streams[-1].not_comparable == "the second cache has none"


pairs = st.integers(1, 4).flatmap(
    lambda dim: st.lists(
        st.tuples(
            *(arrays(np.float32, (3, dim), elements=st.floats(-8, 8, width=16)) for _ in "ab")
        ),
        min_size=1,
        max_size=4,
    )
)


@given(pairs)
def test_sums_are_those_of_all_at_once(clips: list[tuple[Any, Any]]) -> None:
    errors = FeatureErrors(clips[0][0].shape[-1])
    cosines = [errors.add(one, other) for one, other in clips]
    told = errors.difference("x")
    first, second = (np.concatenate(side).astype(float) for side in zip(*clips, strict=True))
    norms = np.sqrt((second**2).sum(axis=0))
    seen = norms > 0
    expected = np.sqrt(((first - second) ** 2).sum(axis=0))[seen] / norms[seen]
    if seen.any():
        assert told.channel_error_max == pytest.approx(expected.max(), abs=1e-9)
        assert told.channel_error_median == pytest.approx(np.median(expected), abs=1e-9)
    assert told.cosine_min == min(cosines)
    assert -1.000001 <= told.cosine_mean <= 1.000001
