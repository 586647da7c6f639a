"""Make a handful of small clips that show what real folders hold. Needs no ffmpeg of the system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ffmpeg
import imageio_ffmpeg

CLIPS: dict[str, str] = {
    "with_sound.mp4": "8 s, 25 fps, sound",
    "silent.mp4": "5 s, 29.97 fps, no sound",
    "variable_rate.mp4": "6 s, 10 fps and then 30 fps",
    "rotated.mp4": "4 s, upright phone video: stored on its side",
    "broken.mp4": "cut off before its index: cannot be read",
}


def make_demo_clips(folder: Path) -> list[Path]:
    """Write the clips of CLIPS into `folder`; those that are there are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in CLIPS]
    with_sound, silent, variable_rate, rotated, broken = paths
    if not with_sound.exists():
        picture = _pattern("testsrc2", seconds=8, rate="25")
        sound = ffmpeg.input("sine=frequency=440:duration=8", f="lavfi")
        _write(ffmpeg.output(picture, sound, str(with_sound), acodec="aac", **_H264))
    if not silent.exists():
        picture = _pattern("mandelbrot", seconds=5, rate="30000/1001")
        _write(ffmpeg.output(picture, str(silent), t=5, **_H264))
    if not variable_rate.exists():
        picture = _pattern("testsrc2", seconds=6, rate="30")
        picture = picture.filter("select", "gte(t,3)+not(mod(n,3))")
        _write(ffmpeg.output(picture, str(variable_rate), fps_mode="vfr", **_H264))
    if not rotated.exists():
        upright = folder / ".upright.mp4"
        picture = _pattern("testsrc2", seconds=4, rate="24")
        _write(ffmpeg.output(picture, str(upright), **_H264))
        turned = ffmpeg.input(str(upright), display_rotation=90)
        _write(ffmpeg.output(turned, str(rotated), c="copy"))
        upright.unlink()
    if not broken.exists():
        data = with_sound.read_bytes()
        broken.write_bytes(data[: len(data) // 2])
    return paths


_H264 = {"vcodec": "libx264", "pix_fmt": "yuv420p", "threads": 1}


def _pattern(source: str, *, seconds: int, rate: str) -> Any:
    duration = "" if source == "mandelbrot" else f":duration={seconds}"
    return ffmpeg.input(f"{source}=size=320x180:rate={rate}{duration}", f="lavfi")


def _write(stream: Any) -> None:
    binary = imageio_ffmpeg.get_ffmpeg_exe()
    ffmpeg.run(stream, cmd=binary, quiet=True, overwrite_output=True)
