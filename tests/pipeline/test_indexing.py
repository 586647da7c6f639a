"""The search index of a cache: made, added to, made anew, refused, and what it promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache import open_cache
from pipeline.clip_vectors import LEAST_CENTRED, mean_of_frames, to_directions
from pipeline.indexing import NONE_YET, find_lack, frames_of, update_index
from pipeline.layout import CacheLayout
from pipeline.places import read_bytes, to_place
from pipeline.search_index import SearchIndexInfo, read_index_info, read_search_index
from pipeline.vector_building import choose_rows
from pipeline.vector_index import VectorIndex
from schemas.errors import CacheDamaged, FingerprintMismatch, StorageError, UsageError
from schemas.sidecar import Sidecar
from tests.pipeline import handmade
from tests.pipeline.handmade import write_cache, write_shard

SHARDS = [{"b": 12}, {"a": 5, "c": 3}]


@pytest.fixture
def layout(tmp_path):
    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, SHARDS)
    return layout


def update(layout, *, stream="image", **choices):
    """The indexing, and which shards were read."""
    read: list[str] = []
    with open_cache(layout.root) as cache:
        source = frames_of(cache, stream=stream)

        def frames(shards):
            for one in source(shards):
                read.append(one.shard)
                yield one

        return update_index(cache, stream=stream, frames=frames, **choices), read


def open_index(layout, stream="image"):
    with open_cache(layout.root) as cache:
        info = read_index_info(cache, stream=stream, space="features")
        assert info is not None
        return read_search_index(cache, info)


def clip_means(layout, stream="image"):
    """(N, D) float64 in the order of the index, by hand from the samples."""
    with open_cache(layout.root) as cache:
        keys = cache.index.column("key").to_pylist()
        means = []
        for key in keys:
            sample = cache[key]
            frames = sample.decode(stream).mean(axis=(1, 2)).astype(np.float16)
            means.append(frames[sample.mask].astype(np.float64).mean(axis=0))
        return np.stack(means)


def test_a_vector_is_the_direction_of_its_clip_from_the_mean_of_all(layout):
    made, _ = update(layout)
    means_ND = clip_means(layout)
    assert len(means_ND) >= LEAST_CENTRED
    centred = means_ND - means_ND.mean(axis=0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    index = open_index(layout)
    vectors = np.stack([index.vectors._index.reconstruct(i) for i in range(20)])
    assert np.allclose(vectors, expected, atol=1e-4)
    assert np.array_equal(index.rows, np.arange(20))
    assert made.info.kind == "flat"
    assert made.info.num_vectors == made.num_added == 20
    assert made.why_anew == NONE_YET


def test_few_clips_are_not_centred(tmp_path):
    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, [{"a": 1}])
    made, _ = update(layout)
    assert not made.info.centre_vector().any()


def test_a_new_shard_is_added_and_old_ones_are_not_read(layout):
    before = update(layout)[0].info
    write_cache(layout, [*SHARDS, {"d": 4}])
    made, read = update(layout)
    assert len(read) == 1
    assert (made.num_added, made.why_anew) == (4, "")
    assert made.info.centre == before.centre
    assert made.info.shards[:2] == before.shards
    index = open_index(layout)
    assert len(index.vectors) == 24
    expected = to_directions(
        clip_means(layout)[20:].astype(np.float32), centre_D=before.centre_vector()
    )
    added = np.stack([index.vectors._index.reconstruct(i) for i in range(20, 24)])
    assert np.allclose(added, expected, atol=1e-4)
    files = sorted(path.name for path in layout.search.iterdir())
    assert files == sorted(["image.json", made.info.file])


def test_when_nothing_is_new_nothing_is_read_or_written(layout):
    first, _ = update(layout)
    times = {path: path.stat().st_mtime_ns for path in layout.search.iterdir()}
    again, read = update(layout)
    assert (again.info, again.num_added, read) == (first.info, 0, [])
    assert times == {path: path.stat().st_mtime_ns for path in layout.search.iterdir()}


def test_the_same_cache_gives_the_same_bytes(layout):
    update(layout, kind="hnsw")
    first = {path.name: path.read_bytes() for path in layout.search.iterdir()}
    update(layout, kind="hnsw", rebuild=True)
    assert first == {path.name: path.read_bytes() for path in layout.search.iterdir()}


def test_a_cache_that_has_grown_much_has_its_index_made_anew(layout):
    first = update(layout)[0].info
    write_cache(layout, [*SHARDS, {"d": 21}])
    made, read = update(layout)
    assert made.why_anew == "since the cache has grown from 20 clips to 41"
    assert len(read) == 6  # all shards, twice
    assert made.info.centre != first.centre


def test_a_shard_that_is_gone_has_the_index_made_anew(layout):
    update(layout)
    write_cache(layout, [{"b": 12}, {"a": 4}])
    with open_cache(layout.root) as cache:
        info = read_index_info(cache, stream="image", space="features")
        assert find_lack(cache, info).why_anew
        rows = read_search_index(cache, info).rows
    assert rows.tolist() == [*range(12), *[-1] * 8]
    made, _ = update(layout)
    assert made.why_anew == "since some of its shards are gone"
    assert made.info.num_vectors == 16


def test_the_kind_changes_with_size_unless_it_was_asked_for(layout, monkeypatch):
    made, _ = update(layout, kind="hnsw")
    assert (made.info.kind, made.info.asked_kind) == ("hnsw", "hnsw")
    assert made.info.recall_queries == 20
    assert made.info.recall_at_10 >= 0.98
    again, _ = update(layout)
    assert (again.num_added, again.info.kind) == (0, "hnsw")
    assert update(layout, kind="flat")[0].why_anew == "as flat instead of hnsw"
    assert update(layout, rebuild=True)[0].info.asked_kind == ""
    monkeypatch.setattr("pipeline.vector_index.FLAT_BELOW", 15)
    assert update(layout)[0].why_anew == "as ivf instead of flat"


@pytest.mark.parametrize("stream", ["image", "video"])
def test_ivf_of_many_clips_of_real_videos_promises_its_recall(tmp_path, stream):
    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, [{f"v{i}": 10 for i in range(20)}, {f"w{i}": 10 for i in range(20)}])
    made, _ = update(layout, kind="ivf", stream=stream)
    assert made.info.recall_at_10 >= 0.98
    assert made.info.recall_queries == 400


def test_the_index_of_another_cache_is_refused(layout, tmp_path):
    update(layout)
    other = CacheLayout(tmp_path / "other")
    shutil.copytree(layout.root, other.root)
    info = json.loads(other.info.read_text())
    path = other.search / "image.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"fingerprint": "0" * 64}))
    assert info["fingerprint"] != "0" * 64
    with pytest.raises(FingerprintMismatch, match="of another cache") as caught:
        update(other)
    assert "--rebuild" in caught.value.hint
    assert update(other, rebuild=True)[0].why_anew == "as asked"


def test_the_index_of_another_stream_is_refused(layout):
    update(layout)
    update(layout, stream="video")
    shutil.copy(layout.search / "image.json", layout.search / "video.json")
    with pytest.raises(FingerprintMismatch, match="search index of image"):
        open_index(layout, "video")


def damages():
    def edit(**fields):
        def change(layout, info):
            path = layout.search / "image.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | fields))

        return change

    def cut(layout, info):
        path = layout.search / info.file
        path.write_bytes(path.read_bytes()[:-1])

    def flip(layout, info):
        path = layout.search / info.file
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    return {
        "cut": cut,
        "flipped": flip,
        "gone": lambda layout, info: (layout.search / info.file).unlink(),
        "no JSON": lambda layout, info: (layout.search / "image.json").write_text("{"),
        "not an object": lambda layout, info: (layout.search / "image.json").write_text("[1]"),
        "another format": edit(format=2),
        "another kind": edit(kind="pq"),
        "a path": edit(file="../../../etc/passwd"),
        "no centre": edit(centre="AAAA"),
        "no base64": edit(centre="ä"),
        "shards": edit(shards=[["x", -3]]),
        "more shards": edit(shards=[["x", 3]]),
        "a field more": edit(pickle="x"),
        "a text": edit(file_bytes="many"),
    }


@pytest.mark.parametrize("how", damages())
def test_a_damaged_index_is_said_with_what_to_do(layout, how):
    info = update(layout)[0].info
    damages()[how](layout, info)
    with pytest.raises(CacheDamaged) as caught:
        open_index(layout)
    assert "pipeline index" in caught.value.hint
    assert "--rebuild" in caught.value.hint
    update(layout, rebuild=True)
    assert len(open_index(layout).vectors) == 20


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_an_index_without_its_file_is_made_anew(layout, how):
    info = update(layout)[0].info
    damages()[how](layout, info)
    made, _ = update(layout)
    assert (made.info, made.num_added) == (info, 20)
    assert "not there whole" in made.why_anew
    assert len(open_index(layout).vectors) == 20


def test_a_place_that_cannot_be_written_is_said(layout, monkeypatch):
    def full(self, path):
        path = Path("/dev/full")
        write(self, path)

    write = VectorIndex.write
    monkeypatch.setattr(VectorIndex, "write", full)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        update(layout)


def test_the_json_goes_there_and_back(layout):
    info = update(layout)[0].info
    text = info.to_json().encode()
    assert SearchIndexInfo.from_json(text, where="x") == info


def test_what_was_being_written_when_it_was_killed_is_not_there_for_readers(layout, monkeypatch):
    first = update(layout)[0].info
    write_cache(layout, [*SHARDS, {"d": 4}])

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.search_index.publish_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        update(layout)
    monkeypatch.undo()
    assert open_index(layout).info == first
    made, _ = update(layout)
    assert made.num_added == 4
    assert len(list(layout.search.glob("*.faiss"))) == 1


def test_the_indexes_of_two_streams_leave_each_other_alone(layout):
    update(layout)
    update(layout, stream="video")
    update(layout, rebuild=True)
    assert open_index(layout, "video").info.dim == 48
    assert open_index(layout, "image").info.dim == 32


def read_shard(layout, index, videos, *, make):
    name = f"train-{index:06d}-00000000"
    place = layout.sidecar(name)
    return Sidecar.from_json(read_bytes(place), where=str(place))


def test_a_cache_in_an_object_store_has_its_index_there(bucket, monkeypatch):
    layout = CacheLayout(to_place(f"s3://{bucket}/cache"))
    write_cache(layout, SHARDS[:1])
    made, _ = update(layout)
    index = open_index(layout)
    assert index.info == made.info
    assert len(index.vectors) == 12
    write_shard(layout, 1, {"d": 4})
    monkeypatch.setattr(handmade, "write_shard", read_shard)
    write_cache(layout, [{"b": 12}, {"d": 4}])
    assert update(layout)[0].num_added == 4
    assert len(open_index(layout).vectors) == 16
    assert not list(layout.scratch.iterdir())


def test_a_cache_without_a_clip_is_said(layout, monkeypatch):
    with open_cache(layout.root) as cache:
        monkeypatch.setattr(type(cache), "__len__", lambda self: 0)
        with pytest.raises(UsageError, match="no clip"):
            update_index(cache, stream="image", frames=frames_of(cache, stream="image"))


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2**31 - 1),
)
def test_the_mean_is_over_grids_that_show_a_real_frame(num, grids, stride, seed):
    T = grids * stride
    rng = np.random.default_rng(seed)
    vectors_NGD = rng.standard_normal((num, grids, 3)).astype(np.float32)
    frames_N = rng.integers(1, T + 1, size=num)
    means = mean_of_frames(vectors_NGD, frames_N, T=T)
    for row, frames in enumerate(frames_N):
        shown = [g for g in range(grids) if g * stride < frames]
        assert np.allclose(means[row], vectors_NGD[row, shown].mean(axis=0), atol=1e-5)


@given(st.integers(1, 20), st.integers(0, 2**31 - 1))
def test_directions_have_length_one_or_none(num, seed):
    rng = np.random.default_rng(seed)
    vectors_ND = rng.standard_normal((num, 5)).astype(np.float32)
    vectors_ND[0] = 0.5
    kept = vectors_ND.copy()
    centre_D = np.full(5, 0.5, dtype=np.float32)
    lengths = np.linalg.norm(to_directions(vectors_ND, centre_D=centre_D), axis=1)
    assert lengths[0] == 0
    assert np.allclose(lengths[1:], 1, atol=1e-5)
    assert np.array_equal(vectors_ND, kept)


def test_queries_are_among_what_cells_are_learned_from():
    for kind in ("flat", "hnsw", "ivf"):
        chosen, own = choose_rows(5000, kind=kind)
        assert len(own) == 500
        assert np.isin(own, chosen).all()
        assert (np.diff(chosen) > 0).all()
