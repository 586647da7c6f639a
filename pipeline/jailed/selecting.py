"""Decode the wanted frames only, and check that they are what decoding all would have given.

Runs inside the decoder process. Within a run, a packet to which no other refers is skipped unless
its own frame is wanted; between runs, the decoder is emptied. Whatever looks different from what
the packets promised ends with NotSelectable: the caller then decodes all frames.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import av.error
from av.video.frame import PictureType

from pipeline.jailed.complaints import num_complaints
from pipeline.jailed.frames import Tally
from pipeline.jailed.opening import check_pixels, pixel_limit
from pipeline.jailed.packets import PacketTable
from pipeline.jailed.rereading import PacketReader
from pipeline.jailed.scheduling import DISPOSABLE_CODECS, NotSelectable, Run, Schedule
from pipeline.sampling import Convert, Picture, Sampled, SampledFrame
from schemas.errors import VideoError

CHECKED_PACKETS = 16
"""Of the first run: nothing is skipped among them, and each has to give its frame. Fields stored
in two packets, and packets without a picture, show here."""


class FrameSelector:
    """Decodes runs of one video, in order, in one codec context."""

    def __init__(
        self,
        stream: Any,
        *,
        reader: PacketReader,
        table: PacketTable,
        schedule: Schedule,
        tally: Tally,
        skips_disposable: bool,
        max_pixels: int,
    ) -> None:
        self._context = stream.codec_context
        self._context.thread_count = 1
        # A damaged packet raises and is not concealed.
        self._context.options = pixel_limit(max_pixels) | {"err_detect": "explode"}
        self._reader = reader
        self._table = table
        self._schedule = schedule
        self._ticks = schedule.ticks.data  # numpy is slow at searching for one
        self._tally = tally
        self._skips = skips_disposable
        self._max_pixels = max_pixels

    def sample(self, runs: Sequence[Run], convert: Convert[Picture]) -> Sampled[Picture]:
        """The samples of some runs of the schedule. NotSelectable: see above. VideoError.

        The last sample is given when all that comes after it in the runs is checked.
        """
        samples, ticks = self._schedule.samples, self._schedule.ticks
        held: SampledFrame[Picture] | None = None
        for run in runs:
            due = self._schedule.due[run.first_due : run.stop_due].tolist()
            next_sample = run.first_sample
            for frame in self._decode(run):
                if not due or frame.pts < ticks[due[0]]:
                    continue
                rank = due.pop(0)
                if frame.pts > ticks[rank]:
                    raise NotSelectable("a due frame does not come")
                if next_sample == run.stop_sample or samples.ranks[next_sample] != rank:
                    continue
                picture = convert(frame)
                while next_sample < run.stop_sample and samples.ranks[next_sample] == rank:
                    if held is not None:
                        yield held
                    held = samples.sample(next_sample, picture)
                    next_sample += 1
            if due:
                raise NotSelectable("a due frame does not come")
        if held is not None:
            yield held
        return samples.end_seconds

    def _decode(self, run: Run) -> Iterator[Any]:
        # In the order of display, checked.
        checked = range(0)
        if run.first == 0:
            checked = range(min(run.stop, CHECKED_PACKETS))
        due = {self._table.pts[n] for n in checked if self._table.is_shown[n]}
        latest: int | None = None
        for frame in self._frames(run, checked):
            if latest is None and not self._is_entry(frame, run):
                raise NotSelectable("a run does not begin with its key frame")
            self._check(frame)
            if latest is not None and frame.pts <= latest:
                raise NotSelectable("frames do not come in the order of their times")
            latest = frame.pts
            due.discard(frame.pts)
            yield frame
        if due:
            raise NotSelectable("packets and frames do not match")

    def _is_entry(self, frame: Any, run: Run) -> bool:
        if not self._table.is_shown[run.first]:
            return run.first == 0  # an edit list hides the key frame; decoding all begins there too
        # A plain I frame may be flagged as key rightly or wrongly. If wrongly, frames to come lack
        # what they refer to, and the decoder complains.
        is_intra = frame.key_frame or frame.pict_type == PictureType.I
        return bool(is_intra and frame.pts == self._table.pts[run.first])

    def _frames(self, run: Run, checked: range) -> Iterator[Any]:
        due = self._schedule.due[run.first_due : run.stop_due]
        wanted = set(self._schedule.ticks[due].tolist())
        key_pts = self._table.pts[run.first]
        skips = False
        for number, packet in self._reader.read(run.first, run.stop):
            pts = self._table.pts[number]
            if run.first and pts < key_pts:
                continue  # needs frames from before the run, and nothing in the run needs it
            if self._skips and skips != (pts not in wanted and number not in checked):
                skips = not skips
                self._context.skip_frame = "NONREF" if skips else "DEFAULT"
            yield from self._send(packet)
        yield from self._send(None)
        self._context.flush_buffers()

    def _send(self, packet: Any) -> Sequence[Any]:
        # Of the decoder only: what the demuxer meets on the way depends on which parts of the file
        # this process reads.
        before = num_complaints()
        try:
            frames: Sequence[Any] = self._context.decode(packet)
        except MemoryError as error:
            raise VideoError("out_of_memory", "while decoding") from error
        except EOFError:
            return ()
        except av.error.FFmpegError as error:
            raise NotSelectable("a packet does not decode") from error
        if num_complaints() != before:
            raise NotSelectable("the decoder complains")
        return frames

    def _check(self, frame: Any) -> None:
        check_pixels(frame.width, frame.height, max_pixels=self._max_pixels)
        self._tally.num_frames += 1
        if frame.is_corrupt:
            raise NotSelectable("a damaged frame")
        if frame.pts is None:
            raise NotSelectable("a frame without a time")
        place = bisect.bisect_left(self._ticks, frame.pts)
        if place == len(self._ticks) or self._ticks[place] != frame.pts:
            raise NotSelectable("a frame with a time that no packet has")
        if frame.interlaced_frame:
            raise NotSelectable("interlaced")


def skips_disposable(stream: Any, codec: str) -> bool:
    """Whether leaving out disposable packets is exact for this stream.

    AV1 and VP9 are left alone: a decoder may look at the option once only, when it is opened.
    HEVC: a frame that its own temporal layer does not refer to may serve a higher layer, so there
    must be one layer; ISO/IEC 14496-15 has their number in byte 21 of hvcC.
    """
    if codec != "hevc":
        return codec in DISPOSABLE_CODECS
    extra = stream.codec_context.extradata or b""
    return len(extra) > 21 and extra[0] == 1 and (extra[21] >> 3) & 7 == 1
