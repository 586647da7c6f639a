"""Several decoder processes: together they give what one gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import pool
from pipeline.decoding import ClipFrames
from pipeline.jail import DecoderProcess
from pipeline.pool import DecoderPool, num_cores
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits
from tests.asking import assert_usable, decode, piece_of, recipe_at, start
from tests.clips import Clip, ClipShelf


@pytest.fixture(scope="module")
def three() -> Iterator[list[DecoderProcess]]:
    with DecoderPool(DecodeLimits(), num_processes=3) as pool:
        pool.spawn()
        yield pool.processes


def assert_same(some: list[ClipFrames], others: list[ClipFrames]) -> None:
    assert [clip.clip_index for clip in some] == [clip.clip_index for clip in others]
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.times, other.times)
        assert (one.start_seconds, one.end_seconds) == (other.start_seconds, other.end_seconds)
        assert (one.num_frames, one.corrupt, one.shape) == (
            other.num_frames,
            other.corrupt,
            other.shape,
        )
        for name in one.frames:
            np.testing.assert_array_equal(one.frames[name], other.frames[name])
        np.testing.assert_array_equal(one.preview, other.preview)


@pytest.mark.parametrize(
    "name", ["b_frames.mp4", "29.97.mkv", "starts_at_10s.mp4", "odd_size.webm", "rotation_90.mp4"]
)
@pytest.mark.parametrize("fps", [1.0, 6.0])
def test_several_give_the_same_clips_as_one(
    name: str, fps: float, clips: ClipShelf, three: list[DecoderProcess]
) -> None:
    path, recipe = clips[name].path, recipe_at(fps)
    expected, _ = decode(path, three[0], recipe=recipe)
    for processes in (three[:1], three[:2], three):
        shared, outcome = decode(path, *processes, recipe=recipe, order="selected")
        assert_same(shared, expected)
        assert not outcome.corrupt


@pytest.mark.parametrize(("first", "count"), [(1, 2), (3, None), (0, 1), (6, 1)])
def test_several_give_the_same_later_clips(
    first: int, count: int | None, clips: ClipShelf, three: list[DecoderProcess]
) -> None:
    path, recipe = clips["b_frames.mp4"].path, recipe_at(6.0)
    whole, _ = decode(path, three[0], recipe=recipe)
    assert len(whole) == 8
    expected = whole[first:] if count is None else whole[first : first + count]
    piece = piece_of(path, first_clip=first, num_clips=count)
    for order in ("selected", "all", "sorted"):
        processes = three if order == "selected" else three[:1]
        some, _ = decode(piece, *processes, recipe=recipe, order=order)  # type: ignore[arg-type]
        assert_same(some, expected)


def test_one_of_several_that_dies_costs_the_video_and_no_other(
    clips: ClipShelf, plain_clip: Clip, three: list[DecoderProcess]
) -> None:
    # The file is not there: all of them say so, whoever is asked first.
    with pytest.raises(VideoError) as caught:
        decode(plain_clip.path.with_name("none.mp4"), *three, order="selected")
    assert caught.value.reason == "not_found"
    path = clips["50.mp4"].path
    given = start(path, *three, recipe=recipe_at(50.0), order="selected").clips()
    next(given)
    assert three[0].pid is not None
    os.kill(three[0].pid, signal.SIGKILL)
    with pytest.raises(VideoError) as caught:
        list(given)
    assert caught.value.reason == "crashed"
    assert "SIGKILL" in caught.value.detail
    for process in three:
        assert process.is_idle
        assert_usable(process, plain_clip)


def test_work_that_is_given_up_costs_no_process(
    clips: ClipShelf, three: list[DecoderProcess]
) -> None:
    pids: list[Any] = []
    for _ in range(3):
        path = clips["50.mp4"].path
        given = start(path, *three, recipe=recipe_at(50.0), order="selected").clips()
        next(given)
        del given
        assert all(process.is_idle for process in three)
        pids.append([process.pid for process in three])
        assert_usable(three[1], clips["25.mp4"])
    assert pids[0] == pids[1] == pids[2]


def test_work_that_is_over_cannot_end_a_process_that_has_gone_on(
    clips: ClipShelf, plain_clip: Clip
) -> None:
    with DecoderProcess(DecodeLimits()) as process:
        over = start(plain_clip.path, process)
        list(over.clips())
        given = start(clips["50.mp4"].path, process, recipe=recipe_at(50.0)).clips()
        next(given)
        pid = process.pid
        over.close()
        over._exchanges[0].kill()
        assert sum(isinstance(one, ClipFrames) for one in given) == 62
        assert process.pid == pid


def test_a_process_that_was_ended_gives_no_more_of_its_work(plain_clip: Clip) -> None:
    """Its pipes are closed, and their numbers may belong to something else by now."""
    with DecoderProcess(DecodeLimits()) as process:
        given = start(plain_clip.path, process, recipe=recipe_at(25.0)).clips()
        next(given)
        process.close()
        with pytest.raises(VideoError) as caught:
            list(given)
        assert caught.value.reason == "crashed"
        assert_usable(process, plain_clip)


def test_a_pool_knows_who_is_idle(plain_clip: Clip) -> None:
    with DecoderPool(DecodeLimits(), num_processes=2) as pool:
        first, second = pool.processes
        assert pool.idle() == [first, second]
        decoding = start(plain_clip.path, first, recipe=recipe_at(25.0))
        assert pool.idle() == [second]
        decoding.close()
        assert pool.idle() == [first, second]
        pool.close()
        assert first.pid is None
        assert second.pid is None


# How many


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000\n", 4),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("900000 100000\n", 4),
        ("nonsense", 4),
        ("", 4),
        (None, 4),
    ],
)
def test_cores_are_those_that_a_control_group_gives(
    limit: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    monkeypatch.setattr(pool, "_CGROUP_LIMIT", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit)
    assert num_cores() == cores


def test_cores_are_those_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_CGROUP_LIMIT", tmp_path / "none")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert num_cores() == len(allowed)
