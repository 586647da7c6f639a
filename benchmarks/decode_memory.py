"""Memory of sampling a long file and a short one, each in a fresh child with a fresh owner.

python -m benchmarks.decode_memory FILE SECONDS
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.clips import lengthen
from pipeline.decoding import DecodeOutcome, Decoding
from pipeline.pool import DecoderPool
from pipeline.source_files import size_and_time
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.resize import PictureSpec

PICTURES = {"video": PictureSpec(width=224, height=224)}


def measure_memory(source: Path, *, minutes: int) -> dict[str, Any]:
    """Most resident megabytes of a fresh child and a fresh owner, for a minute and for many."""
    peaks = {}
    for length in (1, minutes):
        path = lengthen(source, 60 * length)
        command = [sys.executable, "-m", "benchmarks.decode_memory", str(path), str(60 * length)]
        child, owner, count = map(float, subprocess.check_output(command).split())
        assert abs(count - 60 * length) <= 2, (path, count)
        peaks[length] = {"child_mb": child, "owner_mb": owner}
    return {
        "minutes": minutes,
        "short": peaks[1],
        "long": peaks[minutes],
        "growth_mb": {name: peaks[minutes][name] - peaks[1][name] for name in peaks[1]},
    }


def main() -> None:
    """One file in a fresh owner: prints the peaks of child and owner in MB, and the samples."""
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    recipe = recipe_at(fps=1.0)
    count = 0
    with DecoderPool(recipe.limits) as pool:
        for clip in Decoding(
            whole_file(path, seconds=seconds),
            path=str(path),
            recipe=recipe,
            pictures=PICTURES,
            processes=pool.processes,
        ).clips():
            count += 0 if isinstance(clip, DecodeOutcome) else clip.num_frames
        pid = pool.processes[0].pid
        assert pid is not None
        print(_peak_mb(str(pid)), _peak_mb("self"), count)


def recipe_at(*, fps: float) -> Recipe:
    """Without a preview."""
    return Recipe.load("tiny", overrides=[f"sampling.fps={fps}", "preview.enabled=false"])


def whole_file(path: Path, *, seconds: float) -> Piece:
    """A piece of all of a file, which is not looked at."""
    size_bytes, mtime_ns = size_and_time(str(path))
    return Piece(
        uri=str(path),
        video_id="v0",
        content_sha256="",
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        start_seconds=None,
        end_seconds=None,
        duration_seconds=seconds,
        truncated=False,
        has_audio=False,
        first_clip=0,
        num_clips=1,
        is_last=True,
        estimated_bytes=0,
    )


def _peak_mb(process: str) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
