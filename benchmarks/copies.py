"""How many copies of videos `pipeline dedup` finds, by what was done to them, and what it makes up.

    python -m benchmarks.copies FOLDER [--recipe tiny] [--most 40] [--seconds 12] [--half 0]

FOLDER holds videos of different recordings. Of each, the first seconds are copied in many ways by
ffmpeg; originals and copies are cached together. A copy is found if it makes a pair with its
original. A pair of two recordings is told by name, to be looked at: some folders hold a recording
twice. `--half` takes every other video: what is tuned on one half is told of the other. Prints a
table and writes bench-results/copies.json.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg

from benchmarks.timing import clip_folder, write_report
from pipeline.cache import open_cache
from pipeline.cli import call
from pipeline.deduplicating import Duplicates, find_duplicates
from pipeline.probing import read_probes
from pipeline.sources import MEDIA_EXTENSIONS

RESULTS = Path("bench-results") / "copies.json"
X264 = "-c:v libx264 -preset veryfast -threads 2 -crf"
WAYS = {
    "coarse": f"{X264} 40",
    "vp9": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -threads 2 -b:v 0 -crf 45",
    "half size": f"-vf scale=trunc(iw/4)*2:trunc(ih/4)*2 {X264} 28",
    "88 pixels wide": f"-vf scale=88:-2 {X264} 36",
    "half the frames": f"-vf fps=12 {X264} 28",
    "a part": f"-ss START -t HALF {X264} 28",
    "twice the speed": f"-vf setpts=PTS/2 {X264} 28",
    "bars above": f"-vf pad=iw:ceil(ih*0.7)*2:0:-1 {X264} 28",
    "bars beside": f"-vf pad=ceil(iw*0.7)*2:ih:-1:0 {X264} 28",
    "logo, banner": "-vf drawbox=x=iw*0.85:y=ih*0.04:w=iw*0.12:h=ih*0.15:color=yellow@0.8:t=fill,"
    f"drawbox=x=0:y=ih*0.8:w=iw:h=ih*0.14:color=blue@0.6:t=fill {X264} 28",
    "grey": f"-vf hue=s=0 {X264} 28",
    "brighter": f"-vf eq=brightness=0.12:contrast=1.2 {X264} 28",
    "blurred": f"-vf boxblur=min(w\\,h)/40 {X264} 28",
    "noisy": f"-vf noise=alls=40:allf=t {X264} 34",
    "cropped by 5 %": f"-vf crop=trunc(iw*0.475)*2:trunc(ih*0.475)*2 {X264} 28",
    "cropped by 15 %": f"-vf crop=trunc(iw*0.425)*2:trunc(ih*0.425)*2 {X264} 28",
    "squeezed to 4:3": f"-vf scale=trunc(ih*2/3)*2:trunc(ih/2)*2 {X264} 28",
    "turned by 3 degrees": f"-vf rotate=0.05 {X264} 28",
}
OTHERS = {"mirrored": f"-vf hflip {X264} 28", "upside down": f"-vf vflip {X264} 28"}
"""No copies: they are not to be found."""
LEAST_SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--most", type=int, default=40, help="originals")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each original")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other video")
    parser.add_argument("--least-score", type=float)
    parser.add_argument("--work", type=Path, help="where copies and the cache are kept")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    originals = sorted(
        path for path in options.folder.iterdir() if path.suffix[1:].lower() in MEDIA_EXTENSIONS
    )
    if options.half is not None:
        originals = originals[options.half :: 2]
    with clip_folder(options.work) as work:
        copies = work / "copies"
        names = make_copies(originals, copies, most=options.most, seconds=options.seconds)
        cache = work / f"cache-{options.recipe}"
        arguments = ["run", str(copies), str(cache), "--recipe", options.recipe, "--workers", "2"]
        with contextlib.redirect_stdout(sys.stderr):
            if call(arguments) != 0:
                sys.exit("the copies could not be cached")
        with open_cache(cache) as opened:
            found = find_duplicates(
                opened, stream=opened.streams[0], least_score=options.least_score
            )
            uris = {probe.video_id: probe.source.uri for probe in read_probes(opened.layout)}
        numbers = judge(found, names, uris) | {"recipe": options.recipe}
    show(numbers)
    write_report(numbers, options.json)


def make_copies(originals: Sequence[Path], folder: Path, *, most: int, seconds: float) -> list[str]:
    """Names of the recordings of which `folder` has NAME.0.mp4, the original, and its copies."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for number, original in enumerate(originals):
        if len(names) == most:
            break
        name = f"{number:03d}"
        first = folder / f"{name}.0.mp4"
        if not first.exists() and not _convert(
            original, first, ["-t", str(seconds), *f"{X264} 18".split()]
        ):
            continue
        if (length := _seconds(first)) < LEAST_SECONDS:
            first.unlink()
            continue
        names.append(name)
        print(f"{name} {original.name}", file=sys.stderr)
        for way, (_, what) in enumerate(itertools.chain(WAYS.items(), OTHERS.items()), start=1):
            path = folder / f"{name}.{way}.{'webm' if 'vp9' in what else 'mp4'}"
            said = what.replace("START", f"{length * 0.31:.2f}")
            if not path.exists():
                _convert(first, path, said.replace("HALF", f"{length / 2:.2f}").split())
    return names


def judge(found: Duplicates, names: Sequence[str], uris: dict[str, str]) -> dict[str, Any]:
    """What was found of each way, and pairs of two recordings."""
    ways = list(itertools.chain(["original"], WAYS, OTHERS))
    scores: dict[str, list[float]] = defaultdict(list)
    there = [Path(uri).name.split(".")[:2] for uri in uris.values()]
    counts = {way: sum(int(one[1]) == number for one in there) for number, way in enumerate(ways)}
    made_up: dict[tuple[str, str], float] = {}
    for pair in found.pairs:
        (a, first), (b, second) = sorted(
            Path(uris[video_id]).name.split(".")[:2] for video_id in (pair.video_a, pair.video_b)
        )
        if a != b:
            made_up[a, b] = max(pair.score, made_up.get((a, b), 0.0))
        elif first == "0":
            scores[ways[int(second)]].append(pair.score)
    return {
        "recordings": len(names),
        "found": {
            way: {
                "of": counts[way],
                "found": len(scores[way]),
                "least": min(scores[way], default=0),
            }
            for way in ways[1:]
        },
        "two recordings": [[*pair, score] for pair, score in sorted(made_up.items())],
    }


def show(numbers: dict[str, Any]) -> None:
    """The table."""
    print(f"{numbers['recordings']} recordings, recipe {numbers['recipe']}")
    for way, one in numbers["found"].items():
        least = f"{one['least']:.3f}" if one["found"] else "-"
        print(f"{way:22} {one['found']:4} of {one['of']:4}   least score {least}")
    for a, b, score in numbers["two recordings"]:
        print(f"two recordings: {a} and {b}, {score:.3f}")


def _seconds(path: Path) -> float:
    _, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    return float(seconds)


def _convert(source: Path, path: Path, arguments: list[str]) -> bool:
    unfinished = path.with_name(f"unfinished-{path.name}")
    program = imageio_ffmpeg.get_ffmpeg_exe()
    command = [program, "-v", "error", "-y", "-i", str(source), *arguments, "-an", str(unfinished)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode or not unfinished.stat().st_size:
        unfinished.unlink(missing_ok=True)
        return False
    unfinished.replace(path)
    return True


if __name__ == "__main__":
    main()
