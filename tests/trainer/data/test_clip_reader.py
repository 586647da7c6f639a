"""ClipReader, beside FeatureCache, which parses every member."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache import open_cache
from pipeline.places import to_place
from schemas.errors import CacheDamaged
from tests.trainer.data.clip_caches import SOUND, STAMPS, Written, write_clips
from trainer.config import ViewSpec
from trainer.data.buffers import Buffers
from trainer.data.clip_reader import CachedClips, ClipReader, audio_tokens_per_clip
from trainer.data.video_view import CachedVideo, view_video

SHARDS = [{"a": [4, 4, 3], "b": [4]}, {"c": [4, 4, 4, 4, 4, 1]}, {"d": [2]}]
STRIDED = STAMPS | {"video": {"grid": [2, 2], "dim": 7, "temporal_stride": 2}}
KINDS = {
    "float16": {},
    "int8": {"overrides": ("streams.image.dtype=int8", "streams.video.dtype=int8")},
    "sound": {"overrides": (SOUND, "streams.image.dtype=int8")},
    "strided": {
        "overrides": ("streams.video.dtype=int8", SOUND),
        "stamps": STRIDED,
    },
    "large previews": {"preview_bytes": 70_000},
}
VIEWS = {
    "whole": ViewSpec(),
    "half": ViewSpec(fps=1.0),
    "slow": ViewSpec(fps=0.25),
    "single frames": ViewSpec(frames_per_clip=1),
    "longer clips": ViewSpec(frames_per_clip=6),
    "uniform": ViewSpec(policy="uniform", num_frames=5),
    "center": ViewSpec(input="center"),
    "thinned": ViewSpec(max_clips=2),
}
HINT = "run: pipeline verify "


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return {
        name: write_clips(tmp_path_factory.mktemp("c") / "cache", SHARDS, **kind)
        for name, kind in KINDS.items()
    }


@pytest.fixture(scope="module")
def any_reader(written: dict[str, Written]) -> ClipReader:
    return reader_of(written["sound"], ANY_FRAMES)


def views_of(written: Written, view: ViewSpec) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, frames) of each video."""
    ids = [sample.info["video_id"] for sample in written.samples]
    for video_id in dict.fromkeys(ids):
        rows = np.flatnonzero([one == video_id for one in ids])
        samples = [written.samples[row] for row in rows]
        video = CachedVideo(
            video_id=video_id,
            rows=rows,
            clip_index=np.array([sample.info["clip_index"] for sample in samples]),
            start_seconds=np.array([sample.times[0, 0] for sample in samples]),
            end_seconds=np.array([sample.times[-1, 1] for sample in samples]),
            num_frames=np.array([sample.mask.sum() for sample in samples]),
        )
        seen = view_video(video, view, cache_fps=2.0, frames_per_clip=4, span=None)
        yield seen.rows, seen.frames


def expected(
    written: Written, rows: np.ndarray, frames: np.ndarray, num_tokens: int
) -> CachedClips:
    """By plain loops over the samples as they were written."""
    (C, F), shape = rows.shape, written.shape
    features, scales = {}, {}
    for name, one in shape.streams.items():
        by_frame = one.num_grids == shape.frames_per_clip
        T = F if by_frame else one.num_grids
        features[name] = np.zeros((C, T, one.height, one.width, one.dim), one.dtype)
        if one.dtype == "int8":
            scales[name] = np.zeros((C, T, one.dim), np.float32)
        for c in range(C):
            first = next((row for row in rows[c] if row >= 0), -1)
            for t in range(T):
                row, grid = (rows[c, t], frames[c, t]) if by_frame else (first, t)
                if row >= 0:
                    features[name][c, t] = written.samples[row].features[name][grid]
                    if name in scales:
                        scales[name][c, t] = written.samples[row].scales[name]
    times = np.zeros((C, F, 2))
    for c, f in np.argwhere(rows >= 0):
        times[c, f] = written.samples[rows[c, f]].times[frames[c, f]]
    audio = audio_mask = None
    if num_tokens:
        assert shape.audio is not None
        audio = np.zeros((C, num_tokens, shape.audio.dim), np.float16)
        audio_mask = np.zeros((C, num_tokens), bool)
        for c in range(C):
            heard = [written.samples[row] for row in dict.fromkeys(rows[c]) if row >= 0]
            if heard:
                sound = np.concatenate([one.audio.reshape(-1, shape.audio.dim) for one in heard])
                known = np.concatenate([one.audio_mask for one in heard])
                audio[c, : len(sound)] = sound
                audio_mask[c, : len(sound)] = known.repeat(shape.audio.tokens)
    return CachedClips(
        features={name: torch.from_numpy(array) for name, array in features.items()},
        scales={name: torch.from_numpy(array) for name, array in scales.items()},
        frame_mask=torch.from_numpy(rows >= 0),
        frame_times=torch.from_numpy(times),
        audio=None if audio is None else torch.from_numpy(audio),
        audio_mask=None if audio_mask is None else torch.from_numpy(audio_mask),
    )


