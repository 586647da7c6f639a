"""Sound through the decoder process: the same windows as without it; nonsense costs one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline import messages
from pipeline.jail import DecoderProcess
from pipeline.jailed.frames import Tally
from pipeline.jailed.hearing import hear_windows
from pipeline.listening import decode_sound
from pipeline.placing import SoundWindow
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits
from tests.clips import Clip, ClipShelf

RATE = 16000
LIMITS = DecodeLimits()


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(LIMITS) as process:
        yield process


def ask(clip: Clip, process: DecoderProcess, **changes: Any) -> Iterator[SoundWindow]:
    fields: dict[str, Any] = {"origin_seconds": 0.0, "num_windows": 7, "rate": RATE}
    return decode_sound(str(clip.path), limits=LIMITS, process=process, **fields | changes)


@pytest.mark.parametrize("first_window", [0, 3])
def test_the_windows_are_those_of_the_file(
    first_window: int, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip = clips["with_audio.mp4"]  # 6 s of sound beside 5 s of pictures
    found = list(ask(clip, process, first_window=first_window))
    expected = list(
        hear_windows(
            str(clip.path),
            origin_seconds=0.0,
            num_windows=7,
            rate=RATE,
            first_window=first_window,
            max_pixels=LIMITS.max_pixels,
            tally=Tally(),
            alive=lambda: None,
        )
    )
    assert [w.index for w in found] == list(range(first_window, first_window + 7))
    assert [w.heard for w in found] == [w.heard for w in expected]
    assert found[0].heard
    assert not found[-1].heard or first_window == 0
    for one, other in zip(found, expected, strict=True):
        assert one.samples.dtype == np.float32
        assert np.array_equal(one.samples, other.samples)


def test_a_video_without_sound_is_silent(plain_clip: Clip, process: DecoderProcess) -> None:
    windows = list(ask(plain_clip, process))
    assert len(windows) == 7
    assert not any(window.heard or window.samples.any() for window in windows)


def test_stopping_early_leaves_the_process_usable(
    clips: ClipShelf, process: DecoderProcess
) -> None:
    windows = ask(clips["with_audio.mp4"], process, num_windows=100_000)
    next(windows)
    pid = process.pid
    windows.close()  # type: ignore[attr-defined]
    assert process.pid == pid
    assert len(list(ask(clips["with_audio.mp4"], process))) == 7


def test_a_file_that_is_gone(plain_clip: Clip, process: DecoderProcess) -> None:
    windows = decode_sound(
        f"{plain_clip.path}x",
        origin_seconds=0.0,
        num_windows=1,
        rate=RATE,
        limits=LIMITS,
        process=process,
    )
    with pytest.raises(VideoError) as caught:
        list(windows)
    assert caught.value.reason == "not_found"


SOUND = np.zeros(RATE, np.float32)


@pytest.mark.parametrize(
    ("answer", "payload"),
    [
        pytest.param({"kind": "sound", "index": 1, "heard": True}, SOUND, id="another window"),
        pytest.param({"kind": "sound", "index": 0, "heard": 1}, SOUND, id="no flag"),
        pytest.param({"kind": "sound", "index": 0, "heard": True}, SOUND[1:], id="too short"),
        pytest.param(
            {"kind": "sound", "index": 0, "heard": True},
            SOUND.view(np.uint8)[1:],
            id="part of a sample",
        ),
        pytest.param({"kind": "sound", "index": 0, "heard": True}, SOUND + np.nan, id="no number"),
        pytest.param({"kind": "sound", "index": 0, "heard": True}, SOUND + 2, id="too loud"),
        pytest.param({"kind": "sample", "k": 0}, SOUND, id="a picture"),
        pytest.param({"kind": "done"}, SOUND[:0], id="too few"),
    ],
)
def test_nonsense_costs_that_video(
    answer: dict[str, Any],
    payload: Any,
    plain_clip: Clip,
    process: DecoderProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    list(ask(plain_clip, process))
    with monkeypatch.context() as patch:
        said = (answer, bytearray(payload.tobytes()))
        patch.setattr(messages.Receiver, "receive", lambda *_, **__: said)
        with pytest.raises(VideoError) as caught:
            list(ask(plain_clip, process))
    assert caught.value.reason == "crashed"
    assert len(list(ask(plain_clip, process))) == 7
