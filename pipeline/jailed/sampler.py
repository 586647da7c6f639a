"""VideoSampler: the wanted samples of one video, by decoding as little as can be trusted.

Runs inside the decoder process only. Three orders of decoding, each for what the one before cannot
do: "selected" (only what is wanted), "all" (every frame), "sorted" (every frame, twice).
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from pipeline.jailed.backends import Backend, WantedFrames
from pipeline.jailed.frames import Tally, decode_frames
from pipeline.jailed.opening import check_duration, open_video, sample_aspect
from pipeline.jailed.packets import PacketTable, read_packet_table
from pipeline.jailed.rereading import PacketReader
from pipeline.jailed.scheduling import (
    NotSelectable,
    check_packet_times,
    check_selectable,
    choose_by_packets,
    schedule_runs,
)
from pipeline.jailed.selecting import FrameSelector, skips_disposable
from pipeline.sampling import (
    Convert,
    Picture,
    Sampled,
    TimedFrame,
    Window,
    sample_any_order,
    sample_in_order,
)
from schemas.errors import VideoError

_MAX_TABLES = 2
_tables: OrderedDict[tuple[object, ...], PacketTable] = OrderedDict()
"""Of long videos, which are decoded in pieces."""


class VideoSampler(Generic[Picture]):
    """Samples one video, once, in one of the orders."""

    def __init__(
        self,
        path: str,
        *,
        window: Window,
        convert: Callable[[Any, float], Picture],
        max_pixels: int,
        max_duration_seconds: float,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`convert` takes a decoded frame and the width of a pixel over its height."""
        self.tally = Tally()
        self._path = path
        self._window = window
        self._convert: Convert[Picture] = lambda f: convert(f, self.tally.sample_aspect)
        self._max_pixels = max_pixels
        self._max_duration_seconds = max_duration_seconds
        self._alive = alive

    def selected(
        self,
        *,
        part: int = 0,
        num_parts: int = 1,
        announce: Callable[[list[int]], None] = lambda _: None,
    ) -> Sampled[Picture]:
        """Only what is wanted, or every `num_parts`-th segment of it.

        `announce` is called with the k at which each segment stops. NotSelectable: decode all.
        VideoError.
        """
        with contextlib.ExitStack() as stack:
            container, stream = stack.enter_context(self._open())
            table = _recall(self._path)
            if table is None:
                table = read_packet_table(container, stream, alive=self._alive)
                if table.kept is None:
                    _remember(self._path, table)
                    stack.close()
                    container, stream = stack.enter_context(self._open())
            codec = stream.codec_context.codec.canonical_name
            check_selectable(table, codec=codec)
            schedule = schedule_runs(table, self._window)
            self._check_duration(schedule.seconds)
            self.tally.sample_aspect = sample_aspect(stream)
            segments = schedule.segments()
            first_k = schedule.samples.ks.start
            announce([first_k + segment[-1].stop_sample for segment in segments])
            selector = FrameSelector(
                stream,
                reader=PacketReader(
                    container,
                    stream,
                    table=table,
                    alive=self._alive,
                    reopen=lambda: stack.enter_context(self._open()),
                ),
                table=table,
                schedule=schedule,
                tally=self.tally,
                skips_disposable=skips_disposable(stream, codec),
                max_pixels=self._max_pixels,
            )
            # Segment by segment, so that what goes wrong is met in the same order by any number.
            for segment in segments[part::num_parts]:
                yield from selector.sample(segment, self._convert)
            return schedule.samples.end_seconds

    def by_backend(self, name: str) -> Sampled[Picture]:
        """What is wanted, by another decoder. NotSelectable: leave it to PyAV. VideoError."""
        backend = _load_backend(name)
        with self._open() as (container, stream):
            table = read_packet_table(container, stream, alive=self._alive)
            check_packet_times(table)
            _, seconds, samples = choose_by_packets(table, self._window)
            self._check_duration(seconds)
            self.tally.sample_aspect = sample_aspect(stream)
            stream_index, num_streams = stream.index, len(container.streams.video)
        ranks = np.unique(samples.ranks)
        wanted = WantedFrames(
            container=table.container,
            stream_index=stream_index,
            is_only_stream=num_streams == 1,
            seconds=seconds,
            ranks=ranks,
            max_pixels=self._max_pixels,
        )
        i = 0
        frames = backend(self._path, wanted, alive=self._alive) if len(ranks) else iter(())
        for rank, frame in zip(ranks, frames, strict=False):
            self.tally.num_frames += 1
            picture = self._convert(frame)
            while i < len(samples.ranks) and samples.ranks[i] == rank:
                yield samples.sample(i, picture)
                i += 1
        if i < len(samples.ranks):
            raise NotSelectable(f"{name} gives too few frames")
        return samples.end_seconds

    def all(self) -> Sampled[Picture]:
        """Every frame is decoded. TimesGoBack: sort them. VideoError."""
        frames = self._all_frames()
        return (yield from sample_in_order(frames, window=self._window, convert=self._convert))

    def sorted(self) -> Sampled[Picture]:
        """Every frame is decoded, twice, and sorted by its time. VideoError."""

        def decode() -> Iterator[TimedFrame]:
            self.tally.reset()  # of the last pass: it is the one whose frames are kept
            return self._all_frames()

        samples = sample_any_order(
            decode,
            window=self._window,
            convert=self._convert,
            in_display_order=lambda: not self.tally.stores_display_times,
        )
        return (yield from samples)

    def _all_frames(self) -> Iterator[TimedFrame]:
        return decode_frames(
            self._path,
            tally=self.tally,
            max_pixels=self._max_pixels,
            max_duration_seconds=self._max_duration_seconds,
            alive=self._alive,
        )

    def _check_duration(self, seconds: npt.NDArray[np.float64]) -> None:
        span_seconds = float(seconds[-1] - seconds[0])
        check_duration(span_seconds, max_duration_seconds=self._max_duration_seconds)

    def _open(self) -> Any:
        return open_video(self._path, max_pixels=self._max_pixels)


def _load_backend(name: str) -> Backend:
    if name == "ffmpeg":
        from pipeline.jailed import ffmpeg_frames

        return ffmpeg_frames.read_frames
    from pipeline.jailed import decord_frames

    return decord_frames.read_frames


def _recall(path: str) -> PacketTable | None:
    identity = _identity(path)
    if identity in _tables:
        _tables.move_to_end(identity)
    return _tables.get(identity)


def _remember(path: str, table: PacketTable) -> None:
    _tables[_identity(path)] = table
    while len(_tables) > _MAX_TABLES:
        _tables.popitem(last=False)


def _identity(path: str) -> tuple[object, ...]:
    try:
        status = Path(path).stat()
    except OSError as error:
        raise VideoError("not_found", "no such file") from error
    return path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
