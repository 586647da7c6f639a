"""Scene: what happens in a video of shapes, and how it looks and sounds.

A scene is a pure function of (seed, index). Two objects appear one after the other, each of another
colour, and move at constant speed; what leaves the picture at one side comes in at the other, and
each starts anywhere, so that no single frame tells where it moves to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

DURATION_SECONDS = 16.0
GRID_SECONDS = 0.5
"""All times are multiples of it."""
LENGTHS_SECONDS = (2.0, 4.0)
GAPS_SECONDS = (0.5, 2.0)
FPS = 8
SIZE = 64
"""Pixels a side."""
RATE = 8_000
"""Samples of sound a second; a second at twice the rate costs twice as much to write."""
RADII = (8.0, 10.0)
SPEEDS = (12.0, 24.0)
"""Pixels a second: 6 to 12 between frames at 2 fps, less than an object's width."""
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (220, 50, 40),
    "green": (40, 180, 60),
    "blue": (60, 80, 230),
    "yellow": (230, 210, 50),
}
DIRECTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
"""(x, y); y grows downwards."""
SHAPES = ("circle", "square")
BEEPS, IS_QUIET = 0.6, 0.2
"""Share of videos with a tone, and with sound but no tone; the others have no track."""
NOISE = 4.0
"""Standard deviation of the background, in levels of 255."""

_SQUARE = 0.886
"""Half a side over the radius of a circle of the same area."""
_TONE_HZ, _TONE, _HISS = 1000.0, 0.3, 0.003

Sound = Literal["beep", "quiet", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One object, from when it appears until it is gone."""

    start_seconds: float
    end_seconds: float
    color: str
    shape: str
    direction: str
    speed: float
    """Pixels a second."""
    radius: float
    x: float
    y: float
    """Its middle when it appears, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One video."""

    seed: int
    index: int
    events: tuple[Event, Event]
    background: int
    """Its level, of 255."""
    sound: Sound
    beeping: int | None
    """Which event's tone is heard; None: there is none."""

    @property
    def video_id(self) -> str:
        return f"shapes-{self.index:06d}"


def make_scene(seed: int, index: int) -> Scene:
    """The scene of that number; the same on every machine with the same numpy."""
    rng = np.random.default_rng([seed, index])
    first, gap, second = (
        _on_grid(rng, *limits) for limits in (LENGTHS_SECONDS, GAPS_SECONDS, LENGTHS_SECONDS)
    )
    # Without an offset over all the free time the first event would nearly be at a fixed place.
    start = _on_grid(rng, 0.0, DURATION_SECONDS - first - gap - second)
    starts = (start, start + first + gap)
    colors = rng.choice(list(COLORS), size=2, replace=False)
    events = tuple(
        Event(
            start_seconds=begin,
            end_seconds=begin + length,
            color=str(color),
            shape=str(rng.choice(SHAPES)),
            direction=str(rng.choice(list(DIRECTIONS))),
            speed=float(rng.uniform(*SPEEDS)),
            radius=float(rng.uniform(*RADII)),
            x=float(rng.uniform(0, SIZE)),
            y=float(rng.uniform(0, SIZE)),
        )
        for begin, length, color in zip(starts, (first, second), colors, strict=True)
    )
    sound: Sound = rng.choice(["beep", "quiet", "none"], p=[BEEPS, IS_QUIET, 1 - BEEPS - IS_QUIET])
    beeping = int(rng.integers(2))
    return Scene(
        seed=seed,
        index=index,
        events=(events[0], events[1]),
        background=int(rng.integers(40, 100)),
        sound=str(sound),  # type: ignore[arg-type]
        beeping=beeping if sound == "beep" else None,
    )


def render_frames(scene: Scene) -> npt.NDArray[np.uint8]:
    """(T, SIZE, SIZE, 3) uint8 RGB: frame n is shown at n / FPS seconds."""
    rng = np.random.default_rng([scene.seed, scene.index, 1])
    T = round(DURATION_SECONDS * FPS)
    noise_THW = rng.standard_normal((T, SIZE, SIZE), dtype=np.float32)
    grey_THW = (scene.background + NOISE * noise_THW).astype(np.uint8)
    frames_THWC = np.repeat(grey_THW[..., None], 3, axis=-1)
    for event in scene.events:
        color = np.array(COLORS[event.color], np.uint8)
        for n in range(round(event.start_seconds * FPS), round(event.end_seconds * FPS)):
            frames_THWC[n][_mask(event, n / FPS - event.start_seconds)] = color
    return frames_THWC


def render_sound(scene: Scene) -> npt.NDArray[np.float32] | None:
    """(S,) float32 in [-1, 1] at RATE; None: the video has no track."""
    if scene.sound == "none":
        return None
    rng = np.random.default_rng([scene.seed, scene.index, 2])
    samples = _HISS * rng.standard_normal(round(DURATION_SECONDS * RATE), dtype=np.float32)
    if scene.beeping is not None:
        event = scene.events[scene.beeping]
        heard = np.arange(round(event.start_seconds * RATE), round(event.end_seconds * RATE))
        samples[heard] += _TONE * np.sin(2 * np.pi * _TONE_HZ * heard / RATE)
    return samples


def _mask(event: Event, seconds: float) -> npt.NDArray[np.bool_]:
    # Distances to the middle on a picture whose opposite sides touch.
    dx, dy = DIRECTIONS[event.direction]
    x, y = (event.x + dx * event.speed * seconds, event.y + dy * event.speed * seconds)
    across_W, down_H = (
        np.abs((np.arange(SIZE) - middle + SIZE / 2) % SIZE - SIZE / 2) for middle in (x, y)
    )
    if event.shape == "circle":
        mask = across_W[None, :] ** 2 + down_H[:, None] ** 2 <= event.radius**2
    else:
        side = _SQUARE * event.radius
        mask = (across_W <= side)[None, :] & (down_H <= side)[:, None]
    return np.asarray(mask, np.bool_)


def _on_grid(rng: np.random.Generator, low: float, high: float) -> float:
    """A multiple of GRID_SECONDS in [low, high]."""
    steps = rng.integers(round(low / GRID_SECONDS), round(high / GRID_SECONDS) + 1)
    return float(steps) * GRID_SECONDS
