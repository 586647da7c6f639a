"""Decode one sound track to mono in windows of one second. Runs in the decoder process.

Every frame lies where its own time says. Frames that follow each other are resampled together, as
one stretch; where times jump or the sound changes its form, another stretch begins. One thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import av
import av.error
import av.filter
import numpy as np

from pipeline.jailed.frames import Tally, decode_stream
from pipeline.jailed.opening import open_sound
from pipeline.placing import (
    HELD_WINDOWS,
    PlacedSound,
    SoundWindow,
    TimedSound,
    drop_leaps,
    joins,
    place_sound,
)
from schemas.errors import VideoError

SPAN_WINDOWS = 600
"""Held at once where times go back: 40 MB at 16 kHz."""
SOURCE_RATES = range(1_000, 1_000_001)
"""A header may claim 1 Hz, and a packet then lasts for hours."""


def hear_windows(
    path: str,
    *,
    origin_seconds: float,
    num_windows: int,
    rate: int,
    first_window: int = 0,
    in_order: bool = True,
    max_pixels: int,
    tally: Tally,
    alive: Callable[[], None],
) -> Iterator[SoundWindow]:
    """`num_windows` windows of the track of `open_sound`, from `first_window` on.

    Window i covers [origin_seconds + i, origin_seconds + i + 1) on the source's clock. Without a
    track that can be decoded, all are silence. Memory does not depend on the length. With
    `in_order` the file is decoded once, and sound whose time goes back by more than HELD_WINDOWS
    is lost; without, once for every SPAN_WINDOWS windows, and all sound finds its place. The
    tally is of the first time. `alive` is called for every packet of the file.

    VideoError: of `open_sound`, out_of_memory.
    """
    wanted = range(first_window, first_window + num_windows)
    length = max(num_windows if in_order else SPAN_WINDOWS, 1)
    for start in wanted[::length]:
        sounds = _hear(
            path,
            origin_seconds=origin_seconds,
            rate=rate,
            max_pixels=max_pixels,
            tally=tally if start == first_window else Tally(),
            alive=alive,
        )
        yield from place_sound(
            sounds,
            windows=range(start, min(start + length, wanted.stop)),
            rate=rate,
            num_held=HELD_WINDOWS if in_order else None,
        )


def _hear(
    path: str,
    *,
    origin_seconds: float,
    rate: int,
    max_pixels: int,
    tally: Tally,
    alive: Callable[[], None],
) -> Iterator[PlacedSound]:
    def dropped() -> None:
        tally.num_errors += 1

    with open_sound(path, max_pixels=max_pixels) as (container, stream):
        if stream is None:
            return
        stream.codec_context.thread_count = 1
        frames = decode_stream(container, stream, tally=tally, alive=alive)
        sounds = drop_leaps(_time_frames(frames, tally), dropped=dropped)
        yield from _resample(sounds, origin_seconds=origin_seconds, rate=rate, tally=tally)


def _time_frames(frames: Iterable[Any], tally: Tally) -> Iterator[TimedSound]:
    end_seconds: float | None = None
    for frame in frames:
        seconds = end_seconds  # of several frames in a packet only the first has a time
        if frame.pts is not None and frame.time_base is not None:
            seconds = float(frame.pts * frame.time_base)
        if seconds is None or frame.sample_rate not in SOURCE_RATES:
            tally.num_errors += 1
            continue
        duration = frame.samples / frame.sample_rate
        end_seconds = seconds + duration
        tally.num_frames += 1
        tally.num_corrupt += frame.is_corrupt
        yield TimedSound(seconds=seconds, duration_seconds=duration, frame=frame)


def _resample(
    sounds: Iterable[TimedSound], *, origin_seconds: float, rate: int, tally: Tally
) -> Iterator[PlacedSound]:
    stretch: _Stretch | None = None
    for sound in itertools.chain(sounds, (None,)):
        try:
            if stretch is not None and (sound is None or not stretch.goes_on_with(sound)):
                yield from stretch.finish()
                stretch = None
            if sound is None:
                return
            if stretch is None:
                position = round((sound.seconds - origin_seconds) * rate)
                stretch = _Stretch(sound, position=position, rate=rate)
            yield from stretch.add(sound)
        except MemoryError as error:
            raise VideoError("out_of_memory", "while resampling sound") from error
        except av.error.FFmpegError:
            tally.num_errors += 1
            stretch = None


class _Stretch:
    """Sound of one form without a gap, on its way through one resampler."""

    def __init__(self, first: TimedSound, *, position: int, rate: int) -> None:
        self._form = _form(first.frame)
        self._start_seconds = first.seconds
        self._num_samples = 0
        self._position = position
        self._rate = rate
        self._resampler = _resampler(rate)
        self._mixer: Any = None

    def goes_on_with(self, sound: TimedSound) -> bool:
        end = self._start_seconds + self._num_samples / sound.frame.sample_rate
        return self._form == _form(sound.frame) and joins(sound.seconds, end_seconds=end)

    def add(self, sound: TimedSound) -> Iterator[PlacedSound]:
        frame = sound.frame
        frame.pts = None  # samples are counted from the first one's time
        if self._num_samples == 0:
            try:
                frames = self._resampler.resample(frame)
            except av.error.ArgumentError:  # no rule for these channels: ambisonics, only rear ones
                self._mixer = _mixer(frame)
                self._resampler = _resampler(self._rate)
                frames = self._resampler.resample(self._mix(frame))
        else:
            frames = self._resampler.resample(self._mix(frame))
        self._num_samples += sound.frame.samples
        yield from self._give(frames)

    def finish(self) -> Iterator[PlacedSound]:
        """What the resampler still holds."""
        yield from self._give(self._resampler.resample(None))

    def _mix(self, frame: Any) -> Any:
        if self._mixer is None:
            return frame
        self._mixer.push(frame)
        return self._mixer.pull()

    def _give(self, frames: list[Any]) -> Iterator[PlacedSound]:
        for frame in frames:
            if frame is None:  # flushed without having had anything to do
                continue
            samples = np.clip(frame.to_ndarray()[0], -1, 1)
            samples[np.isnan(samples)] = 0
            yield PlacedSound(position=self._position, samples=samples)
            self._position += len(samples)


def _resampler(rate: int) -> Any:
    # Without the limit a float sum of two channels is louder than one of integers.
    return av.AudioResampler("flt", "mono", rate, options={"rematrix_maxval": "1"})


def _mixer(frame: Any) -> Any:
    """A filter that gives all channels the same weight, whatever they are."""
    num_channels = frame.layout.nb_channels
    weights = "+".join(f"{1 / num_channels:.9f}*c{index}" for index in range(num_channels))
    graph = av.filter.Graph()
    source = graph.add(
        "abuffer",
        sample_rate=str(frame.sample_rate),
        sample_fmt=frame.format.name,
        channel_layout=frame.layout.name,
    )
    pan = graph.add("pan", f"mono|c0={weights}")
    sink = graph.add("abuffersink")
    source.link_to(pan)
    pan.link_to(sink)
    graph.configure()
    return graph


def _form(frame: Any) -> tuple[str, Any, int]:
    return frame.format.name, frame.layout, frame.sample_rate
