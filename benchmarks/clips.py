"""The clips that decoding is measured on, made by ffmpeg once a folder.

What they show is hard to predict, as real video is: a zoom into the Mandelbrot set blended with a
moving test picture and film grain, different in every frame. A flat test picture decodes too fast.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

FPS = 25
"""Grid times then fall on key frames and between them, for 30 frames are 1.2 s."""
MASTER_SECONDS = 12
_HEIGHTS = {360: "640x360", 1080: "1920x1080", 64: "64x64"}
_H264 = "-c:v libx264 -preset veryfast -crf 26"
_CODECS = {
    "h264": _H264,
    "hevc": "-c:v libx265 -preset ultrafast -bf 3 -x265-params log-level=none:pools=1",
    "vp9": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 0 -crf 36",
    "av1": "-c:v libsvtav1 -preset 12 -crf 40",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A clip that can be made."""

    codec: str
    height: int
    seconds: int
    gop: int
    """Frames from key frame to key frame."""
    num_b: int | None = None
    """B-frames between others; None: as the encoder likes."""

    @property
    def name(self) -> str:
        b_frames = "" if self.num_b is None else f"_b{self.num_b}"
        return f"{self.codec}_{self.height}p{b_frames}_gop{self.gop}"


FULL = (
    *(
        Recording(codec="h264", height=height, seconds=seconds, gop=gop, num_b=num_b)
        for height, gop, seconds in ((1080, 250, 12), (1080, 30, 6), (360, 250, 36), (360, 30, 24))
        for num_b in (3, 0)
    ),
    *(Recording(codec=codec, height=360, seconds=24, gop=250) for codec in ("hevc", "vp9", "av1")),
)
QUICK = (
    Recording(codec="h264", height=1080, seconds=3, gop=250, num_b=3),
    Recording(codec="h264", height=360, seconds=12, gop=250, num_b=3),
    Recording(codec="h264", height=360, seconds=12, gop=250, num_b=0),
    Recording(codec="h264", height=360, seconds=12, gop=30, num_b=3),
)
LONG = Recording(codec="h264", height=360, seconds=24, gop=30, num_b=3)
"""To be lengthened."""
TINY = Recording(codec="h264", height=64, seconds=1, gop=30, num_b=0)
"""To be shortened, and for tests."""


def make_recording(recording: Recording, folder: Path) -> Path:
    """The file of a clip; one that is there is kept."""
    path = folder / f"{recording.name}_{recording.seconds}s.mp4"
    if not path.exists():
        b_frames = [] if recording.num_b is None else ["-bf", str(recording.num_b)]
        _run(
            path,
            *("-stream_loop", "-1", "-i", _master(recording.height, folder)),
            *("-t", str(recording.seconds), *_CODECS[recording.codec].split()),
            *("-g", str(recording.gop), *b_frames, "-pix_fmt", "yuv420p", "-threads", "2"),
        )
    return path


def first_frames(source: Path, num_frames: int, path: Path) -> Path:
    """A file of the first frames of another."""
    if not path.exists():
        _run(path, "-i", source, "-c", "copy", "-frames:v", str(num_frames))
    return path


def lengthen(source: Path, seconds: int) -> Path:
    """A file beside another that shows it again and again; nothing is encoded."""
    path = source.with_name(f"{source.stem}_for_{seconds}s.mp4")
    if not path.exists():
        _run(path, "-stream_loop", "-1", "-i", source, "-t", str(seconds), "-c", "copy")
    return path


def _master(height: int, folder: Path) -> Path:
    path = folder / f"master_{height}p.mp4"
    if not path.exists():
        size = _HEIGHTS[height]
        # The set itself is slow to compute: in full size it would take a minute.
        computed = size if height < 360 else "640x360"
        zoom = f"mandelbrot=size={computed}:rate={FPS}:end_scale=0.002,scale={size}"
        pattern = f"testsrc2=size={size}:rate={FPS}"
        blend = "[0][1]blend=all_mode=average,noise=alls=3:allf=t,format=yuv420p"
        _run(
            path,
            *("-f", "lavfi", "-i", zoom, "-f", "lavfi", "-i", pattern),
            *("-filter_complex", blend, "-t", str(MASTER_SECONDS)),
            *("-c:v", "libx264", "-preset", "ultrafast", "-crf", "14"),
        )
    return path


def _run(path: Path, *arguments: str | Path) -> None:
    # A clip that was not finished must not be taken for one the next time.
    unfinished = path.with_name(f"unfinished-{path.name}")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    done = subprocess.run([*command, str(unfinished)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    unfinished.replace(path)
