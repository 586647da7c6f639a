"""Decode a file in the orders "selected" and "all", in this process, and compare what they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pipeline.jailed.frames import Tally, decode_frames
from pipeline.jailed.sampler import VideoSampler
from pipeline.jailed.scheduling import NotSelectable
from pipeline.sampling import (
    Sampled,
    TimedFrame,
    TimesGoBack,
    Window,
    sample_any_order,
    sample_in_order,
)

MAX_PIXELS = 2**26
MAX_DURATION_SECONDS = 86400.0

Sample = tuple[int, float, float, float, str]
"""k, grid time, start and end of display, digest of the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """All that an order of decoding gives."""

    samples: tuple[Sample, ...]
    end_seconds: float | None


class Reference:
    """A file of which every frame was decoded once; it answers for any window."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tally = Tally()

    @cached_property
    def frames(self) -> list[TimedFrame]:
        decoded = decode_frames(
            str(self.path),
            tally=self.tally,
            max_pixels=MAX_PIXELS,
            max_duration_seconds=MAX_DURATION_SECONDS,
            alive=lambda: None,
        )
        return [
            TimedFrame(
                seconds=frame.seconds,
                duration_seconds=frame.duration_seconds,
                frame=digest(frame.frame),
            )
            for frame in decoded
        ]

    @property
    def goes_back(self) -> bool:
        times = [frame.seconds for frame in self.frames]
        return times != sorted(times)

    def samples(self, window: Window) -> Samples:
        """What decoding all gives; what sorting gives where times go back. VideoError."""
        try:
            return collect(sample_in_order(self.frames, window=window, convert=str))
        except TimesGoBack:
            return collect(
                sample_any_order(
                    lambda: self.frames,
                    window=window,
                    convert=str,
                    in_display_order=lambda: not self.tally.stores_display_times,
                )
            )


def collect(sampled: Sampled[str]) -> Samples:
    """Run a sampler to its end."""
    samples = []
    while True:
        try:
            s = next(sampled)
        except StopIteration as stop:
            return Samples(samples=tuple(samples), end_seconds=stop.value)
        samples.append((s.k, s.grid_seconds, s.start_seconds, s.end_seconds, s.picture))


def digest(frame: Any) -> str:
    """Of all that a conversion of the frame may look at (SHA-256: processors have it built in)."""
    tags = (
        *(frame.width, frame.height, frame.format.name, frame.rotation, frame.interlaced_frame),
        *(frame.colorspace, frame.color_range, frame.color_primaries, frame.color_trc),
    )
    sums = hashlib.sha256(repr(tags).encode())
    for index, plane in enumerate(frame.planes):
        # Lines may be followed by bytes that belong to nobody.
        used = _line_bytes(frame, plane, index)
        data = memoryview(plane)
        if used == plane.line_size:
            sums.update(data[: plane.line_size * plane.height])
        else:
            for begin in range(0, plane.line_size * plane.height, plane.line_size):
                sums.update(data[begin : begin + used])
    return sums.hexdigest()


def _line_bytes(frame: Any, plane: Any, index: int) -> int:
    pixels = [c for c in frame.format.components if c.plane == index]
    bits = sum(-(-c.bits // 8) * 8 for c in pixels) if pixels else 8  # a palette has no component
    return min(int(plane.line_size), max(1, plane.width * bits // 8))


def select(
    path: Path, window: Window, *, part: int = 0, num_parts: int = 1, stops: list[int] | None = None
) -> Samples:
    """What decoding the wanted frames gives. NotSelectable. VideoError.

    The k at which segments stop is added to `stops`.
    """
    sampler = VideoSampler(
        str(path),
        window=window,
        convert=lambda frame, _: digest(frame),
        max_pixels=MAX_PIXELS,
        max_duration_seconds=MAX_DURATION_SECONDS,
    )
    announce: Callable[[list[int]], None] = (lambda _: None) if stops is None else stops.extend
    return collect(sampler.selected(part=part, num_parts=num_parts, announce=announce))


def select_or_why(path: Path, window: Window) -> Samples | str:
    """What decoding the wanted frames gives, or why it gives up. VideoError."""
    try:
        return select(path, window)
    except NotSelectable as error:
        return str(error)


def reason_to_fall_back(reference: Reference, windows: Iterable[Window]) -> str | None:
    """None where the frames of a file can be selected, always with equal results.

    AssertionError: the results differ, or the windows do not agree on the reason.
    """
    reasons = set()
    for window in windows:
        selected = select_or_why(reference.path, window)
        if isinstance(selected, str):
            reasons.add(selected)
            continue
        reasons.add("")
        assert_same(selected, reference.samples(window), f"{reference.path.name}, {window}")
    assert len(reasons) == 1, f"{reference.path.name}: {reasons}"
    return reasons.pop() or None


def assert_same(got: Samples, expected: Samples, what: str) -> None:
    """AssertionError: the first difference, and not pages of numbers."""
    for one, other in zip(got.samples, expected.samples, strict=False):
        assert one == other, f"{what}: sample {one} instead of {other}"
    counts = (len(got.samples), len(expected.samples))
    assert counts[0] == counts[1], f"{what}: {counts[0]} samples instead of {counts[1]}"
    assert got.end_seconds == expected.end_seconds, what


def reading_again(monkeypatch: pytest.MonkeyPatch, *, seeking: bool) -> None:
    """As of a long video: packets are not kept; `seeking`: every run is sought."""
    monkeypatch.setattr("pipeline.jailed.packets.KEPT_BYTES", 0)
    monkeypatch.setattr("pipeline.jailed.rereading.SEEK_BYTES", 0 if seeking else 2**40)


def assert_same_when_read_again(
    reference: Reference,
    windows: Iterable[Window],
    monkeypatch: pytest.MonkeyPatch,
    *,
    seeking: bool,
) -> None:
    """Selected is all, in each window, though no packet was kept."""
    reading_again(monkeypatch, seeking=seeking)
    for window in windows:
        assert_same(select(reference.path, window), reference.samples(window), str(window))
