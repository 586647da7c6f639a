"""The search index beside bare faiss: seconds to build, memory, bytes, queries a second, recall.

    python -m benchmarks.search [--quick] [--sizes 100000,1000000] [--threads 1]

Vectors have 1152 channels, as SigLIP's, and lie as those of clips do: topics, videos in them, clips
of a video that drift, a twentieth of near copies, a few channels that say most, a large mean in
common. `smooth` has no topics, and one thing goes over into the next; `noise` has nothing of all
that, and is the worst that there can be. Queries are clips that are not in the index. Each row is a
process of its own, whose peak of memory is told less what it had before it began to build. Prints a
table and writes bench-results/search.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.timing import LoadWatch, temporary_folder, write_report
from pipeline.clip_vectors import to_directions
from pipeline.vector_building import build_vectors
from pipeline.vector_index import Kind, NearestByAll, load_faiss

RESULTS = Path("bench-results") / "search.json"
DIM = 1152
SIZES = (100_000, 1_000_000)
NUM_QUERIES = 1000
CLIPS_A_VIDEO = 16
PIECE = 8192
"""Clips in memory at a time: about a shard."""
BARE = "faiss flat"
LEAST_RECALL = 0.98
MOST_SLOW = 200_000
"""Vectors of which hnsw, and what is hard to find, is measured; more take too long."""
ROOM = 3.0
"""Times the bytes of all vectors in float32 that have to be free for bare faiss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row."""

    data: str
    num: int
    kind: str
    dim: int = DIM
    threads: int = 1


def main() -> int:
    """Exit code 1: recall is less than what is promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="20,000 vectors")
    size.add_argument("--tiny", action="store_true", help="a test")
    parser.add_argument("--sizes", help="how many vectors, as in 100000,1000000")
    parser.add_argument("--threads", type=int, default=1, help="of faiss")
    parser.add_argument("--folder", type=Path, help="where vectors are written meanwhile")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Case(**json.loads(options.case[0])), Path(options.case[1]))))
        return 0
    sizes = tuple(int(one) for one in (options.sizes or "").split(",") if one) or SIZES
    dim = DIM
    if options.quick or options.tiny:
        sizes, dim = ((20_000,), DIM) if options.quick else ((3_000,), 48)
    watch, rows = LoadWatch(), []
    with temporary_folder(options.folder) as folder:
        for case in cases(sizes, dim=dim, threads=options.threads):
            path = folder / f"{case.data}-{case.num}.npy"
            if not path.exists():
                for old in folder.glob("*.npy"):
                    old.unlink()
                write_vectors(path, case)
            row = in_own_process(case, path)
            rows.append(asdict(case) | row)
            watch.look()
            show(rows[-1], first=len(rows) == 1)
    print(f"load {watch.load:.1f} on {watch.num_cores} cores, faiss {load_faiss().__version__}")
    write_report({"rows": rows, "load": watch.load, "cores": watch.num_cores}, options.json)
    missed = [
        row for row in rows if row["data"] != "noise" and row.get("recall_at_10", 1) < LEAST_RECALL
    ]
    return 1 if missed else 0


def cases(sizes: tuple[int, ...], *, dim: int, threads: int) -> Iterator[Case]:
    """Bare faiss, and the kinds beside it."""
    for num in sizes:
        for data in ("clips",) if num > MOST_SLOW else ("clips", "smooth", "noise"):
            kinds = ["ivf"] if num > MOST_SLOW or data == "noise" else ["hnsw", "ivf"]
            for kind in (BARE, *kinds):
                yield Case(data=data, num=num, kind=kind, dim=dim, threads=threads)


