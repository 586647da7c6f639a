"""A video of two shots, whose frames are displayed when one likes."""

from __future__ import annotations

from pathlib import Path

from tests.clips import run_ffmpeg


def two_shots(path: Path, *, seconds: str) -> Path:
    """Forty frames of two shots; frame N is displayed at `seconds` of N."""
    run_ffmpeg(
        *("-f", "lavfi", "-i", "testsrc2=s=96x64:r=25:d=0.8"),
        *("-f", "lavfi", "-i", "mandelbrot=s=96x64:r=25,trim=end_frame=20"),
        "-filter_complex",
        f"[0][1]concat=n=2,settb=1/1000,setpts={seconds}/TB",
        *("-fps_mode", "passthrough", "-enc_time_base", "1/1000"),
        *("-c:v", "libx264", "-threads", "1", "-pix_fmt", "yuv420p", "-bf", "2", path),
    )
    return path
