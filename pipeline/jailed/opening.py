"""Open a file safely and choose its video or sound stream. Runs inside the decoder process only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import av
import av.error
from av.stream import Disposition

from pipeline.jailed.complaints import check_refused_sizes, hear_refused_sizes
from schemas.errors import VideoError

# Containers that hold their own media. Left out on purpose: playlists (hls, dash, concat, sdp),
# image sequences (image2 reads other files by pattern), devices and lavfi.
_VIDEO_DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,asf,asf_o,flv,live_flv,mpegts,mpeg,mpegvideo,m4v,ogg,"
    "gif,apng,mxf,mxf_d10,mxf_opatom,rm,ivr,nut,nuv,nsv,ivf,obu,av1,h261,h263,h264,hevc,vvc,evc,"
    "mjpeg,mpjpeg,dv,gxf,lxf,wtv,swf,amv,vc1,vc1test,cavsvideo,avs2,avs3,dirac,yuv4mpegpipe,dhav,"
    "flic,roq,smk,bink,vivo,pva,ty,mtv,film_cpk,ea,xmv,4xm,psxstr,c93,mvi,thp,smjpeg,lmlm4,vmd"
)
# Sound: known, so that the reject says "no video stream" and not "refused".
_SOUND_DEMUXERS = (
    "mp3,flac,wav,w64,aac,ac3,eac3,ac4,amr,amrnb,amrwb,aiff,au,caf,dts,dtshd,ape,tta,wv,mpc,mpc8,"
    "tak,truehd,mlp,opus,loas,latm,oma,voc"
)

OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": f"{_VIDEO_DEMUXERS},{_SOUND_DEMUXERS}",
    "enable_drefs": "0",
}
_NOT_MOVING = Disposition.attached_pic | Disposition.timed_thumbnails
_FOR_FEW = (
    Disposition.comment
    | Disposition.karaoke
    | Disposition.hearing_impaired
    | Disposition.visual_impaired
    | Disposition.clean_effects
    | Disposition.non_diegetic
    | Disposition.descriptions
)


@contextlib.contextmanager
def open_video(path: str, *, max_pixels: int) -> Iterator[tuple[Any, Any]]:
    """(container, video stream) of a local file.

    Of several streams the one with the most pixels that is not a cover picture; at a tie the one
    flagged as default, else the first.
    VideoError: not_found, unreadable, empty_file, not_a_video, refused_format, no_video_stream,
    unsupported_codec, too_many_pixels.
    """
    with hear_refused_sizes():
        opened = _open(path, max_pixels=max_pixels)
    with opened as container:
        stream = _choose_stream(container, max_pixels=max_pixels)
        if not stream.width or not stream.height:
            check_refused_sizes(max_pixels=max_pixels)
        yield container, stream


@contextlib.contextmanager
def open_sound(path: str, *, max_pixels: int) -> Iterator[tuple[Any, Any]]:
    """(container, sound stream or None) of a local file, with or without a video stream.

    Of the streams with a decoder: the first that the container flags as default, else the first
    that is no commentary or the like, else the first. Never one that is to be mixed into another.
    VideoError: not_found, unreadable, empty_file, not_a_video, refused_format.
    """
    with _open(path, max_pixels=max_pixels) as container:
        yield container, _choose_sound(container)


def pixel_limit(max_pixels: int) -> dict[str, str]:
    """Options for a decoder: what it refuses before it takes memory.

    It counts lines as they lie in memory, so it is given some room; `check_pixels` is exact.
    """
    return {"max_pixels": str(max_pixels + 64 * 65536)}


def _open(path: str, *, max_pixels: int) -> Any:
    try:
        # Opening decodes the first frames of some formats, with the same options.
        options = OPTIONS | pixel_limit(max_pixels)
        # "file:" keeps a name such as "a:b.mp4" from being read as a protocol.
        return av.open(f"file:{path}", options=options, metadata_errors="ignore")
    except FileNotFoundError as error:
        raise VideoError("not_found", "no such file") from error
    except MemoryError as error:
        raise VideoError("out_of_memory", "while opening the container") from error
    except (av.error.InvalidDataError, EOFError) as error:
        raise VideoError("not_a_video", _describe(error, path)) from error
    except av.error.ArgumentError as error:
        detail = "a playlist, a picture, or a format that can read other files"
        raise VideoError("refused_format", detail) from error
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError("unreadable", _describe(error, path)) from error


def _choose_stream(container: Any, *, max_pixels: int) -> Any:
    streams = [s for s in container.streams.video if not s.disposition & _NOT_MOVING]
    if not streams:
        kinds = sorted({stream.type for stream in container.streams}) or ["nothing"]
        covers = len(container.streams.video)
        what = ", ".join(kinds) + (" (the video stream is a cover picture)" if covers else "")
        raise VideoError("no_video_stream", f"the file holds {what}")
    with_decoder = [stream for stream in streams if stream.codec_context is not None]
    if not with_decoder:
        raise VideoError("unsupported_codec", "no decoder for any video stream")
    stream = max(
        with_decoder,
        key=lambda s: ((s.width or 0) * (s.height or 0), bool(s.disposition & Disposition.default)),
    )
    check_pixels(stream.width or 0, stream.height or 0, max_pixels=max_pixels)
    return stream


def _choose_sound(container: Any) -> Any:
    streams = [
        stream
        for stream in container.streams.audio
        if stream.codec_context is not None and not stream.disposition & Disposition.dependent
    ]

    def rank(stream: Any) -> tuple[bool, bool]:
        return not stream.disposition & Disposition.default, bool(stream.disposition & _FOR_FEW)

    return min(streams, key=rank, default=None)  # the first of equals


def read_packets(container: Any, *streams: Any, damaged: Callable[[], None]) -> Iterator[Any]:
    """The packets of the given streams, or of all; the last one of each is empty.

    `damaged` is called where reading ends before the end of the file. VideoError: out_of_memory.
    """
    packets = container.demux(*streams)
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except IndexError:
            # PyAV 18.1 trips over streams that appeared while reading (MPEG-TS), once it is at the
            # end and has given out the last packets of the streams that it knows.
            return
        except MemoryError as error:
            raise VideoError("out_of_memory", "while reading packets") from error
        except (av.error.FFmpegError, EOFError):
            damaged()
            return
        yield packet


def check_pixels(width: int, height: int, *, max_pixels: int) -> None:
    """VideoError: too_many_pixels."""
    if width * height > max_pixels:
        raise VideoError("too_many_pixels", f"{width} x {height} is more than {max_pixels} pixels")


def check_duration(span_seconds: float, *, max_duration_seconds: float) -> None:
    """VideoError: too_long."""
    if span_seconds > max_duration_seconds:
        detail = f"{span_seconds:.0f} s is more than {max_duration_seconds:.0f} s"
        raise VideoError("too_long", detail)


def sample_aspect(stream: Any) -> float:
    """The width of a pixel over its height; 1 where the stream does not say."""
    return float(stream.sample_aspect_ratio or 1) or 1.0


def _describe(error: BaseException, path: str) -> str:
    # The message ends with the path, which the reject has already.
    text = str(getattr(error, "strerror", None) or error)
    log = getattr(error, "log", None)
    if log:
        text += f": {log[2].strip()}"
    return text.replace(path, "FILE")
