"""build_shard without Beam: what a bad video costs, and what a commit is."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from encoders.projection import RandomProjection
from pipeline.decoding import ClipFrames
from pipeline.encoding import BATCH_CLIPS, StreamEncoders, stamp_streams
from pipeline.layout import CacheLayout
from pipeline.planning import estimate_clip_bytes, extend_plan
from pipeline.pool import DecoderPool
from pipeline.prefetching import DecodeAhead
from pipeline.probing import probe_source
from pipeline.sharding import BuildTools, build_shard
from schemas.errors import StorageError
from schemas.plan import Piece, ShardSpec
from schemas.recipe import Recipe
from schemas.video import Source

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny")
CLIP_BYTES = estimate_clip_bytes(TINY, stamp_streams(TINY))


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    return CacheLayout(tmp_path / "cache")


@pytest.fixture
def tools(layout: CacheLayout) -> Iterator[BuildTools]:
    with DecoderPool(TINY.limits, num_processes=2) as pool:
        yield BuildTools(recipe=TINY, layout=layout, encoders=StreamEncoders(TINY), pool=pool)


def plan(paths: list[Path], tools: BuildTools, *, recipe: Recipe = TINY) -> list[ShardSpec]:
    probes = [
        probe_source(Source(uri=str(path)), limits=recipe.limits, process=tools.pool.processes[0])
        for path in paths
    ]
    return extend_plan(
        probes,
        recipe=recipe,
        recipe_fingerprint=recipe.fingerprint(stamp_streams(recipe)),
        clip_bytes=estimate_clip_bytes(recipe, stamp_streams(recipe)),
        existing=[],
    )


def copied(clips: ClipShelf, name: str, path: Path) -> Path:
    path.write_bytes(clips[name].path.read_bytes())
    return path


def test_a_committed_shard_is_not_built_again(clips: ClipShelf, tools: BuildTools) -> None:
    (spec,) = plan([clips["25.mp4"].path], tools)
    first = build_shard(spec, tools=tools)
    tar = tools.layout.tar(spec.name)
    before = tar.stat().st_mtime_ns
    assert build_shard(spec, tools=replace(tools, encoders=None)) == first  # type: ignore[arg-type]
    assert tar.stat().st_mtime_ns == before
    assert hashlib.sha256(tar.read_bytes()).hexdigest() == first.tar_sha256
    assert tar.stat().st_size == first.tar_bytes
    assert list(tools.layout.scratch.iterdir()) == []


def test_estimated_bytes_are_the_real_ones_but_for_previews(
    clips: ClipShelf, tools: BuildTools
) -> None:
    recipe = Recipe.load("tiny", overrides=["preview.enabled=false"])
    (spec,) = plan([clips["25.mp4"].path], tools, recipe=recipe)
    sidecar = build_shard(spec, tools=replace(tools, recipe=recipe))
    assert all("preview.jpg" not in entry.members for entry in sidecar.samples)
    estimate = sum(piece.estimated_bytes for piece in spec.pieces)
    assert estimate == pytest.approx(sidecar.tar_bytes, rel=0.03)


def test_a_shard_with_nothing_usable_has_a_sidecar_and_no_tar(
    clips: ClipShelf, tools: BuildTools, tmp_path: Path
) -> None:
    path = copied(clips, "25.mp4", tmp_path / "a.mp4")
    (spec,) = plan([path], tools)
    path.unlink()
    sidecar = build_shard(spec, tools=tools)
    assert (sidecar.samples, sidecar.tar_bytes, sidecar.tar_sha256) == ((), 0, "")
    assert [reject.reason for reject in sidecar.rejects] == ["not_found"]
    assert [missing.num_clips for missing in sidecar.missing] == [spec.num_clips]
    assert not tools.layout.tar(spec.name).exists()
    assert spec.name in tools.layout.committed()


def test_a_bad_video_leaves_no_trace_in_the_tar(
    clips: ClipShelf, tools: BuildTools, tmp_path: Path
) -> None:
    good = clips["25.mp4"].path
    bad = copied(clips, "50.mp4", tmp_path / "bad.mp4")
    (both,) = plan([good, bad], tools)
    (alone,) = plan([good], tools)
    bad.write_bytes(bad.read_bytes()[:-1000] + bytes(1000))
    sidecar = build_shard(both, tools=tools)
    assert [reject.reason for reject in sidecar.rejects] == ["source_changed"]
    assert sidecar.tar_sha256 == build_shard(alone, tools=tools).tar_sha256


def test_a_touched_file_of_the_same_content_is_no_change(
    clips: ClipShelf, tools: BuildTools, tmp_path: Path
) -> None:
    path = copied(clips, "25.mp4", tmp_path / "a.mp4")
    (spec,) = plan([path], tools)
    os.utime(path, (1, 1))
    assert build_shard(spec, tools=tools).rejects == ()


def test_a_crash_in_the_middle_costs_the_whole_video(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.load("tiny", overrides=["sampling.fps=60", "sampling.frames_per_clip=1"])
    crashing = replace(tools, recipe=recipe)
    # More samples than a decoder process can hand over ahead.
    (spec,) = plan([clips["60.mp4"].path], tools, recipe=recipe)
    encode = StreamEncoders.encode
    batches = 0

    def encode_and_kill(self: StreamEncoders, clips: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches % 2 == 0:  # in the second try as well
            for process in tools.pool.processes:
                if process.pid is not None and not process.is_idle:
                    os.kill(process.pid, 9)
        return encode(self, clips)

    monkeypatch.setattr(StreamEncoders, "encode", encode_and_kill)
    sidecar = build_shard(spec, tools=crashing)
    assert batches >= 4
    assert sidecar.samples == ()
    assert [reject.reason for reject in sidecar.rejects] == ["crashed"]
    assert "SIGKILL" in sidecar.rejects[0].detail


def test_features_that_are_not_finite_are_a_reject(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Any, frames: Any) -> Any:
        features = np.zeros((*frames.shape[:2], *self.spec.grid, self.spec.dim), np.float32)
        features[-1, 0, 0, 0, 0] = 1e6  # more than float16 holds
        return features

    monkeypatch.setattr("encoders.projection.RandomProjection.encode", encode)
    (spec,) = plan([clips["25.mp4"].path], tools)
    sidecar = build_shard(spec, tools=tools)
    assert [(r.stage, r.reason) for r in sidecar.rejects] == [("encode", "non_finite")]


def test_a_batch_holds_clips_of_several_videos(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    encode = StreamEncoders.encode

    def count(self: StreamEncoders, clips: Any) -> Any:
        batches.append(len(clips))
        return encode(self, clips)

    monkeypatch.setattr(StreamEncoders, "encode", count)
    (spec,) = plan([clips[name].path for name in ("60.mp4", "25.mp4", "30.mp4", "50.mp4")], tools)
    total = len(build_shard(spec, tools=tools).samples)
    assert len(spec.pieces) == 4
    assert max(piece.num_clips for piece in spec.pieces) < BATCH_CLIPS
    assert batches == [BATCH_CLIPS] * (total // BATCH_CLIPS) + [total % BATCH_CLIPS]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_the_size_of_batches_changes_nothing(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    (spec,) = plan([clips[name].path for name in ("60.mp4", "25.mp4", "30.mp4")], tools)
    expected = build_shard(spec, tools=tools)
    monkeypatch.setattr("pipeline.encoding.BATCH_CLIPS", size)
    layout = CacheLayout(tools.layout.root.with_name("other"))
    assert build_shard(spec, tools=replace(tools, layout=layout)) == expected


@pytest.mark.parametrize("bad", ["60.mp4", "25.mp4", "30.mp4"])
def test_what_is_not_finite_costs_one_video_of_a_batch(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    names = ("60.mp4", "25.mp4", "30.mp4")
    (spec,) = plan([clips[name].path for name in names], tools)
    (others,) = plan([clips[name].path for name in names if name != bad], tools)
    expected = build_shard(others, tools=tools)
    (piece,) = [piece for piece in spec.pieces if piece.uri.endswith(bad)]
    decoded = DecodeAhead.clips

    def clips_of(self: DecodeAhead, piece: Piece, **options: Any) -> Iterator[Any]:
        for clip in decoded(self, piece, **options):
            if isinstance(clip, ClipFrames) and piece.uri.endswith(bad) and clip.clip_index == 1:
                clip.frames["image"].fill(77)  # the mark by which it is known below
            yield clip

    encode = RandomProjection.encode

    def fail(self: RandomProjection, frames: Any) -> Any:
        features = encode(self, frames)
        features[(frames == 77).all(axis=(1, 2, 3, 4))] = np.nan
        return features

    monkeypatch.setattr(DecodeAhead, "clips", clips_of)
    monkeypatch.setattr(RandomProjection, "encode", fail)
    sidecar = build_shard(spec, tools=tools)
    assert [(r.video_id, r.reason) for r in sidecar.rejects] == [(piece.video_id, "non_finite")]
    assert [gap.num_clips for gap in sidecar.missing] == [piece.num_clips]
    assert sidecar.tar_sha256 == expected.tar_sha256
    assert sidecar.samples == expected.samples


def test_a_bug_is_not_a_reject(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Any, frames: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("encoders.projection.RandomProjection.encode", encode)
    (spec,) = plan([clips["25.mp4"].path], tools)
    with pytest.raises(ZeroDivisionError):
        build_shard(spec, tools=tools)
    assert spec.name not in tools.layout.committed()
    assert list(tools.layout.scratch.iterdir()) == []


def test_an_encoder_of_the_wrong_shape_is_a_bug(
    clips: ClipShelf, tools: BuildTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Any, frames: Any) -> Any:
        return np.zeros((*frames.shape[:2], 1, 1, 1), np.float32)

    monkeypatch.setattr("encoders.projection.RandomProjection.encode", encode)
    (spec,) = plan([clips["25.mp4"].path], tools)
    with pytest.raises(TypeError, match="expected"):
        build_shard(spec, tools=tools)


def test_what_a_shard_took_is_measured(clips: ClipShelf, tools: BuildTools, tmp_path: Path) -> None:
    broken = copied(clips, "25.mp4", tmp_path / "broken.mp4")
    good = [clips[name].path for name in ("50.mp4", "30.mp4")]
    (spec,) = plan([broken, *good], tools)
    broken.write_bytes(b"other")
    sidecar = build_shard(spec, tools=tools)
    measured = tools.measures.so_far()
    assert {name: measured.counts[name] for name in ("shards_begun", "shards", "videos")} == {
        "shards_begun": 1,
        "shards": 1,
        "videos": 2,
    }
    assert measured.counts["clips"] == len(sidecar.samples)
    assert measured.counts["done"] == sum(piece.num_clips for piece in spec.pieces)
    assert measured.counts["frames"] == sum(entry.num_frames for entry in sidecar.samples)
    assert measured.counts["bytes"] == sidecar.tar_bytes
    assert measured.rejects == {"source_changed": 1}
    stages = measured.stages
    assert stages["pack"].num == len(sidecar.samples)
    assert stages["hash"].num == len(sidecar.samples) + 1
    assert stages["encode"].num == stages["wait_encode"].num == 1
    # What the main thread does follows one after the other, and is nearly all of the time.
    of_main = ("wait_decode", "wait_encode", "pack", "wait_hash", "publish")
    share = measured.seconds(*of_main) / measured.seconds("shard")
    assert 0.5 < share <= 1.0
    build_shard(spec, tools=tools)
    assert tools.measures.so_far() == measured  # it is committed: nothing is done


def test_a_tar_without_its_sidecar_is_built_again(clips: ClipShelf, tools: BuildTools) -> None:
    (spec,) = plan([clips["25.mp4"].path], tools)
    first = build_shard(spec, tools=tools)
    tools.layout.sidecar(spec.name).unlink()
    tools.layout.tar(spec.name).write_bytes(b"torn")
    assert build_shard(spec, tools=tools) == first
    with tarfile.open(tools.layout.tar(spec.name)) as archive:
        assert len(archive.getmembers()) == 6 * len(first.samples)


def test_a_place_that_cannot_be_written_is_said(clips: ClipShelf, tools: BuildTools) -> None:
    (spec,) = plan([clips["25.mp4"].path], tools)
    tools.layout.root.mkdir()
    tools.layout.shards.touch()  # a file where the folder should be
    with pytest.raises(StorageError, match="cannot be written"):
        build_shard(spec, tools=tools)


def test_pieces_of_a_long_video_hold_the_samples_of_the_whole(
    clips: ClipShelf, tools: BuildTools, tmp_path: Path
) -> None:
    path = clips["b_frames.mp4"].path
    (whole,) = plan([path], tools)
    cut = Recipe.load("tiny", overrides=[f"shards.target_bytes={CLIP_BYTES}"])
    pieces = plan([path], tools, recipe=cut)
    assert len(pieces) == whole.num_clips > 2
    sidecars = [build_shard(spec, tools=tools) for spec in pieces]
    expected = build_shard(whole, tools=tools)
    tar = tools.layout.tar(whole.name).read_bytes()
    for sidecar, sample in zip(sidecars, expected.samples, strict=True):
        (entry,) = sidecar.samples
        assert (entry.key, entry.start_seconds, entry.end_seconds) == (
            sample.key,
            sample.start_seconds,
            sample.end_seconds,
        )
        one = tools.layout.tar(sidecar.name).read_bytes()[: entry.num_bytes]
        assert one == tar[sample.offset : sample.offset + sample.num_bytes]
