"""The ffmpeg program as a backend: a second opinion. Runs inside the decoder process only.

ffmpeg decodes all frames, keeps those wanted, turns and converts them to RGB by its own rules, and
hands them over with their times, which are compared with the packets'.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import av
import av.error
import ffmpeg
import imageio_ffmpeg
import numpy as np

from pipeline.jailed.backends import WantedFrames, check_times
from pipeline.jailed.opening import OPTIONS, check_pixels
from pipeline.jailed.scheduling import NotSelectable

_PLACE = "INPUT"
"""Stands for the path, which need not be text to ffmpeg-python."""
MAX_FRAMES = 2000
"""More do not fit into one argument of a command line."""


def read_frames(path: str, wanted: WantedFrames, *, alive: Callable[[], None]) -> Iterator[Any]:
    """See `backends.Backend`."""
    if len(wanted.ranks) > MAX_FRAMES:
        raise NotSelectable(f"more than {MAX_FRAMES} frames for one ffmpeg command")
    with _running(ffmpeg_command(path, wanted)) as output:
        expected, shift = wanted.seconds[wanted.ranks], _shift_seconds(wanted)
        times: list[float] = []
        try:
            with av.open(output, format="nut") as container:
                for frame in container.decode(video=0):
                    alive()
                    check_pixels(frame.width, frame.height, max_pixels=wanted.max_pixels)
                    times.append(float((frame.pts or 0) * frame.time_base) - shift)
                    check_times(np.array(times[-1:]), expected[len(times) - 1 :][:1], what="ffmpeg")
                    yield frame
        except (av.error.FFmpegError, EOFError) as error:
            raise NotSelectable("ffmpeg gives no frames") from error
        check_times(np.array(times), expected, what="ffmpeg")


def ffmpeg_program() -> str:
    """Its path; looked for once, which a decoder process has to do before it is confined.

    NotSelectable: there is none.
    """
    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise NotSelectable("there is no ffmpeg program") from error


def ffmpeg_command(path: str, wanted: WantedFrames) -> list[str]:
    """The command line; frames come out as raw RGB in NUT, which keeps their times."""
    options = dict(OPTIONS)
    if not wanted.container.startswith("mov"):
        del options["enable_drefs"]  # a private option of that demuxer
    source = ffmpeg.input(_PLACE, threads=1, **options)
    chosen = source[str(wanted.stream_index)].filter("select", _choose(wanted.ranks.tolist()))
    output = chosen.output(
        "pipe:1",
        format="nut",
        vcodec="rawvideo",
        pix_fmt="rgb24",
        fps_mode="passthrough",
        enc_time_base="demux",
        output_ts_offset=_shift_seconds(wanted),
        threads=1,
    ).global_args("-copyts", "-nostdin", "-v", "quiet", "-filter_threads", "1")
    arguments: list[str] = ffmpeg.compile(output, cmd=ffmpeg_program())
    return [f"file:{path}" if argument == _PLACE else argument for argument in arguments]


def _shift_seconds(wanted: WantedFrames) -> float:
    return max(0.0, -float(wanted.seconds[0]))  # NUT holds no times below zero


def _choose(ranks: Sequence[int]) -> str:
    # A balanced tree: evaluated for every frame.
    if len(ranks) == 1:
        return f"eq(n,{ranks[0]})"
    middle = len(ranks) // 2
    return f"if(lt(n,{ranks[middle]}),{_choose(ranks[:middle])},{_choose(ranks[middle:])})"


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[Any]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # the null device cannot be opened for writing here
    assert process.stdin is not None
    process.stdin.close()
    try:
        yield process.stdout
    finally:
        # Nothing can be killed from here: it ends for want of a reader, or with this process.
        assert process.stdout is not None
        process.stdout.close()
        process.wait()
