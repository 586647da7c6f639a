"""Sound for clips: which seconds each clip hears, what is masked, and how the thread ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoders import SoundSpec
from pipeline import hearing_ahead
from pipeline.decoding import ClipFrames
from pipeline.hearing_ahead import AHEAD_CHUNKS, ClipSound, HearAhead
from pipeline.jail import DecoderProcess
from pipeline.placing import SoundWindow
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import DecodeLimits, Recipe
from tests.pieces import make_piece
from tests.sounds import counting_video, second_of

RATE = 16000
SPEC = SoundSpec(
    name="loudness",
    rate=RATE,
    num_windows=30,
    tokens_per_window=1,
    dim=2,
    architecture="loudness",
    preprocessing="none",
)


class Loudness:
    """An encoder whose tokens are (the second of the track, the place in the chunk)."""

    spec = SPEC

    def __init__(self) -> None:
        self.num_chunks = 0

    def encode(self, samples: np.ndarray) -> np.ndarray:
        assert samples.shape == (30 * RATE,)
        assert samples.dtype == np.float32
        self.num_chunks += 1
        return self._tokens(samples)

    def silence(self) -> np.ndarray:
        return self._tokens(np.zeros(30 * RATE, np.float32))

    def _tokens(self, samples: np.ndarray) -> np.ndarray:
        tokens = np.zeros((30, 1, 2), np.float16)
        for place, window in enumerate(samples.reshape(30, RATE)):
            tokens[place, 0] = second_of(window), place
        return tokens


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(DecodeLimits()) as process:
        yield process


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counting_video(tmp_path_factory.mktemp("sounds") / "long.mkv", seconds=70)


@pytest.fixture(scope="module")
def short_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counting_video(tmp_path_factory.mktemp("sounds") / "short.mkv", seconds=5)


def recipe_of(*, fps: float = 2.0, frames_per_clip: int = 4) -> Recipe:
    overrides = [f"sampling.fps={fps}", f"sampling.frames_per_clip={frames_per_clip}"]
    return Recipe.load("tiny", overrides=overrides)


def piece_of(path: Path, **changes: Any) -> Piece:
    state = path.stat()
    fields = {"size_bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "has_audio": True}
    return make_piece(str(path), "video", **fields | changes)


def clip_at(index: int, *, seconds: float, origin: float = 0.0, end: float = 1e9) -> ClipFrames:
    start = origin + index * seconds
    return ClipFrames(
        clip_index=index,
        num_frames=1,
        start_seconds=start,
        end_seconds=min(start + seconds, end),
        times=np.zeros((1, 2)),
        frames={},
        preview=None,
        corrupt=False,
        shape={},
    )


def listen(encoder: Loudness, recipe: Recipe, process: DecoderProcess) -> HearAhead:
    return HearAhead(encoder, recipe=recipe, process=process)  # type: ignore[arg-type]


def hear(
    piece: Piece,
    indices: Sequence[int],
    process: DecoderProcess,
    *,
    recipe: Recipe | None = None,
    encoder: Loudness | None = None,
    origin: float = 0.0,
    end: float = 1e9,
) -> list[ClipSound]:
    recipe = recipe or recipe_of()
    seconds = recipe.sampling.frames_per_clip / recipe.sampling.fps
    clips = [clip_at(index, seconds=seconds, origin=origin, end=end) for index in indices]
    with listen(encoder or Loudness(), recipe, process) as hearing:
        for clip in clips:
            hearing.announce("owner", piece, clip)
        return [hearing.take("owner", clip) for clip in clips]


def heard(sounds: list[ClipSound]) -> list[list[int | None]]:
    """The second of the track of each window of each clip; None where it is masked."""
    for sound in sounds:
        assert (sound.tokens[~sound.mask, 0, 0] == -1).all(), "masked, and not silence"
    return [
        [round(float(t[0, 0])) if m else None for t, m in zip(s.tokens, s.mask, strict=True)]
        for s in sounds
    ]


def test_each_clip_hears_its_own_seconds(long_video: Path, process: DecoderProcess) -> None:
    sounds = hear(piece_of(long_video, num_clips=35), range(35), process)
    assert heard(sounds) == [[2 * index, 2 * index + 1] for index in range(35)]
    assert [sound.start_seconds for sound in sounds] == [2.0 * index for index in range(35)]
    places = [int(place) for sound in sounds for place in sound.tokens[:, 0, 1]]
    assert places == [second % 30 for second in range(70)]


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 31])
def test_how_a_video_is_cut_makes_no_difference(
    cut: int, long_video: Path, process: DecoderProcess
) -> None:
    whole = hear(piece_of(long_video, num_clips=35), range(35), process)
    first = piece_of(long_video, num_clips=cut, is_last=False)
    second = piece_of(long_video, first_clip=cut, num_clips=35 - cut)
    encoder = Loudness()
    parts = hear(first, range(cut), process)
    parts += hear(second, range(cut, 35), process, encoder=encoder)
    assert encoder.num_chunks == 3 - 2 * cut // 30  # only chunks that are needed
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.mask, other.mask)
        assert one.start_seconds == other.start_seconds


def test_sound_that_begins_late_and_ends_early_is_masked_around(
    tmp_path: Path, process: DecoderProcess
) -> None:
    path = counting_video(tmp_path / "late.mkv", seconds=8, sound_seconds=4, late_seconds=2)
    sounds = hear(piece_of(path, num_clips=4), range(4), process, end=8.0)
    assert heard(sounds) == [[None, None], [0, 1], [2, 3], [None, None]]


def test_the_origin_may_be_anywhere(short_video: Path, process: DecoderProcess) -> None:
    sounds = hear(piece_of(short_video, start_seconds=2.0), range(2), process, origin=2.0)
    assert heard(sounds) == [[2, 3], [4, None]]
    assert [sound.start_seconds for sound in sounds] == [2.0, 4.0]


def test_clips_of_half_a_second_hear_every_second_window(
    short_video: Path, process: DecoderProcess
) -> None:
    recipe = recipe_of(fps=8, frames_per_clip=4)
    sounds = hear(piece_of(short_video, num_clips=10), range(10), process, recipe=recipe)
    assert heard(sounds) == [[0], [None], [1], [None], [2], [None], [3], [None], [4], [None]]
    assert [sound.start_seconds for sound in sounds][:4] == [0.0, 1.0, 1.0, 2.0]


def test_clips_of_uneven_length_have_room_for_the_most(
    short_video: Path, process: DecoderProcess
) -> None:
    recipe = recipe_of(fps=2, frames_per_clip=3)
    sounds = hear(piece_of(short_video, num_clips=3), range(3), process, recipe=recipe)
    assert heard(sounds) == [[0, 1], [2, None], [3, 4]]


def test_windows_that_begin_after_the_video_are_masked(
    tmp_path: Path, process: DecoderProcess
) -> None:
    path = counting_video(tmp_path / "more_sound.mkv", seconds=3, sound_seconds=9)
    sounds = hear(piece_of(path, num_clips=2), range(2), process, end=3.0)
    assert heard(sounds) == [[0, 1], [2, None]]


def test_sound_after_the_end_of_a_span_does_not_reach_the_encoder(
    short_video: Path, process: DecoderProcess
) -> None:
    seen: list[np.ndarray] = []

    class Keeping(Loudness):
        def encode(self, samples: np.ndarray) -> np.ndarray:
            seen.append(samples)
            return super().encode(samples)

    piece = piece_of(short_video, end_seconds=2.75, num_clips=2)
    sounds = hear(piece, range(2), process, encoder=Keeping(), end=2.75)
    assert heard(sounds) == [[0, 1], [2, None]]
    (samples,) = seen
    edge = round(2.75 * RATE)
    assert np.abs(samples[edge - 10 : edge]).min() > 0.02
    assert not samples[edge:].any()


def test_without_a_track_nothing_is_decoded(short_video: Path) -> None:
    encoder, idle = Loudness(), DecoderProcess(DecodeLimits())
    piece = piece_of(short_video, has_audio=False, num_clips=3)
    sounds = hear(piece, range(3), idle, encoder=encoder)
    assert heard(sounds) == [[None, None]] * 3
    assert idle.pid is None
    assert encoder.num_chunks == 0


def test_a_track_that_cannot_be_decoded_is_silence(
    plain_clip: Any, process: DecoderProcess
) -> None:
    encoder = Loudness()
    sounds = hear(piece_of(plain_clip.path, num_clips=3), range(3), process, encoder=encoder)
    assert heard(sounds) == [[None, None]] * 3
    assert encoder.num_chunks == 0


def test_clips_beyond_the_plan_are_heard_too(long_video: Path, process: DecoderProcess) -> None:
    sounds = hear(piece_of(long_video, num_clips=3), range(35), process)
    assert heard(sounds) == [[2 * index, 2 * index + 1] for index in range(35)]


def test_a_clip_may_be_longer_than_what_is_made_ahead(
    long_video: Path, process: DecoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing_ahead, "AHEAD_CHUNKS", 1)
    recipe = recipe_of(fps=1, frames_per_clip=100)
    (sound,) = hear(piece_of(long_video), [0], process, recipe=recipe, end=70.0)
    assert heard([sound]) == [[*range(70), *[None] * 30]]


def test_a_file_that_is_gone_or_changed_costs_the_video(
    short_video: Path, tmp_path: Path, process: DecoderProcess
) -> None:
    copy = tmp_path / "copy.mkv"
    copy.write_bytes(short_video.read_bytes())
    piece = piece_of(copy)
    copy.write_bytes(short_video.read_bytes() + b" ")
    with pytest.raises(VideoError) as caught:
        hear(piece, [0], process)
    assert caught.value.reason == "source_changed"
    copy.unlink()
    with pytest.raises(VideoError) as caught:
        hear(piece, [0], process)
    assert caught.value.reason == "not_found"


def test_a_file_that_changes_while_it_is_heard_costs_the_video(
    long_video: Path, tmp_path: Path, process: DecoderProcess
) -> None:
    copy = tmp_path / "copy.mkv"
    copy.write_bytes(long_video.read_bytes())
    piece = piece_of(copy, num_clips=35)

    class Touching(Loudness):
        def encode(self, samples: np.ndarray) -> np.ndarray:
            os.utime(copy, (1, 1))
            return super().encode(samples)

    with pytest.raises(VideoError) as caught:
        hear(piece, range(35), process, encoder=Touching())
    assert caught.value.reason == "source_changed"


class Decoding:
    """In the place of `decode_sound`: sound without end, and what goes wrong with it."""

    def __init__(self, *, crashes: int = 0, reason: str = "crashed", after: int = 40) -> None:
        self.crashes, self.reason, self.after = crashes, reason, after
        self.asked: list[tuple[int, int]] = []

    def __call__(self, path: str, **request: Any) -> Iterator[SoundWindow]:
        first, count = request["first_window"], request["num_windows"]
        self.asked.append((first, count))
        for index in range(first, first + count):
            if self.crashes and index == self.after:
                self.crashes -= 1
                raise VideoError(self.reason, "by test")
            level = (1 + index) / 100
            yield SoundWindow(index=index, samples=np.full(RATE, level, np.float32), heard=True)


def test_a_crash_is_tried_once_more_from_where_it_happened(
    short_video: Path, process: DecoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding(crashes=1)
    monkeypatch.setattr(hearing_ahead, "decode_sound", decoding)
    sounds = hear(piece_of(short_video, num_clips=35), range(35), process)
    assert heard(sounds) == [[2 * index, 2 * index + 1] for index in range(35)]
    assert decoding.asked == [(0, 90), (30, 60)]


@pytest.mark.parametrize(
    ("decoding", "num_tries"),
    [
        (Decoding(crashes=2), 2),
        (Decoding(crashes=1, reason="timed_out"), 1),
        (Decoding(crashes=1, reason="out_of_memory"), 1),
    ],
)
def test_what_cannot_be_heard_costs_the_video_and_is_told_from_pictures(
    decoding: Decoding,
    num_tries: int,
    short_video: Path,
    process: DecoderProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hearing_ahead, "decode_sound", decoding)
    piece, clip = piece_of(short_video, num_clips=35), clip_at(16, seconds=2.0)
    with listen(Loudness(), recipe_of(), process) as hearing:
        for index in range(35):
            hearing.announce("bad", piece, clip_at(index, seconds=2.0))
        assert heard([hearing.take("bad", clip_at(0, seconds=2.0))]) == [[0, 1]]
        with pytest.raises(VideoError) as caught:
            hearing.take("bad", clip)
        assert caught.value.detail == "its sound: by test"
        assert len(decoding.asked) == num_tries
        hearing.forget("bad")
        hearing.announce("good", piece, clip)
        assert heard([hearing.take("good", clip)]) == [[32, 33]]


def test_a_bug_comes_out_where_the_sound_is_taken(
    short_video: Path, process: DecoderProcess
) -> None:
    class Broken(Loudness):
        def encode(self, samples: np.ndarray) -> np.ndarray:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hear(piece_of(short_video), [0], process, encoder=Broken())


def until(condition: Any, *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_runs_only_a_few_chunks_ahead(
    short_video: Path, process: DecoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing_ahead, "decode_sound", Decoding())
    encoder, piece = Loudness(), piece_of(short_video, num_clips=1000)
    with listen(encoder, recipe_of(), process) as hearing:
        hearing.announce("owner", piece, clip_at(0, seconds=2.0))
        until(lambda: encoder.num_chunks == AHEAD_CHUNKS + 1)
        time.sleep(0.1)
        assert encoder.num_chunks == AHEAD_CHUNKS + 1  # one is waiting for room
        for index in range(15):
            hearing.take("owner", clip_at(index, seconds=2.0))
        until(lambda: encoder.num_chunks == AHEAD_CHUNKS + 2)


def test_what_is_not_wanted_any_more_makes_room_for_the_next(
    short_video: Path, long_video: Path, process: DecoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding()
    monkeypatch.setattr(hearing_ahead, "decode_sound", decoding)
    encoder, piece = Loudness(), piece_of(short_video, num_clips=1000)
    clip = clip_at(0, seconds=2.0)
    with listen(encoder, recipe_of(), process) as hearing:
        hearing.announce("given up", piece, clip)
        until(lambda: encoder.num_chunks == AHEAD_CHUNKS + 1)
        hearing.announce("over", piece, clip)
        hearing.announce("next", piece_of(long_video), clip)
        hearing.forget("given up")
        hearing.forget("given up")  # twice is fine
        # "over" is not forgotten: taking from a later one says that nothing more is taken of it.
        assert heard([hearing.take("next", clip)]) == [[0, 1]]
    assert decoding.asked[-1] == (0, 30)


def sound_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sound"]


def test_an_error_of_the_caller_ends_the_thread(
    short_video: Path, process: DecoderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing_ahead, "decode_sound", Decoding())
    encoder = Loudness()
    with (
        pytest.raises(KeyboardInterrupt),
        listen(encoder, recipe_of(), process) as hearing,
    ):
        hearing.announce("owner", piece_of(short_video, num_clips=999), clip_at(0, seconds=2.0))
        until(lambda: encoder.num_chunks > AHEAD_CHUNKS)
        raise KeyboardInterrupt
    assert sound_threads() == []
    hearing.close()  # twice is fine


def test_a_decoder_process_that_hangs_is_killed_when_it_is_no_longer_wanted(
    long_video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing_ahead, "CLOSE_SECONDS", 0.2)
    with DecoderProcess(DecodeLimits()) as process:
        process.spawn()
        hear(piece_of(long_video), [0], process)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        stopped = process.pid
        began = time.monotonic()
        with listen(Loudness(), recipe_of(), process) as hearing:
            hearing.announce("owner", piece_of(long_video), clip_at(0, seconds=2.0))
            until(lambda: not process.is_idle)
        assert time.monotonic() - began < 5
        assert sound_threads() == []
        assert not Path(f"/proc/{stopped}").exists()
        assert process.pid is None


def test_a_decoder_process_that_dies_is_replaced(long_video: Path) -> None:
    with DecoderProcess(DecodeLimits()) as process:
        process.spawn()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        assert heard(hear(piece_of(long_video), [0, 1], process)) == [[0, 1], [2, 3]]
