"""Frame vectors: means of grids, kept a shard."""

import numpy as np
import pytest

from pipeline.cache import open_cache
from pipeline.layout import CacheLayout
from pipeline.pooling import pool_frames
from schemas.errors import CacheDamaged, UsageError
from schemas.sample import decode_npy
from tests.pipeline.handmade import write_cache

SHARDS = [{"b cat": 3}, {"a": 2, "c": 1}]


@pytest.fixture
def layout(tmp_path):
    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, SHARDS)
    return layout


def pool(layout, stream="image"):
    with open_cache(layout.root) as cache:
        return list(pool_frames(cache, stream=stream))


@pytest.mark.parametrize("stream", ["image", "video"])
def test_a_vector_is_the_mean_of_its_grid(layout, stream):
    with open_cache(layout.root) as cache:
        keys = cache.index.column("key").to_pylist()
        seen = []
        for pooled in pool_frames(cache, stream=stream):
            for row, vectors_GD in zip(pooled.rows, pooled.vectors, strict=True):
                features = cache[keys[row]].decode(stream)
                assert np.allclose(vectors_GD, features.mean(axis=(1, 2)), atol=1e-3)
                seen.append(int(row))
    assert seen == list(range(6))


def test_what_is_kept_is_not_read_again(layout):
    first = pool(layout)
    for pooled in first:
        kept = decode_npy(layout.vectors_of("image", pooled.shard).read_bytes())
        assert np.array_equal(kept, pooled.vectors)
        layout.tar(pooled.shard).unlink()
    again = pool(layout)
    assert [p.shard for p in again] == [p.shard for p in first]
    assert all(np.array_equal(a.vectors, b.vectors) for a, b in zip(again, first, strict=True))


def test_only_shards_that_are_new_are_read(layout):
    pool(layout)
    write_cache(layout, [*SHARDS, {"d": 2}])
    for tar in sorted(layout.shards.glob("*.tar"))[:2]:
        tar.unlink()
    assert [len(pooled.rows) for pooled in pool(layout)] == [3, 3, 2]


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"nonsense"])
def test_a_damaged_file_is_made_anew(layout, damage):
    expected = pool(layout)[0]
    path = layout.vectors_of("image", expected.shard)
    path.write_bytes(damage)
    assert np.array_equal(pool(layout)[0].vectors, expected.vectors)
    assert np.array_equal(decode_npy(path.read_bytes()), expected.vectors)


def test_an_unknown_stream_is_named_with_its_neighbours(layout):
    with pytest.raises(UsageError, match=r"imge.*did you mean 'image'"):
        pool(layout, "imge")


def test_a_tar_that_was_cut_is_damage(layout):
    tar = sorted(layout.shards.glob("*.tar"))[0]
    tar.write_bytes(tar.read_bytes()[:2000])
    with pytest.raises(CacheDamaged, match="ends inside"):
        pool(layout)
