"""What is in a cache, and the names by which its videos are found."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.layout import CacheLayout
from schemas.errors import AnnotationError
from schemas.tables import INDEX_SCHEMA, PROBE_SCHEMA, REJECT_SCHEMA
from trainer.data.catalog import REJECTED, Catalog


def table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows that say what matters, the rest null."""
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in schema.names} for row in rows], schema=schema
    )


def samples(shard: str, **clips: list[int]) -> list[dict[str, Any]]:
    """Rows of the index: video_id -> clips of two seconds, four frames each."""
    return [
        {
            "video_id": video_id.replace("_", " "),
            "clip_index": clip,
            "start_seconds": 2.0 * clip,
            "end_seconds": 2.0 * clip + 2.0,
            "num_frames": 4,
            "shard": shard,
            "bytes": 10,
        }
        for video_id, numbers in clips.items()
        for clip in numbers
    ]


def make_catalog(folder, index, probes, rejects=()) -> Catalog:
    """Of the tables of a cache, as `pipeline run` leaves them; `probes` may be several lists."""
    layout = CacheLayout(folder)
    layout.probes.mkdir()
    layout.rejects.parent.mkdir()
    for number, rows in enumerate(probes):
        pq.write_table(table(PROBE_SCHEMA, rows), layout.probes / f"{number:06d}.parquet")
    pq.write_table(table(REJECT_SCHEMA, list(rejects)), layout.rejects)
    recipe = SimpleNamespace(sampling=SimpleNamespace(fps=2.0, frames_per_clip=4))
    index = table(INDEX_SCHEMA, index)
    return Catalog.of(SimpleNamespace(index=index, layout=layout, recipe=recipe))


def probe(uri, video_id, start=None, end=None, given=None):
    return {
        "uri": uri,
        "video_id": video_id,
        "given_id": given,
        "start_seconds": start,
        "end_seconds": end,
    }


@pytest.fixture
def catalog(tmp_path):
    return make_catalog(
        tmp_path,
        samples("s0", b=[2, 0, 1]) + samples("s1", my_cat=[0], a=[1, 0, 4]) + samples("s2", b=[3]),
        [
            [
                probe("/x/one/1.mp4", "a"),
                probe("/x/copy of 1.mp4", "a"),
                probe("/x/two/VXJS4.mp4", "b"),
                probe("https://h/2.v1.mp4?~0123456789abcdef", "my cat", given="my cat"),
                probe("/x/old.mp4", "gone"),
            ],
            [probe("/x/three/bad.mp4", "", given="named")],
        ],
        [{"uri": "/x/three/bad.mp4", "video_id": "named", "reason": "not_a_video"}],
    )


class TestVideos:
    def test_samples_lie_by_video_in_order_of_clips(self, catalog):
        assert (len(catalog), catalog.video_ids) == (3, ["b", "my cat", "a"])
        b = catalog.find("b")
        assert b is not None
        assert b.rows.tolist() == [1, 2, 0, 7]
        assert b.clip_index.tolist() == [0, 1, 2, 3]
        assert b.start_seconds.tolist() == [0.0, 2.0, 4.0, 6.0]
        assert b.end_seconds.tolist() == [2.0, 4.0, 6.0, 8.0]
        assert b.num_frames.dtype == np.int64
        assert [catalog.shard_of(row) for row in b.rows] == ["s0", "s0", "s0", "s2"]
        assert repr(catalog) == "Catalog(3 videos, 8 samples)"

    def test_an_empty_cache_has_no_video(self, tmp_path):
        catalog = make_catalog(tmp_path, [], [])
        assert len(catalog) == 0
        assert catalog.find("a") is None


