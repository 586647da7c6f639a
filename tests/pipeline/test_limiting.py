"""When a run has too many rejects, counted by several workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pipeline.limiting import MAX_UNCOUNTED, RejectLimit
from pipeline.run_folder import RunFolder
from schemas.account import Account
from schemas.errors import TooManyRejects
from schemas.plan import Piece, ShardSpec
from schemas.reject import Reject
from schemas.sidecar import Sidecar
from tests.pieces import make_piece


def piece(video_id: str, *, first_clip: int = 0, is_last: bool = True) -> Piece:
    return make_piece(
        f"/{video_id}",
        video_id,
        content_sha256="",
        size_bytes=1,
        mtime_ns=1,
        estimated_bytes=1,
        first_clip=first_clip,
        is_last=is_last,
    )


def shard(index: int, *pieces: Piece) -> ShardSpec:
    return ShardSpec(index=index, split="train", recipe_fingerprint="", pieces=pieces)


def committed(spec: ShardSpec, **reasons: str) -> Sidecar:
    return Sidecar(
        name=spec.name,
        index=spec.index,
        split=spec.split,
        fingerprint=spec.fingerprint,
        recipe_fingerprint="",
        tar_sha256="",
        tar_bytes=0,
        samples=(),
        videos=(),
        missing=(),
        rejects=tuple(make_reject(name, reason) for name, reason in reasons.items()),
        versions={},
    )


def make_reject(name: str, reason: str) -> Reject:
    return Reject(uri=f"/{name}", video_id=name, stage="decode", reason=reason, detail="")


def limit(
    *todo: ShardSpec, rate: float, num_sources: int = 10, own: str = "abcdefghij", before: int = 0
) -> RejectLimit:
    rejects = {(f"/{n}", "", 0.0, 1.0): make_reject(str(n), "too_long") for n in range(before)}
    return RejectLimit.of(
        Account(outcomes=dict(rejects)),
        todo,
        num_sources=num_sources,
        video_ids=set(own),
        max_rate=rate,
        cache="my-cache",
    )


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path)


def test_rejects_before_the_build_are_enough(run_folder: RunFolder) -> None:
    limit(rate=0.3, before=3).check(run_folder)
    with pytest.raises(TooManyRejects, match=r"4 of 10 sources were rejected \(40.0%, .* 30.0%\)"):
        limit(rate=0.3, before=4)


def test_workers_count_together_and_each_shard_once(run_folder: RunFolder) -> None:
    first, second = shard(0, piece("a"), piece("b")), shard(1, piece("c"))
    one = limit(first, second, rate=0.25, before=1)
    other: RejectLimit = pickle.loads(pickle.dumps(one))
    one.count(committed(first, a="timed_out"), first, run_folder)
    other.count(committed(first, a="timed_out"), first, run_folder)
    other.check(run_folder)
    with pytest.raises(TooManyRejects, match=r"3 of 10 .* 1 too_long") as caught:
        other.count(committed(second, c="crashed"), second, run_folder)
    assert "pipeline rejects my-cache" in caught.value.hint
    with pytest.raises(TooManyRejects):
        one.check(run_folder)


def test_what_is_not_certain_is_not_counted(run_folder: RunFolder) -> None:
    parts = shard(0, piece("a", is_last=False), piece("b", first_clip=9), piece("x"))
    one = limit(parts, rate=0.0)
    one.count(committed(parts, a="crashed", b="crashed", x="crashed"), parts, run_folder)
    one.check(run_folder)
    assert run_folder.rejects().total() == 0


def test_many_videos_of_others_are_not_sent_to_workers(run_folder: RunFolder) -> None:
    others = [shard(n, piece(f"other {n}")) for n in range(MAX_UNCOUNTED + 1)]
    one = limit(*others, rate=0.0)
    assert len(pickle.dumps(one)) < 1000
    one.count(committed(others[0], **{"other 0": "crashed"}), others[0], run_folder)
    one.check(run_folder)


def test_without_a_limit_nothing_is_written(run_folder: RunFolder) -> None:
    spec = shard(0, piece("a"))
    one = limit(spec, rate=1.0, num_sources=1)
    one.count(committed(spec, a="crashed"), spec, run_folder)
    assert run_folder.rejects().total() == 0