def write_vectors(path: Path, case: Case) -> None:
    """(num + NUM_QUERIES, dim) float16, the queries last, a piece at a time."""
    make = {"clips": clip_pieces, "smooth": smooth_pieces, "noise": noise_pieces}[case.data]
    total = case.num + NUM_QUERIES
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(total, case.dim))
    # A query is a clip of a video of which others are in the index.
    step = total // NUM_QUERIES
    start, added, asked = 0, 0, case.num
    for piece in make(total, dim=case.dim):
        numbers = np.arange(start, start + len(piece))
        is_query = (numbers % step == 0) & (numbers // step < NUM_QUERIES)
        kept, queries = piece[~is_query], piece[is_query]
        array[added : added + len(kept)] = kept
        array[asked : asked + len(queries)] = queries
        start, added, asked = start + len(piece), added + len(kept), asked + len(queries)
    array.flush()


def clip_pieces(total: int, *, dim: int) -> Iterator[npt.NDArray[np.float16]]:
    return _pieces(total, dim=dim, num_topics=max(8, total // 500), decay=0.5)


def smooth_pieces(total: int, *, dim: int) -> Iterator[npt.NDArray[np.float16]]:
    return _pieces(total, dim=dim, num_topics=1, decay=1.0)


def _pieces(
    total: int, *, dim: int, num_topics: int, decay: float
) -> Iterator[npt.NDArray[np.float16]]:
    chance = np.random.default_rng(0)
    spread = (1 + np.arange(dim)) ** -decay
    spread = chance.permutation(spread / np.sqrt((spread**2).mean())).astype(np.float32)
    topics = spread * chance.standard_normal((num_topics, dim), dtype=np.float32)
    mean = 3 * chance.standard_normal(dim).astype(np.float32)
    for start in range(0, total, PIECE):
        num = min(PIECE, total - start)
        videos = -(-num // CLIPS_A_VIDEO)
        centres = topics[chance.integers(len(topics), size=videos)]
        centres = centres + spread * chance.standard_normal((videos, dim), dtype=np.float32)
        drift = chance.standard_normal((videos, CLIPS_A_VIDEO, dim), dtype=np.float32)
        for clip in range(1, CLIPS_A_VIDEO):
            drift[:, clip] = 0.9 * drift[:, clip - 1] + 0.436 * drift[:, clip]
        clips = (centres[:, None] + 0.5 * spread * drift).reshape(-1, dim)[:num]
        copies, of = chance.integers(num, size=(2, num // 20))
        noise = chance.standard_normal((num // 20, dim), dtype=np.float32)
        clips[copies] = clips[of] + 0.05 * spread * noise
        yield (clips + mean).astype(np.float16)


def noise_pieces(total: int, *, dim: int) -> Iterator[npt.NDArray[np.float16]]:
    chance = np.random.default_rng(0)
    for start in range(0, total, PIECE):
        num = min(PIECE, total - start)
        yield chance.standard_normal((num, dim), dtype=np.float32).astype(np.float16)


def in_own_process(case: Case, path: Path) -> dict[str, Any]:
    """What the process says, or why it was not started."""
    if case.kind == BARE and ROOM * 4 * case.num * case.dim > free_bytes():
        return {"why_not": "too little memory is free"}
    command = [sys.executable, "-m", "benchmarks.search"]
    command += ["--case", json.dumps(asdict(case)), str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(case: Case, path: Path) -> dict[str, Any]:
    """Build, ask all queries at once and each by itself, and write; in this process."""
    faiss = load_faiss()
    faiss.omp_set_num_threads(case.threads)
    array = np.load(path, mmap_mode="r")

    def pieces() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, case.num, PIECE):
            # Read, not mapped: mapped pages would count as the index's memory.
            yield read_rows(path, array, start, min(start + PIECE, case.num))

    queries = read_rows(path, array, case.num, len(array))
    before = peak_kilobytes(reset=True)
    row: dict[str, Any] = {}
    began, spent = time.perf_counter(), time.process_time()
    if case.kind == BARE:
        index = faiss.IndexFlatIP(case.dim)
        centre = np.mean([one.mean(axis=0) for one in pieces()], axis=0, dtype=np.float32)
        for one in pieces():
            index.add(to_directions(one, centre_D=centre))
        search = index.search
    else:
        kind: Kind = case.kind  # type: ignore[assignment]
        built = build_vectors(pieces, total=case.num, kind=kind, centred=True)
        centre = built.centre
        row |= {"effort": built.vectors.effort, "own_recall": built.recall}

        def search(queries_QD: npt.NDArray[np.float32], num: int) -> Any:
            return built.vectors.search(queries_QD, num=num)

    row["build_seconds"] = time.perf_counter() - began
    row["build_cpu_seconds"] = time.process_time() - spent
    row["peak_megabytes"] = (peak_kilobytes() - before) / 1000
    directions = to_directions(queries, centre_D=centre)
    spent = time.process_time()
    _, found = search(directions, 10)
    row["queries_a_cpu_second"] = len(queries) / (time.process_time() - spent)
    spent, some = time.process_time(), directions[:50]
    for one in some:
        search(one[None], 10)
    row["one_query_cpu_milliseconds"] = 1000 * (time.process_time() - spent) / len(some)
    nearest = NearestByAll(directions, num=10)
    for one in pieces():
        nearest.look_at(to_directions(one, centre_D=centre))
    truth = nearest.numbers_QK
    for num in (1, 10):
        pairs = zip(found[:, :num].tolist(), truth[:, :num].tolist(), strict=True)
        row[f"recall_at_{num}"] = sum(len(set(a) & set(b)) for a, b in pairs) / truth[:, :num].size
    saved = path.with_suffix(".faiss")
    if case.kind == BARE:
        row["megabytes"] = 4 * case.num * case.dim / 1e6
    else:
        built.vectors.write(saved)
        row["megabytes"] = saved.stat().st_size / 1e6
        saved.unlink()
    return row


def read_rows(
    path: Path, array: npt.NDArray[np.float16], start: int, stop: int
) -> npt.NDArray[np.float32]:
    width = array.shape[1] * 2
    offset = path.stat().st_size - array.shape[0] * width
    rows = np.fromfile(
        path, dtype=np.float16, count=(stop - start) * array.shape[1], offset=offset + start * width
    )
    return rows.reshape(stop - start, -1).astype(np.float32)


def peak_kilobytes(*, reset: bool = False) -> int:
    """Of this process since the last reset; getrusage also knows what its parent had."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def free_bytes() -> float:
    with Path("/proc/meminfo").open() as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return 0.0


def show(row: dict[str, Any], *, first: bool) -> None:
    if first:
        print(
            f"{'vectors':>9} {'data':6} {'index':11} {'build s':>8} {'CPU s':>7} {'peak MB':>8}"
            f" {'file MB':>8} {'queries/s':>9} {'one ms':>7} {'recall@1':>8} {'@10':>6}"
            f" {'told':>6} effort"
        )
    head = f"{row['num']:9,} {row['data']:6} {row['kind']:11}"
    if "why_not" in row:
        print(f"{head} {row['why_not']}", flush=True)
        return
    told = f"{row['own_recall']:6.4f} {row['effort']}" if "effort" in row else ""
    print(
        f"{head} {row['build_seconds']:8.1f} {row['build_cpu_seconds']:7.1f}"
        f" {row['peak_megabytes']:8.0f} {row['megabytes']:8.0f} {row['queries_a_cpu_second']:9.0f}"
        f" {row['one_query_cpu_milliseconds']:7.2f} {row['recall_at_1']:8.4f}"
        f" {row['recall_at_10']:6.4f} {told}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