def assert_same(found: CachedClips, wanted: CachedClips) -> None:
    assert list(found.features) == list(wanted.features)
    assert found.scales.keys() == wanted.scales.keys()
    pairs = [(found.features[name], wanted.features[name]) for name in wanted.features]
    pairs += [(found.scales[name], wanted.scales[name]) for name in wanted.scales]
    for name in ("frame_mask", "frame_times", "audio", "audio_mask"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            pairs.append((one, other))
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one, other)


def dirty() -> Buffers:
    """A buffer in which something else was."""
    buffers = Buffers()
    buffers.take((1 << 20,), dtype=torch.uint8).fill_(0xAB)
    buffers.clear()
    return buffers


def reader_of(written: Written, view: ViewSpec) -> ClipReader:
    cache, with_audio = open_cache(written.layout.root), written.shape.audio is not None
    return ClipReader(cache, shape=written.shape, view=view, with_audio=with_audio)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_clips_are_what_was_written(written: dict[str, Written], kind: str, view: str) -> None:
    one, spec = written[kind], VIEWS[view]
    reader, tokens = reader_of(one, spec), audio_tokens_per_clip(spec, one.shape)
    assert (tokens > 0) == (kind in ("sound", "strided"))
    for rows, frames in views_of(one, spec):
        found = reader.read(rows, frames, into=dirty())
        assert_same(found, expected(one, rows, frames, tokens))


ANY_FRAMES = ViewSpec(frames_per_clip=3, policy="uniform", num_frames=3)


@settings(max_examples=60)
@given(data=st.data())
def test_any_frames_in_any_order(
    written: dict[str, Written], any_reader: ClipReader, data: st.DataObject
) -> None:
    one, C = written["sound"], data.draw(st.integers(0, 6))
    row, frame = st.integers(0, len(one.samples) - 1), st.integers(0, 3)
    rows = np.array(data.draw(st.lists(row, min_size=3 * C, max_size=3 * C)), dtype=np.int64)
    frames = np.array(data.draw(st.lists(frame, min_size=3 * C, max_size=3 * C)), dtype=np.int64)
    # In a clip the frames of a sample stand together; any may be missing.
    rows = np.sort(rows.reshape(C, 3))[:, :: data.draw(st.sampled_from([1, -1]))]
    gone = data.draw(st.lists(st.booleans(), min_size=3 * C, max_size=3 * C))
    rows, frames = np.where(np.reshape(gone, (C, 3)), -1, rows), frames.reshape(C, 3)
    found = any_reader.read(rows, frames, into=dirty())
    tokens = audio_tokens_per_clip(ANY_FRAMES, one.shape)
    assert_same(found, expected(one, rows, frames, tokens))


def test_sound_is_left_alone_where_it_is_not_wanted(written: dict[str, Written]) -> None:
    one = written["sound"]
    cache = open_cache(one.layout.root)
    reader = ClipReader(cache, shape=one.shape, view=ViewSpec(), with_audio=False)
    (rows, frames), *_ = views_of(one, ViewSpec())
    assert_same(reader.read(rows, frames, into=Buffers()), expected(one, rows, frames, 0))


def test_more_samples_than_one_call_can_scatter(tmp_path: Path) -> None:
    one = write_clips(tmp_path / "cache", [{"a": [4] * 300}, {"b": [4] * 200}])
    rows = np.repeat(np.arange(500)[::-1, None], 4, axis=1)
    frames = np.broadcast_to(np.arange(4), rows.shape)
    found = reader_of(one, ViewSpec()).read(rows, frames, into=dirty())
    assert_same(found, expected(one, rows, frames, 0))


