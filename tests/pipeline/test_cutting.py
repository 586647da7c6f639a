"""Cuts from sources: exactly the frames of the span, at their times, whatever the file's clock."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import av
import pytest

from pipeline.cache import open_cache
from pipeline.cutting import LEAD_SECONDS, cut_command, cut_file, cut_name, cut_spans
from pipeline.searching import FoundSpan
from schemas.errors import StorageError, VideoError
from schemas.recipe import DecodeLimits
from tests.clips import (
    MAKERS,
    NO_MUX_DELAY,
    Clip,
    ClipShelf,
    delayed,
    encode_clip,
    read_frame_number,
)

LIMITS = DecodeLimits()
MOV = "mov,mp4,m4a,3gp,3g2,mj2"
ODD = ("truncated", "goes_back", "growing")
"""Frames that are not there, not in the order of their times, or of another size."""


def usual_clips() -> list[str]:
    return [name for name in MAKERS if not any(word in name for word in ODD)]


def frames_of(path: Path) -> list[tuple[int, float]]:
    """(number in the picture, seconds) of each frame of a cut."""
    with av.open(path) as container:
        return [
            (read_frame_number(frame.to_ndarray(format="rgb24")), float(frame.time))
            for frame in container.decode(video=0)
        ]


def probe_container(path: Path) -> str:
    with av.open(path) as container:
        return str(container.format.name)


def check_cut(clip: Clip, first: int, stop: int, target: Path) -> None:
    start, end = float(clip.times[first]), float([*clip.times, clip.end][stop])
    cut_file(
        str(clip.path),
        target,
        start_seconds=start,
        end_seconds=end,
        container=probe_container(clip.path),
        limits=LIMITS,
    )
    found = frames_of(target)
    assert [number for number, _ in found] == list(clip.numbers[first:stop])
    for (_, seconds), time in zip(found, clip.times[first:stop], strict=True):
        assert seconds == pytest.approx(float(time) - start, abs=2e-3)


@pytest.mark.parametrize("name", usual_clips())
def test_a_cut_has_the_frames_of_its_span(clips: ClipShelf, tmp_path: Path, name: str):
    clip = clips[name]
    num = len(clip.times)
    check_cut(clip, num // 3, max(2 * num // 3, 1), tmp_path / "cut.mp4")


@pytest.mark.parametrize("name", ["long.mp4", "long.mkv", "long.avi", "long.ts"])
def test_a_late_span_of_a_long_file_is_cut_as_exactly(tmp_path: Path, name: str):
    options = "-bf 0 -g 60" if name.endswith("avi") else "-bf 2 -g 60"
    if name.endswith("ts"):  # whose times are not below zero, so that nothing is moved
        options += f" {NO_MUX_DELAY} -output_ts_offset 10"
    clip = encode_clip(tmp_path / name, fps=10, num_frames=400, options=options)
    clip = delayed(clip, 10) if name.endswith("ts") else clip
    first = 10 * int(LEAD_SECONDS) + 133
    check_cut(clip, first, first + 31, tmp_path / "cut.mp4")
    command = cut_command(
        str(clip.path),
        tmp_path / "cut.mp4",
        start_seconds=float(clip.times[first]),
        end_seconds=float(clip.times[-1]),
        container=probe_container(clip.path),
    )
    assert ("-ss" in command) == (not name.endswith("ts"))


def test_sound_keeps_its_place_beside_the_pictures(clips: ClipShelf, tmp_path: Path):
    target = tmp_path / "cut.mp4"
    clip = clips["with_audio.mp4"]
    cut_file(
        str(clip.path), target, start_seconds=1.0, end_seconds=2.0, container=MOV, limits=LIMITS
    )
    with av.open(target) as container:
        frames = list(container.decode(audio=0))
    heard = sum(frame.samples for frame in frames) / frames[0].sample_rate
    assert float(frames[0].time) == pytest.approx(0, abs=0.05)
    assert heard == pytest.approx(1.0, abs=0.1)


def span_of(**fields: object) -> FoundSpan:
    known = {
        "rank": 1,
        "score": 0.5,
        "key": "v0_000000",
        "video_id": "v0",
        "source": "/a/b.mp4",
        "start_seconds": 0.0,
        "end_seconds": 1.0,
        "keys": ("v0_000000",),
    }
    return FoundSpan(**(known | fields))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("/a/b c.mp4", "001_b-c_0.00-1.00s.mp4"),
        ("/x/../../etc/-rf 'quote\n\x1b[31m.mp4", "001_rf-quote-31m_0.00-1.00s.mp4"),
        ("/x/视频.mp4", "001_v0_0.00-1.00s.mp4"),
        ("/x/" + "a" * 300 + ".mp4", "001_" + "a" * 60 + "_0.00-1.00s.mp4"),
    ],
)
def test_a_name_is_plain_whatever_the_source_is_called(source: str, expected: str):
    assert cut_name(span_of(source=source)) == expected


def test_only_the_container_that_was_probed_is_opened(tmp_path: Path):
    playlist = tmp_path / "list.mp4"
    playlist.write_text("ffconcat version 1.0\nfile '/etc/hostname'\n")
    for container in (MOV, ""):
        with pytest.raises(VideoError, match="crashed"):
            cut_file(
                str(playlist),
                tmp_path / "cut.mp4",
                start_seconds=0.0,
                end_seconds=1.0,
                container=container,
                limits=LIMITS,
            )
    assert [path.name for path in tmp_path.iterdir()] == ["list.mp4"]


def test_a_cut_that_takes_too_long_is_given_up(clips: ClipShelf, tmp_path: Path):
    limits = DecodeLimits(base_seconds=0.001, factor=0.0)
    with pytest.raises(VideoError, match="timed_out"):
        cut_file(
            str(clips["25.mp4"].path),
            tmp_path / "cut.mp4",
            start_seconds=0.0,
            end_seconds=5.0,
            container=MOV,
            limits=limits,
        )
    assert not list(tmp_path.iterdir())


def test_a_span_without_a_frame_and_a_place_that_cannot_be_written(
    clips: ClipShelf, tmp_path: Path
):
    with pytest.raises(VideoError, match="no_frames"):
        cut_file(
            str(clips["25.mp4"].path),
            tmp_path / "cut.mp4",
            start_seconds=50.0,
            end_seconds=51.0,
            container=MOV,
            limits=LIMITS,
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        list(cut_spans(None, [], tmp_path / "file"))  # type: ignore[arg-type]


def test_spans_are_cut_from_where_the_files_lie_now(
    small_cache: Path, small_videos: Path, tmp_path: Path
):
    with open_cache(small_cache) as cache:
        video_id = cache.aliases[str(small_videos / "first clip.mp4")]
        keys = cache.videos[video_id]
        span = span_of(
            video_id=video_id,
            key=keys[0],
            keys=tuple(keys),
            source=str(small_videos / "first clip.mp4"),
            start_seconds=cache.row(keys[0]).start_seconds,
            end_seconds=cache.row(keys[0]).end_seconds,
        )
        (cut,) = cut_spans(cache, [span], tmp_path / "cuts")
        assert cut.path is not None
        assert cut.path.name == "001_first-clip_0.00-2.00s.mp4"
        assert [number for number, _ in frames_of(cut.path)] == list(range(50))


def test_a_span_that_takes_too_long_is_told_with_its_reason(
    small_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with open_cache(small_cache) as cache:
        video_id = next(iter(cache.videos))
        span = span_of(video_id=video_id, key=cache.videos[video_id][0])
        (cut,) = cut_spans(cache, [span], tmp_path / "cuts")
    assert cut.path is None
    assert cut.why_not.startswith("timed_out (decoding made no progress")


def test_a_source_that_is_gone_or_another_one_is_said(clips: ClipShelf, tmp_path: Path):
    import beam_runner
    from pipeline.sources import read_sources
    from schemas.recipe import Recipe

    video = Path(shutil.copy(clips["25.mp4"].path, tmp_path / "video.mp4"))
    beam_runner.run(
        read_sources([str(video)]).sources, Recipe.load("tiny"), cache_path=tmp_path / "cache"
    )
    with open_cache(tmp_path / "cache") as cache:
        (video_id,) = cache.videos
        span = span_of(video_id=video_id, key=cache.videos[video_id][0])
        shutil.copy(clips["50.mp4"].path, video)
        (cut,) = cut_spans(cache, [span], tmp_path / "cuts")
        assert cut.path is None
        assert cut.why_not.startswith("source_changed")
        video.unlink()
        (cut,) = cut_spans(cache, [span], tmp_path / "cuts")
        assert cut.why_not.startswith("not_found")
    assert not list((tmp_path / "cuts").iterdir())
