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
    makers = (_with_sound, _silent, _variable_rate, _rotated, _broken)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in CLIPS]
    for path, make in zip(paths, makers, strict=True):
        if not path.exists():
            unfinished = folder / f".{path.name}"
            make(unfinished)
            unfinished.replace(path)
    return paths


def _with_sound(path: Path) -> None:
    sound = ffmpeg.input("sine=frequency=440:duration=8", f="lavfi")
    _write(ffmpeg.output(_pattern("testsrc2", 8, rate="25"), sound, str(path), **_H264))


def _silent(path: Path) -> None:
    picture = ffmpeg.input("mandelbrot=size=320x180:rate=30000/1001", f="lavfi")
    _write(ffmpeg.output(picture, str(path), t=5, **_H264))


def _variable_rate(path: Path) -> None:
    picture = _pattern("testsrc2", 6, rate="30").filter("select", "gte(t,3)+not(mod(n,3))")
    _write(ffmpeg.output(picture, str(path), fps_mode="vfr", **_H264))


def _rotated(path: Path) -> None:
    upright = path.with_name(".upright.mp4")
    _write(ffmpeg.output(_pattern("testsrc2", 4, rate="24"), str(upright), **_H264))
    turned = ffmpeg.input(str(upright), display_rotation=90)
    _write(ffmpeg.output(turned, str(path), c="copy"))
    upright.unlink()


def _broken(path: Path) -> None:
    whole = path.with_name(".whole.mp4")
    _with_sound(whole)
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    whole.unlink()


_H264 = {"vcodec": "libx264", "acodec": "aac", "pix_fmt": "yuv420p", "threads": 1}


def _pattern(source: str, seconds: int, *, rate: str) -> Any:
    return ffmpeg.input(f"{source}=size=320x180:rate={rate}:duration={seconds}", f="lavfi")


def _write(stream: Any) -> None:
    ffmpeg.run(stream, cmd=imageio_ffmpeg.get_ffmpeg_exe(), quiet=True, overwrite_output=True)
