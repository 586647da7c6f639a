"""Cut spans out of the sources: a file each, to the frame, by the ffmpeg program.

Pictures are encoded again, since a file can be cut without only where a key frame lies. A frame is
in the cut if its time is in [start, end) on the source's clock, which is the cut's zero at start.
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import ffmpeg
import imageio_ffmpeg

from pipeline.cache import FeatureCache
from pipeline.fetching import Fetcher
from pipeline.probing import read_probes
from pipeline.searching import FoundSpan
from pipeline.video_sources import newest_pieces
from schemas.errors import StorageError, UsageError, VideoError
from schemas.recipe import DecodeLimits
from schemas.reject import REASONS

SEEKS_WELL = ("mov,", "matroska", "avi")
"""Containers with an index by which ffmpeg finds a key frame before a time; others are read from
their beginning."""
LEAD_SECONDS = 10.0
"""Before the span, where decoding begins in those: key frames are seldom farther apart, and what
goes wrong before the span is forgotten by then."""
HALF_TICK = 1e-4
"""Seconds by which times may be rounded down in a container."""
_PLACE = "INPUT"
"""Stands for the path, which need not be text to ffmpeg-python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What came of one span."""

    span: FoundSpan
    path: Path | None
    """None: it could not be cut."""
    why_not: str
    """Empty where it was."""


def cut_spans(cache: FeatureCache, spans: Sequence[FoundSpan], folder: Path) -> Iterator[Cut]:
    """One after the other. StorageError: the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror}") from error
    probes = read_probes(cache.layout)
    pieces = newest_pieces(cache, probes, video_ids={span.video_id for span in spans})
    containers = {probe.video_id: probe.container for probe in probes}
    with Fetcher() as files:
        for span in spans:
            path = folder / cut_name(span)
            try:
                piece = pieces.get(span.video_id)
                if piece is None:
                    raise VideoError("not_found", "it is in no plan")
                files.hold(piece)
                try:
                    cut_file(
                        files.path(piece),
                        path,
                        start_seconds=span.start_seconds,
                        end_seconds=span.end_seconds,
                        container=containers.get(span.video_id, ""),
                        limits=cache.recipe.limits,
                    )
                finally:
                    files.release(piece)
                yield Cut(span=span, path=path, why_not="")
            except VideoError as error:
                why = f"{error.reason} ({REASONS[error.reason][0]})"
                yield Cut(span=span, path=None, why_not=f"{why}: {error.detail}".rstrip(": "))


def cut_name(span: FoundSpan) -> str:
    """A file name of plain characters: rank, the source's name, and the span in seconds."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", PurePath(span.source).stem).strip("-")[:60]
    stem = stem or span.key.rpartition("_")[0]
    return f"{span.rank:03}_{stem}_{span.start_seconds:.2f}-{span.end_seconds:.2f}s.mp4"


def cut_file(
    source: str,
    target: Path,
    *,
    start_seconds: float,
    end_seconds: float,
    container: str,
    limits: DecodeLimits,
) -> None:
    """Write `target`, whole or not at all, over what is there.

    `container` is what the probe says; nothing else is opened. VideoError: timed_out, crashed,
    no_frames. UsageError: there is no ffmpeg program. StorageError.
    """
    temporary = target.with_name(f".{uuid.uuid4().hex}.mp4")
    command = cut_command(
        source,
        temporary,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        container=container,
    )
    # From its beginning, where it has to be.
    most_seconds = limits.base_seconds + limits.factor * max(end_seconds, 0.0)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=most_seconds,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            detail = (lines[-1] if lines else f"exit code {done.returncode}").replace(
                source, "FILE"
            )
            if "No space left" in detail:
                raise StorageError(f"{target}: cannot be written: {detail}")
            raise VideoError("crashed", f"ffmpeg: {detail}")
        if not temporary.exists() or temporary.stat().st_size < 500:
            raise VideoError("no_frames", "ffmpeg found none in the span")
        temporary.replace(target)
    except subprocess.TimeoutExpired as error:
        raise VideoError("timed_out", f"ffmpeg took more than {most_seconds:.0f} s") from error
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def cut_command(
    source: str, target: Path, *, start_seconds: float, end_seconds: float, container: str
) -> list[str]:
    """The command line. ffmpeg chooses the streams: the largest picture, the fullest sound."""
    reading: dict[str, object] = {"protocol_whitelist": "file", "threads": 1}
    if container:
        reading["format_whitelist"] = container
    if container.startswith(SEEKS_WELL) and start_seconds > LEAD_SECONDS:
        # On the source's own clock, and without leaving out what lies before.
        reading |= {"ss": f"{start_seconds - LEAD_SECONDS:.6f}", "seek_timestamp": 1}
        reading["noaccurate_seek"] = None
    span = f"start={start_seconds - HALF_TICK:.6f}:end={end_seconds - HALF_TICK:.6f}"
    shift = f"PTS-({start_seconds:.6f})/TB"
    output = ffmpeg.input(_PLACE, **reading).output(
        str(target),
        vf=f"trim={span},setpts={shift},crop=trunc(iw/2)*2:trunc(ih/2)*2:0:0,format=yuv420p",
        af=f"atrim={span},asetpts={shift}",
        vcodec="libx264",
        crf=18,
        preset="veryfast",
        acodec="aac",
        fps_mode="passthrough",
        enc_time_base="demux",
        threads=1,
        sn=None,
        dn=None,
        map_metadata=-1,
        map_chapters=-1,
    )
    output = output.global_args("-copyts", "-nostdin", "-v", "error", "-filter_threads", "1")
    try:
        program = str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise UsageError(
            "there is no ffmpeg program", hint="pip install imageio-ffmpeg, which brings one"
        ) from error
    arguments: list[str] = ffmpeg.compile(output, cmd=program, overwrite_output=True)
    return [f"file:{source}" if argument == _PLACE else argument for argument in arguments]