def test_a_call_reads_a_bounded_number_of_bytes(
    written: dict[str, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.data import segments

    monkeypatch.setattr(segments, "MAX_BYTES", 100)
    one = written["int8"]
    for rows, frames in views_of(one, ViewSpec()):
        found = reader_of(one, ViewSpec()).read(rows, frames, into=dirty())
        assert_same(found, expected(one, rows, frames, 0))


def test_whole_clips_that_lie_together_are_read_by_one_call(
    written: dict[str, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = written["sound"]
    (rows, frames), *_ = views_of(one, ViewSpec())
    reader, calls = reader_of(one, ViewSpec()), []
    tars = reader._cache.tars
    read_into = tars.read_into
    monkeypatch.setattr(
        tars, "read_into", lambda *what, **where: calls.append(what) or read_into(*what, **where)
    )
    reader.read(rows, frames, into=Buffers())
    assert len(rows) == 3
    assert len(calls) == 1


def test_tensors_alias_the_buffers_and_are_aligned(written: dict[str, Written]) -> None:
    one, buffers = written["strided"], Buffers()
    reader = reader_of(one, ViewSpec())
    (rows, frames), *_ = views_of(one, ViewSpec())
    addresses = []
    for _ in range(3):
        buffers.clear()
        found = reader.read(rows, frames, into=buffers)
        tensors = [*found.features.values(), *found.scales.values(), found.audio]
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
        addresses.append([tensor.data_ptr() for tensor in tensors])
    assert addresses[0] == addresses[1] == addresses[2]


@pytest.mark.parametrize(
    ("view", "num_samples"),
    [
        ("whole", 1),
        ("half", 2),
        ("slow", 4),
        ("single frames", 1),
        ("longer clips", 2),
        ("uniform", 4),
        ("center", 1),
    ],
)
def test_a_clip_has_room_for_the_sound_of_all_its_samples(
    written: dict[str, Written], view: str, num_samples: int
) -> None:
    shape = written["sound"].shape
    assert shape.audio is not None
    tokens = audio_tokens_per_clip(VIEWS[view], shape)
    assert tokens == num_samples * shape.audio.windows * shape.audio.tokens
    assert audio_tokens_per_clip(VIEWS[view], written["int8"].shape) == 0


def test_clips_of_a_store_are_the_same(tmp_path: Path) -> None:
    local = write_clips(tmp_path / "cache", SHARDS, overrides=(SOUND,))
    place = to_place(f"memory://{tempfile.mkdtemp(dir=tmp_path)}/cache")
    place.fs.put(str(local.layout.root), place.path, recursive=True)
    reader = ClipReader(
        open_cache(place), shape=local.shape, view=ViewSpec(fps=1.0), with_audio=True
    )
    tokens = audio_tokens_per_clip(ViewSpec(fps=1.0), local.shape)
    for rows, frames in views_of(local, ViewSpec(fps=1.0)):
        found = reader.read(rows, frames, into=dirty())
        assert_same(found, expected(local, rows, frames, tokens))


class TestDamage:
    @pytest.fixture
    def one(self, tmp_path: Path) -> Written:
        return write_clips(tmp_path / "cache", SHARDS, overrides=("streams.image.dtype=int8",))

    def read_all(self, one: Written) -> None:
        reader = reader_of(one, ViewSpec())
        rows = np.repeat(np.arange(len(one.samples))[:, None], 4, axis=1)
        reader.read(rows, np.broadcast_to(np.arange(4), rows.shape), into=dirty())

    @pytest.mark.parametrize("row", [1, 3, 8, 10])
    def test_a_truncated_tar_is_noticed_where_it_ends(self, one: Written, row: int) -> None:
        with open_cache(one.layout.root) as cache:
            key = one.samples[row].key
            place = cache.row(key)
            tar = one.layout.tar(place.shard)
        offset, size = place.members["video.npy"]
        os.truncate(tar, offset + size - 1)
        with pytest.raises(CacheDamaged, match=f"{tar.name} ends inside {key}") as caught:
            self.read_all(one)
        assert caught.value.hint == f"{HINT}{one.layout.root}"

    def test_a_missing_tar_is_noticed(self, one: Written) -> None:
        one.layout.tar("train-000001-00000000").unlink()
        with pytest.raises(
            CacheDamaged, match=r"train-000001-00000000\.tar: cannot be read"
        ) as caught:
            self.read_all(one)
        assert caught.value.hint.startswith(HINT)

    @pytest.mark.parametrize("member", ["image.npy", "image_scale.npy", "video.npy", "time.npy"])
    def test_other_headers_are_noticed(self, one: Written, member: str) -> None:
        with open_cache(one.layout.root) as cache:
            row = cache.row("c_000002")
        with one.layout.tar(row.shard).open("r+b") as file:
            file.seek(row.members[member][0] + 20)
            file.write(b"?")
        with pytest.raises(
            CacheDamaged, match=f"c_000002: member '{member}' is not an npy"
        ) as caught:
            self.read_all(one)
        assert caught.value.hint.startswith(HINT)

    def test_members_of_another_size_are_noticed(self, one: Written, tmp_path: Path) -> None:
        grids = STAMPS | {"video": {"grid": [2, 3], "dim": 7}}
        other = write_clips(tmp_path / "other", SHARDS, stamps=grids)
        reader = ClipReader(
            open_cache(other.layout.root), shape=one.shape, view=ViewSpec(), with_audio=False
        )
        rows, frames = np.zeros((1, 4), np.int64), np.arange(4)[None]
        with pytest.raises(CacheDamaged, match=r"a_000000: member 'image\.npy' has \d+ bytes"):
            reader.read(rows, frames, into=Buffers())

    def test_a_member_that_is_not_there_is_noticed(self, one: Written, tmp_path: Path) -> None:
        other = write_clips(tmp_path / "other", SHARDS)
        shape = one.shape
        reader = ClipReader(
            open_cache(other.layout.root), shape=shape, view=ViewSpec(), with_audio=False
        )
        rows, frames = np.zeros((1, 4), np.int64), np.arange(4)[None]
        with pytest.raises(CacheDamaged, match="a_000000: member "):
            reader.read(rows, frames, into=Buffers())
