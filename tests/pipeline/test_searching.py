"""Searching: what is nearest comes first, and clips side by side become spans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache import open_cache
from pipeline.indexing import frames_of, update_index
from pipeline.layout import CacheLayout
from pipeline.search_index import read_index_info, read_search_index
from pipeline.searching import (
    LEAST_SHARE,
    Hit,
    find_clips,
    find_spans,
    merge_hits,
    vector_of_clip,
    write_previews,
)
from pipeline.stream_encoder import choose_stream
from schemas.errors import UsageError
from tests.pipeline.handmade import write_cache

SHARDS = [{"b": 12}, {"a": 5, "c": 3}, {f"v{i}": 4 for i in range(30)}]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    layout = CacheLayout(tmp_path_factory.mktemp("searched") / "cache")
    write_cache(layout, SHARDS)
    with open_cache(layout.root) as cache:
        update_index(cache, stream="image", frames=frames_of(cache, stream="image"))
    return layout.root


@pytest.fixture
def cache(root):
    with open_cache(root) as opened:
        yield opened


@pytest.fixture
def index(cache):
    return read_search_index(cache, read_index_info(cache, stream="image", space="features"))


def query(cache, key: str) -> np.ndarray:
    return vector_of_clip(cache, key, stream="image", kept_as="image")


def test_a_clip_finds_itself_first_and_all_others_in_order(cache, index):
    hits = list(find_clips(cache, index, query(cache, "b_000003")))
    assert hits[0].key == "b_000003"
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert {hit.key for hit in hits} == set(cache.keys())
    assert len(hits) == len(cache)


def test_the_order_is_that_of_cosines_from_the_mean(cache, index):
    keys = cache.keys()
    vectors = {key: query(cache, key).astype(np.float64) for key in keys}
    mean = np.mean(list(vectors.values()), axis=0)

    def score(key: str) -> float:
        a, b = vectors["a_000001"] - mean, vectors[key] - mean
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    hits = list(find_clips(cache, index, query(cache, "a_000001")))
    for hit in hits:
        assert hit.score == pytest.approx(score(hit.key), abs=2e-4)


def test_what_is_left_out_is_not_found(cache, index):
    own = set(cache.videos["b"])
    spans = find_spans(cache, index, query(cache, "b_000000"), top=1000, merge=False, leave_out=own)
    assert {span.video_id for span in spans} == set(cache.videos) - {"b"}
    assert [span.rank for span in spans] == list(range(1, len(spans) + 1))


def test_a_vector_from_the_sample_is_that_from_what_is_kept(cache):
    kept = query(cache, "c_000002")
    anew = vector_of_clip(cache, "c_000002", stream="image", kept_as="nowhere")
    assert np.array_equal(kept, anew)
    with pytest.raises(UsageError, match="not put into the text space"):
        vector_of_clip(cache, "c_000002", stream="image", kept_as="nowhere", pool=None)
    with pytest.raises(UsageError, match=r"no sample 'c_00002'.*did you mean"):
        query(cache, "c_00002")


def hit(video_id: str, clip_index: int, score: float) -> Hit:
    return Hit(
        key=f"{video_id}_{clip_index}",
        video_id=video_id,
        clip_index=clip_index,
        start_seconds=2.0 * clip_index,
        end_seconds=2.0 * clip_index + 2,
        score=score,
    )


def merged(hits: list[Hit], *, top: int = 10, merge: bool = True) -> list[list[str]]:
    return [[one.key for one in span] for span in merge_hits(iter(hits), top=top, merge=merge)]


def test_clips_side_by_side_are_one_span():
    hits = [hit("a", 3, 0.9), hit("b", 3, 0.8), hit("a", 4, 0.7), hit("a", 2, 0.6)]
    assert merged(hits) == [["a_2", "a_3", "a_4"], ["b_3"]]
    assert merged(hits, merge=False) == [["a_3"], ["b_3"], ["a_4"], ["a_2"]]


def test_a_clip_between_two_spans_makes_them_one():
    hits = [hit("a", 1, 0.9), hit("a", 3, 0.8), hit("c", 0, 0.75), hit("a", 2, 0.7)]
    assert merged(hits) == [["a_1", "a_2", "a_3"], ["c_0"]]


def test_a_clip_that_is_much_less_near_stays_out_of_a_span():
    hits = [hit("a", 1, 0.9), hit("a", 2, 0.9 * LEAST_SHARE - 0.01), hit("a", 0, -0.2)]
    assert merged(hits) == [["a_1"], ["a_2"], ["a_0"]]
    assert merged([hit("a", 1, -0.1), hit("a", 2, -0.2)]) == [["a_1"], ["a_2"]]


def test_no_more_hits_are_taken_than_are_needed():
    def hits():
        yield hit("a", 0, 0.9)
        yield hit("a", 1, 0.8)
        yield hit("b", 0, 0.7)
        raise AssertionError("one more was asked for")

    assert [len(span) for span in merge_hits(hits(), top=1, merge=True)] == [2]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), unique=True),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_spans_are_whole_apart_and_in_order(places, top, chance):
    scores = sorted((chance.random() for _ in places), reverse=True)
    hits = [hit(v, i, score) for (v, i), score in zip(places, scores, strict=True)]
    spans = merge_hits(iter(hits), top=top, merge=True)
    assert len(spans) <= top
    best = [max(one.score for one in span) for span in spans]
    assert best == sorted(best, reverse=True)
    seen = [one.key for span in spans for one in span]
    assert len(seen) == len(set(seen))
    for span in spans:
        indices = [one.clip_index for one in span]
        assert indices == list(range(indices[0], indices[0] + len(indices)))
        assert len({one.video_id for one in span}) == 1


def test_previews_are_strips_one_below_the_other(damaged_cache: Path, tmp_path: Path):
    from PIL import Image

    with open_cache(damaged_cache) as cache:
        update_index(cache, stream="image", frames=frames_of(cache, stream="image"))
        info = read_index_info(cache, stream="image", space="features")
        index = read_search_index(cache, info)
        key = cache.keys()[0]
        spans = find_spans(cache, index, query(cache, key), top=2, merge=True)
        written = write_previews(cache, spans, tmp_path / "strips")
        assert set(written) == {1, 2}
        assert {Path(span.source).suffix for span in spans} == {".mp4"}
        for span in spans:
            with Image.open(written[span.rank]) as image:
                assert image.height == len(span.keys) * cache.recipe.preview.height
                assert image.format == "JPEG"
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="cannot be written"):
            write_previews(cache, spans, tmp_path / "file")


def test_streams_are_chosen_by_name_and_by_what_they_know(cache):
    assert choose_stream(cache, None, text=False) == "image"
    assert choose_stream(cache, "video", text=False) == "video"
    with pytest.raises(UsageError, match="did you mean 'image'"):
        choose_stream(cache, "imag", text=False)
    with pytest.raises(UsageError, match=r"image \(random-image\).*only those of siglip") as caught:
        choose_stream(cache, None, text=True)
    assert "--like KEY" in caught.value.hint
