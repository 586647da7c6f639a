"""Pictures through shared memory: bounded, reused, sealed, and gone with the processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import jail
from pipeline.decoding import ClipFrames, Decoding
from pipeline.jail import DecoderProcess
from pipeline.slots import (
    MAX_SLOTS,
    MIN_SLOTS,
    PREVIEW,
    SharedMemory,
    SlotLayout,
    read_slot,
    write_slot,
)
from schemas.recipe import DecodeLimits
from schemas.resize import PictureSpec
from tests.asking import assert_usable, decode, piece_of, recipe_at, start
from tests.clips import Clip, ClipShelf

LARGE = {"image": PictureSpec(width=2048, height=2048)}
"""Five slots of 12 MB."""


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory.make()
    yield memory
    memory.close()


@given(
    most_bytes=st.dictionaries(
        st.sampled_from(["a", "b", "c", PREVIEW]), st.integers(1, 10**9), min_size=1
    )
)
def test_pictures_of_a_slot_do_not_overlap(most_bytes: dict[str, int]) -> None:
    layout = SlotLayout.of(most_bytes)
    ends = {name: offset + most_bytes[name] for name, offset in layout.offsets.items()}
    starts = sorted(layout.offsets.values())
    assert len(set(starts)) == len(most_bytes)
    for end, following in zip(sorted(ends.values()), [*starts[1:], layout.slot_bytes], strict=True):
        assert end <= following
    assert MIN_SLOTS <= layout.num_slots <= MAX_SLOTS


def test_a_picture_comes_out_as_it_went_in(memory: SharedMemory) -> None:
    layout = SlotLayout.of({"image": 4 * 5 * 3, PREVIEW: 100})
    memory.grow(layout.num_bytes)
    random = np.random.default_rng(0)
    frames = [
        {
            "image": random.integers(0, 256, (4, 5, 3), np.uint8),
            PREVIEW: random.integers(0, 256, (3, 2 + number, 3), np.uint8),
        }
        for number in range(3)
    ]
    shapes = [
        write_slot(memory, layout, slot, frame)
        for slot, frame in zip((0, 7, layout.num_slots - 1), frames, strict=True)
    ]
    for slot, frame, shape in zip((0, 7, layout.num_slots - 1), frames, shapes, strict=True):
        read = read_slot(memory, layout, slot, shape)
        assert read.keys() == frame.keys()
        for name in frame:
            np.testing.assert_array_equal(read[name], frame[name])


@pytest.mark.parametrize("slot", [-1, 10**6, 2**70])
def test_a_slot_that_does_not_exist(slot: int, memory: SharedMemory) -> None:
    layout = SlotLayout.of({"image": 300})
    memory.grow(layout.num_bytes)
    with pytest.raises(ValueError, match="slot"):
        read_slot(memory, layout, slot, {"image": (10, 10, 3)})


@pytest.mark.parametrize(
    "shape", [(), (300,), (10, 10), (10, 10, 4), (0, 10, 3), (-1, -10, 3), (2**62, 4, 3), (1,) * 4]
)
def test_a_picture_that_does_not_fit(shape: Any, memory: SharedMemory) -> None:
    layout = SlotLayout.of({"image": 300})
    memory.grow(layout.num_bytes)
    with pytest.raises(ValueError, match="fit"):
        read_slot(memory, layout, 0, {"image": shape})


def test_the_other_side_cannot_take_memory_away(memory: SharedMemory) -> None:
    """It would be a bus error in the owner."""
    memory.grow(100_000)
    for size in (0, 99_999):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    for seal in (fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE):
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, seal)
    memory.grow(200_000)
    memory.view(199_999, (1,))[...] = 1


def samples_of(decoding: Decoding) -> Iterator[dict[str, Any]]:
    """What comes from the process, as it comes: no slot is given back."""
    for answer, _ in decoding._exchanges[0].answers():
        if answer["kind"] == "sample":
            yield answer


@pytest.mark.parametrize("order", ["selected", "all", "sorted"])
def test_a_process_waits_when_its_slots_are_full(order: Any, clips: ClipShelf) -> None:
    """Only a slot that is given back is filled again: there is no other, and nothing is queued."""
    clip = clips["50.mp4"]
    with DecoderProcess(DecodeLimits()) as process:
        recipe = recipe_at(10.0)
        decoding = Decoding(
            piece_of(clip.path),
            path=str(clip.path),
            recipe=recipe,
            pictures=LARGE,
            processes=[process],
            order=order,
        )
        num_slots = decoding._layout.num_slots
        assert num_slots == 5
        samples = samples_of(decoding)
        slots = [next(samples)["slot"] for _ in range(num_slots)]
        assert sorted(slots) == list(range(num_slots))
        full = _peak_bytes(process)
        for number in range(3 * num_slots):
            freed = slots[number % num_slots]
            decoding._exchanges[0].send({"kind": "free", "slot": freed})
            sample = next(samples)
            assert sample["k"] == num_slots + number
            assert sample["slot"] == freed
        assert _peak_bytes(process) < full + 30e6
        pid = process.pid
        decoding.close()
        assert process.pid == pid
        assert_usable(process, clips["25.mp4"])
        assert process.pid == pid


def _peak_bytes(process: DecoderProcess) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_more_pictures_than_slots_go_through(clips: ClipShelf) -> None:
    clip = clips["50.mp4"]
    with DecoderProcess(DecodeLimits()) as process:
        decoding = Decoding(
            piece_of(clip.path),
            path=str(clip.path),
            recipe=recipe_at(10.0),
            pictures={"image": PictureSpec(width=1536, height=1024)},
            processes=[process],
        )
        assert decoding._layout.num_slots < 20
        given = [one for one in decoding.clips() if isinstance(one, ClipFrames)]
    assert sum(one.num_frames for one in given) == 50
    pictures = np.concatenate([one.frames["image"][: one.num_frames] for one in given])
    assert len({picture.tobytes() for picture in pictures}) == 50


# What is left behind

OWNER = """
import sys, time
from pathlib import Path
from pipeline.jail import DecoderProcess
from schemas.recipe import DecodeLimits
from tests.asking import recipe_at, start
with DecoderProcess(DecodeLimits()) as process:
    clips = start(Path(sys.argv[1]), process, recipe=recipe_at(25.0)).clips()
    next(clips)
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_an_owner_that_is_killed_leaves_nothing(plain_clip: Clip, tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(plain_clip.path)],
        stdout=subprocess.PIPE,
        cwd=Path(jail.__file__).parents[1],
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/fd").is_dir() and _is_running(pid):
        assert time.monotonic() < deadline, "the decoder process outlives its owner"
        time.sleep(0.05)
    assert list(scratch.iterdir()) == []
    if shared.is_dir():
        assert {
            path for path in set(shared.iterdir()) - before if "reelcache" in path.name
        } == set()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_is_killed_leaves_no_file_open(plain_clip: Clip) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with DecoderProcess(DecodeLimits()) as process:
        decode(plain_clip.path, process)
        process.kill()
        before = open_files()
        for _ in range(3):
            clips = start(plain_clip.path, process, recipe=recipe_at(25.0)).clips()
            next(clips)
            assert open_files() > before
            process.kill()
            del clips
            assert open_files() == before
