"""Place sound on windows of one second. Pure: times and arrays, no file and no decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

JITTER_SECONDS = 0.015
"""Containers round times, and sound is whole in spite of it; a lost frame lasts 20 ms or more."""
HELD_WINDOWS = 8
"""How far behind the latest sound a window still waits for more."""
LEAP_SECONDS = float(HELD_WINDOWS)
"""A step forward that would push waiting windows out, if its time is believed."""

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundWindow:
    """What is heard during one second of the source's clock."""

    index: int
    """It covers [origin + index, origin + index + 1) seconds."""
    samples: Samples
    """(rate,) float32, mono, in [-1, 1]; 0 where there is no sound."""
    heard: bool
    """Whether any of it comes from the track; False: silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSound:
    """A decoded sound frame and when it is heard."""

    seconds: float
    duration_seconds: float
    frame: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSound:
    """Sound at the rate of the windows."""

    position: int
    """Of its first sample, counted from the start of window 0; may be negative."""
    samples: Samples


def joins(seconds: float, *, end_seconds: float) -> bool:
    """Whether sound at a time goes on where other sound ended."""
    return abs(seconds - end_seconds) <= JITTER_SECONDS


def drop_leaps(
    sounds: Iterable[TimedSound], *, dropped: Callable[[], None]
) -> Iterator[TimedSound]:
    """All but sound whose time leaps ahead and whose successor's time is before it again.

    One damaged time would otherwise silence all that lies between.
    """
    end_seconds: float | None = None
    leaping: TimedSound | None = None
    for sound in sounds:
        if leaping is not None:
            if sound.seconds >= leaping.seconds:
                yield leaping
                end_seconds = leaping.seconds + leaping.duration_seconds
            else:
                dropped()
            leaping = None
        if end_seconds is None or sound.seconds > end_seconds + LEAP_SECONDS:
            leaping = sound
            continue
        yield sound
        end_seconds = sound.seconds + sound.duration_seconds
    if leaping is not None:
        yield leaping


def place_sound(
    sounds: Iterable[PlacedSound], *, windows: range, rate: int, num_held: int | None
) -> Iterator[SoundWindow]:
    """Exactly the given windows, in order, with all sound that falls into them.

    Where sounds overlap, the later one in `sounds` is heard. A window is given out once a sound
    begins `num_held` windows later, and what comes for it after that is dropped; None: at the end.
    """
    held: dict[int, Samples] = {}
    next_window = windows.start
    for sound in sounds:
        if num_held is not None:
            waiting_from = min(sound.position // rate - num_held + 1, windows.stop)
            for index in range(next_window, waiting_from):
                yield _window(index, held, rate=rate)
            next_window = max(next_window, waiting_from)
            if next_window >= windows.stop:
                return
        _add(sound, held, windows=range(next_window, windows.stop), rate=rate)
    for index in range(next_window, windows.stop):
        yield _window(index, held, rate=rate)


def _add(sound: PlacedSound, held: dict[int, Samples], *, windows: range, rate: int) -> None:
    start, stop = sound.position, sound.position + len(sound.samples)
    if start == stop:
        return
    first, last = start // rate, (stop - 1) // rate
    for index in range(max(first, windows.start), min(last + 1, windows.stop)):
        if index not in held:
            held[index] = np.zeros(rate, np.float32)
        zero = index * rate
        begin, end = max(start, zero), min(stop, zero + rate)
        held[index][begin - zero : end - zero] = sound.samples[begin - start : end - start]


def _window(index: int, held: dict[int, Samples], *, rate: int) -> SoundWindow:
    samples = held.pop(index, None)
    heard = samples is not None
    return SoundWindow(
        index=index,
        samples=np.zeros(rate, np.float32) if samples is None else samples,
        heard=heard,
    )