class TestNames:
    @pytest.mark.parametrize(
        ("name", "video_id"),
        [
            ("a", "a"),
            ("my cat", "my cat"),
            ("/x/one/1.mp4", "a"),
            ("https://user:secret@h/2.v1.mp4?~0123456789abcdef", "my cat"),
            ("1.mp4", "a"),
            ("1", "a"),
            ("./one/1.mp4", "a"),
            ("elsewhere/1.mp4", "a"),
            ("C:\\videos\\1.mp4", "a"),
            ("VXJS4.mp4", "b"),
            ("VXJS4", "b"),
            ("2.v1", "my cat"),
            ("copy of 1", "a"),
        ],
    )
    def test_a_video_is_found(self, catalog, name, video_id):
        video = catalog.find(name)
        assert video is not None
        assert video.video_id == video_id

    @pytest.mark.parametrize(
        "name",
        ["c", "", "2", "vxjs4", "VXJS4.avi", "old", "old.mp4", "/x/old.mp4", "XJS4.mp4", "mp4"],
    )
    def test_what_is_not_there_is_not_found(self, catalog, name):
        assert catalog.find(name) is None

    @pytest.mark.parametrize("name", ["named", "/x/three/bad.mp4", "three/bad.mp4", "bad"])
    def test_a_reject_is_known_as_one(self, catalog, name):
        assert catalog.match(name).numbers == (REJECTED,)
        assert catalog.find(name) is None

    def test_why_it_was_rejected(self, catalog):
        assert catalog.why_rejected("named") == "rejected, not_a_video"
        assert catalog.why_rejected("bad.mp4") == "rejected"

    def test_only_the_files_name_is_no_exact_match(self, catalog):
        names = ["a", "/x/one/1.mp4", "one/1.mp4", "1.mp4", "elsewhere/1.mp4", "1"]
        exact = [catalog.match(name).is_exact for name in names]
        assert exact == [True, True, True, False, False, False]

    def test_a_name_that_may_mean_several_is_refused_unless_its_folder_tells(self, tmp_path):
        catalog = make_catalog(
            tmp_path,
            samples("s", a=[0], b=[0]),
            [[probe("/x/a/1.mp4", "a"), probe("/x/b/1.mp4", "b"), probe("/x/c/1.mp4", "")]],
            [{"uri": "/x/c/1.mp4", "video_id": "", "reason": "empty_file"}],
        )
        for name in ("1.mp4", "1", "d/1.mp4"):
            with pytest.raises(
                AnnotationError, match="several videos: a, b, one that was rejected"
            ):
                catalog.find(name)
        found = [catalog.find(f"{folder}/1.mp4") for folder in "abc"]
        assert [one and one.video_id for one in found] == ["a", "b", None]

    def test_a_reject_stands_in_the_way_of_a_guess(self, tmp_path):
        catalog = make_catalog(
            tmp_path,
            samples("s", a=[0]),
            [[probe("/x/a/1.mp4", "a"), probe("/x/b/1.mp4", "")]],
            [{"uri": "/x/b/1.mp4", "video_id": "", "reason": "empty_file"}],
        )
        assert catalog.find("b/1.mp4") is None
        with pytest.raises(AnnotationError, match="several"):
            catalog.find("1.mp4")

    def test_spans_of_one_source_are_told_apart_by_what_they_share(self, tmp_path):
        catalog = make_catalog(
            tmp_path,
            samples("s", first=[0, 1], second=[2, 3]),
            [[probe("/x/1.mp4", "first", 0, 4), probe("/x/1.mp4", "second", 4, 8)]],
        )
        with pytest.raises(AnnotationError, match="first, second"):
            catalog.find("/x/1.mp4")
        for span, video_id in (((0.0, 3.0), "first"), ((3.5, 8.0), "second")):
            video = catalog.find("1", span=span)
            assert video is not None
            assert video.video_id == video_id
        for span in ((3.0, 5.0), (9.0, 10.0)):
            with pytest.raises(AnnotationError):
                catalog.find("1", span=span)

    def test_the_newest_probe_of_a_source_counts(self, tmp_path):
        catalog = make_catalog(
            tmp_path,
            samples("s", old=[0], new=[0]),
            [[probe("/x/1.mp4", "old")], [probe("/x/1.mp4", "new")]],
        )
        video = catalog.find("1.mp4")
        assert video is not None
        assert video.video_id == "new"
