"""encode_video: the samples of a video without a run are those of a run, to the last byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import beam_runner
from pipeline.cache import FeatureCache, open_cache
from pipeline.encoding import StreamEncoders, stamp_streams
from pipeline.encoding_video import encode_video, find_video
from pipeline.sources import read_sources
from schemas.errors import SourceError, UsageError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny")
NAMES = ("25.mp4", "variable_rate.mkv", "rotation_90.mp4", "starts_at_10s.ts", "truncated.mkv")
REAL = ("rails_rotated_video.mp4", "corrupt_midfile.mp4", "negative_start.ts", "testWEBM.webm")
Encode = Callable[..., FeatureCache]


def members(cache: FeatureCache) -> dict[str, dict[str, bytes]]:
    return {
        sample.key: {
            name: b"".join(bytes(part) for part in parts) for name, parts in sample.to_members()
        }
        for sample in cache
    }


def encoder_of(recipe: Recipe, folder: Path) -> Encode:
    stamps, encoders = stamp_streams(recipe), StreamEncoders(recipe)

    def encode(path: Path | str, *, span: tuple[float, float] | None = None) -> FeatureCache:
        return encode_video(
            find_video(str(path)),
            recipe=recipe,
            stamps=stamps,
            encoders=encoders,
            folder=folder / f"own-{len(list(folder.iterdir()))}",
            span=span,
        )

    return encode


@pytest.fixture
def encode(tmp_path: Path) -> Encode:
    return encoder_of(TINY, tmp_path)


@pytest.fixture(scope="module")
def run_cache(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    folder = tmp_path_factory.mktemp("run")
    videos = [str(clips[name].path) for name in NAMES]
    beam_runner.run(read_sources(videos).sources, TINY, cache_path=folder / "cache")
    return open_cache(folder / "cache")


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_those_of_a_run(
    name: str, clips: ClipShelf, run_cache: FeatureCache, encode: Encode
) -> None:
    with encode(clips[name].path) as own:
        (video_id,) = own.videos
        assert own.fingerprint == run_cache.fingerprint
        assert own.aliases[str(clips[name].path)] == video_id
        expected = members(run_cache)
        found = members(own)
        assert list(found) == run_cache.videos[video_id]
        assert found == {key: expected[key] for key in found}


@pytest.mark.parametrize(
    ("span", "numbers"),
    [((0.5, 0.6), [0]), ((2.0, 4.0), [1]), ((1.9, 2.1), [0, 1]), ((4.5, 99.0), [2])],
)
def test_a_span_takes_the_clips_that_overlap_it(
    span: tuple[float, float],
    numbers: list[int],
    clips: ClipShelf,
    run_cache: FeatureCache,
    encode: Encode,
) -> None:
    with encode(clips["25.mp4"].path, span=span) as own:
        (video_id,) = own.videos
        assert list(own.videos[video_id]) == [f"{video_id}_{n:06d}" for n in numbers]
        expected = members(run_cache)
        found = members(own)
        assert list(found) == own.keys()
        assert found == {key: expected[key] for key in found}


def test_a_span_counts_on_the_clock_of_the_video(clips: ClipShelf, encode: Encode) -> None:
    with encode(clips["starts_at_10s.ts"].path, span=(12.5, 13.0)) as own:
        (sample,) = own
    assert sample.info["clip_index"] == 1
    with pytest.raises(UsageError, match=r"span 2-3 lies outside of the video, which is 10-1"):
        encode(clips["starts_at_10s.ts"].path, span=(2.0, 3.0))
    with pytest.raises(UsageError, match="span 90-95 lies outside"):
        encode(clips["starts_at_10s.ts"].path, span=(90.0, 95.0))


def test_pieces_of_several_shards_are_cut_alike(clips: ClipShelf, tmp_path: Path) -> None:
    recipe = Recipe.load("tiny", overrides=["shards.target_bytes=20000"])
    with encoder_of(recipe, tmp_path)(clips["25.mp4"].path) as whole:
        assert whole.info.counts["shards"] > 1
        expected = members(whole)
    with encoder_of(recipe, tmp_path)(clips["25.mp4"].path, span=(2.5, 5.0)) as own:
        assert members(own) == {key: expected[key] for key in list(expected)[1:]}


def test_sound_is_that_of_a_run(clips: ClipShelf, tmp_path: Path) -> None:
    mapping = TINY.to_mapping() | {
        "audio": {"encoder": "log-mel", "tokens_per_window": 5},
        "sampling": {"fps": 2.0, "frames_per_clip": 4},
    }
    recipe = Recipe.from_mapping(mapping)
    video = clips["with_audio.mp4"].path
    beam_runner.run(read_sources([str(video)]).sources, recipe, cache_path=tmp_path / "cache")
    with open_cache(tmp_path / "cache") as cache:
        expected = members(cache)
    encode = encoder_of(recipe, tmp_path)
    with encode(video) as own:
        assert all(sample.audio is not None for sample in own)
        assert any(sample.audio_mask.any() for sample in own if sample.audio_mask is not None)
        assert members(own) == expected
    with encode(video, span=(2.0, 3.0)) as own:
        assert members(own) == {key: expected[key] for key in list(expected)[1:2]}


def test_real_files(corpus_dir: Path, tmp_path: Path) -> None:
    files = [corpus_dir / name for name in REAL]
    run = tmp_path / "run"
    beam_runner.run(read_sources([str(file) for file in files]).sources, TINY, cache_path=run)
    encode = encoder_of(TINY, tmp_path)
    with open_cache(run) as cache:
        expected = members(cache)
        assert len(cache.videos) == len(files)
        for file in files:
            with encode(file) as own:
                found = members(own)
            assert list(found) == cache.videos[cache.aliases[str(file)]]
            assert found == {key: expected[key] for key in found}


def test_a_url_is_fetched_once_it_is_needed(
    clips: ClipShelf, run_cache: FeatureCache, encode: Encode, s3: object, bucket: str
) -> None:
    s3.put(str(clips["25.mp4"].path), f"{bucket}/25.mp4")  # type: ignore[attr-defined]
    with encode(f"s3://{bucket}/25.mp4") as own:
        expected = members(run_cache)
        found = members(own)
    assert found == {key: expected[key] for key in found}


def test_a_video_that_cannot_be_used_is_the_users_error(tmp_path: Path, encode: Encode) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_text("no video")
    with pytest.raises(UsageError, match=r"broken\.mp4: not_a_video \(no known container"):
        encode(broken)


def test_one_video_is_named(clips: ClipShelf, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        find_video(str(tmp_path / "gone.mp4"))
    for name in ("a.mp4", "b.mp4"):
        shutil.copy(clips["25.mp4"].path, tmp_path / name)
    with pytest.raises(UsageError, match="names 2 videos"):
        find_video(str(tmp_path))
