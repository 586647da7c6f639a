"""Annotations meet a cache: every row becomes an item or is accounted for."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import AnnotationError
from trainer.config import ViewSpec
from trainer.data.annotation import Annotation, Message, VideoPart
from trainer.data.catalog import Catalog
from trainer.data.join_report import OUTCOMES
from trainer.data.joining import join

VIDEO = VideoPart()
CLIPS = {"long": 10, "short": 2, "cut_30_50": 10}
"""Video -> clips of 2 s, four frames each; every third clip begins a shard."""


def make_catalog(**changes) -> Catalog:
    counts = list(CLIPS.values())
    clip_index = np.concatenate([np.arange(count) for count in counts])
    N = len(clip_index)
    fields = {
        "fps": 2.0,
        "frames_per_clip": 4,
        "video_ids": list(CLIPS),
        "first_sample": np.concatenate([[0], np.cumsum(counts)]),
        "rows": np.arange(N),
        "clip_index": clip_index,
        "start_seconds": 2.0 * clip_index,
        "end_seconds": 2.0 * clip_index + 2,
        "num_frames": np.full(N, 4),
        "shard_names": [f"s{i}" for i in range(N // 3 + 1)],
        "shard_codes": np.arange(N) // 3,
        "uris": {f"/x/{name}.mp4": number for number, name in enumerate(CLIPS)},
        "several": {},
        "rejected": {"bad": "too_long"},
    }
    return Catalog(**fields | changes)


CATALOG = make_catalog()


def note(video="long", *, id="q", answer="A.", parts=(VIDEO,), **fields) -> Annotation:  # noqa: A002
    messages = (Message.of("user", *parts, "What?"), Message.of("assistant", answer))
    return Annotation(id=id, video=video, messages=messages, **fields)


def meet(*rows, catalog=CATALOG, max_clips=0, max_clips_of_view=0, on_missing="skip", **view):
    return join(
        {"d": rows},
        catalog,
        view=ViewSpec(max_clips=max_clips_of_view, **view),
        max_clips=max_clips,
        on_missing={"d": on_missing},
    )


def outcome(row, **options) -> str:
    """What becomes of one row, in the company of one that is there."""
    report = meet(row, note("short"), **options).report.labels["d"]
    report.counts["matched"] -= 1
    [(name, _)] = [pair for pair in report.counts.items() if pair[1]]
    return name


class TestItems:
    def test_an_item_has_its_row_its_view_and_its_shard(self):
        [item] = meet(note("long.mp4", span=(7.0, 9.0))).items
        assert (item.id, item.data, item.shard) == ("q", "d", "s1")
        assert item.annotation.video == "long.mp4"
        assert item.view is not None
        assert item.view.rows[:, 0].tolist() == [3, 4]

    def test_times_may_count_from_the_begin_of_the_span(self):
        row = note(span=(7.0, 11.0), answer="8.0 to 9.5", answer_spans=((8.0, 9.5),))
        [item] = meet(row, time_base="span").items
        assert item.annotation.answer_spans == ((1.0, 2.5),)
        assert item.annotation.messages[1].content == ("1.0 to 2.5",)
        assert item.view is not None
        assert item.view.start_seconds.tolist() == [-1.0, 1.0, 3.0]
        assert item.view.origin_seconds == 7.0
        assert item.view.rows[:, 0].tolist() == [3, 4, 5]

    def test_views_are_shared_by_rows_of_one_video_and_span(self):
        rows = [note(id="1"), note("/x/long.mp4", id="2"), note(span=(0.0, 3.0), id="3")]
        first, second, third = meet(*rows).items
        assert first.view is second.view
        assert first.view is not third.view

    def test_text_only_needs_no_video(self):
        row = note(None, parts=())
        [item] = meet(row, on_missing="error").items
        assert (item.view, item.shard) == (None, "")
        assert outcome(row) == "text_only"

    @pytest.mark.parametrize(
        ("stage", "view", "clips"),
        [(0, 0, 10), (4, 0, 4), (0, 4, 4), (4, 6, 4), (6, 4, 4), (20, 0, 10)],
    )
    def test_the_lower_limit_of_clips_holds(self, stage, view, clips):
        spec = ViewSpec(max_clips=view)
        joined = join({"d": [note()]}, CATALOG, view=spec, max_clips=stage, on_missing={})
        [item] = joined.items
        assert len(item.view) == clips
        assert len(item.view.rows) == len(set(item.view.rows[:, 0].tolist()))

    def test_messages_that_show_only_spans_see_the_clips_of_those(self):
        parts = (VideoPart(span=(0.0, 1.0)), VideoPart(span=(9.0, 11.0)))
        [item] = meet(note(parts=parts)).items
        assert item.view.rows[:, 0].tolist() == [0, 4, 5]
        [item] = meet(note(parts=parts), max_clips=2).items
        assert len(item.view) == 2
        # A limit of the view, too, counts what is shown and not the whole video.
        [item] = meet(note(parts=parts), max_clips_of_view=2).items
        assert set(item.view.rows[:, 0].tolist()) <= {0, 4, 5}
        [item] = meet(note(parts=(VideoPart(), *parts))).items
        assert len(item.view) == 10
        assert outcome(note(parts=(VideoPart(span=(50.0, 60.0)),))) == "outside"

    def test_another_name_of_the_video_is_tried_next(self):
        [item] = meet(note("unknown", aliases=("v_unknown", "short"))).items
        assert item.view.video_id == "short"

    def test_a_cut_is_seen_on_its_own_clock(self):
        row = note(
            "movie", span=(30.0, 50.0), cut="cut_30_50", answer="36.0 to 40.0",
            answer_spans=((36.0, 40.0),),
        )  # fmt: skip
        [item] = meet(row).items
        assert (item.view.video_id, len(item.view)) == ("cut_30_50", 10)
        assert item.annotation.answer_spans == ((6.0, 10.0),)
        assert item.annotation.messages[1].content == ("6.0 to 10.0",)
        assert item.annotation.span is None
        # The video itself comes first.
        [item] = meet(note("long", span=(4.0, 6.0), cut="cut_30_50")).items
        assert (item.view.video_id, item.annotation.span) == ("long", (4.0, 6.0))

    def test_a_blind_baseline_joins_the_same_rows_and_sees_nothing(self):
        rows = [note(), note("nothing"), note(span=(70.0, 80.0))]
        blind = meet(*rows, input="text")
        assert blind.report.to_mapping() == meet(*rows).report.to_mapping()
        [item] = blind.items
        assert (len(item.view), item.shard) == (0, "")


class TestReport:
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            (note("nowhere"), "missing"),
            (note("bad"), "missing"),
            (note(span=(20.0, 25.0)), "outside"),
            (note(span=(19.9, 25.0)), "matched"),
            (note(answer=""), "unsupervised"),
            (note("nowhere", answer=""), "unsupervised"),
        ],
    )
    def test_what_becomes_of_a_row(self, row, expected):
        assert outcome(row) == expected

    def test_a_view_that_keeps_no_frame(self):
        catalog = make_catalog(num_frames=np.where(np.arange(22) < 10, 0, 4))
        assert outcome(note(), catalog=catalog, input="center") == "no_clips"

    def test_names_of_several_videos(self):
        catalog = make_catalog(uris={"/a/1.mp4": 0, "/b/1.mp4": 1})
        assert outcome(note("1.mp4"), catalog=catalog) == "ambiguous"
        assert outcome(note("b/1.mp4"), catalog=catalog) == "matched"

    def test_one_file_cannot_be_two_videos_of_different_folders(self):
        joined = meet(note("p/long.mp4"), note("q/long.mp4"), note("r/short.mp4"), note("x/long"))
        assert joined.report.labels["d"].counts["ambiguous"] == 3
        assert [item.view.video_id for item in joined.items] == ["short"]
        joined = meet(note("p/long.mp4"), note("o/p/long.mp4"), note("long.mp4"))
        assert len(joined.items) == 3

    def test_lines_and_mapping(self):
        rows = [note("gone", id=f"g{i}") for i in range(5)]
        report = meet(note(), note("bad", id="b"), *rows, note(span=(30.0, 31.0))).report
        assert report.lines() == [
            "d: 8 rows, 1 joined with their video",
            "  6 whose video is not in the cache: b (bad: rejected, too_long), g0 (gone),"
            " g1 (gone), ...",
            "  1 about a span of which nothing is cached: q (30.0 to 31.0, of 0.0 to 20.0)",
        ]
        mapping = json.loads(json.dumps(report.to_mapping()))
        assert mapping["d"]["rows"] == 8
        assert mapping["d"]["missing"] == 6
        assert mapping["d"]["examples"]["missing"][0] == "b (bad: rejected, too_long)"

    @given(
        st.lists(
            st.builds(
                note,
                st.sampled_from(
                    ["long", "short.mp4", "a/long.mp4", "b/long.mp4", "bad", "no", None]
                ),
                answer=st.sampled_from(["A.", ""]),
                parts=st.sampled_from([(), (VideoPart(span=(3.0, 5.0)),)]),
                span=st.sampled_from([None, (0.0, 3.0), (30.0, 40.0)]),
            ),
            max_size=12,
        )
    )
    def test_every_row_is_accounted_for(self, rows):
        joined = meet(*rows, note("short", id="there"), fps=1.0)
        report = joined.report.labels["d"]
        assert report.rows == len(rows) + 1 == sum(report.counts.values())
        assert set(report.counts) == set(OUTCOMES)
        assert len(joined.items) == report.counts["matched"] + report.counts["text_only"]
        assert all(len(examples) <= 3 for examples in report.examples.values())


class TestMissing:
    def test_an_error_says_what_and_how_to_go_on(self):
        with pytest.raises(AnnotationError) as caught:
            meet(note(), note("gone", id="g"), note(span=(30.0, 31.0)), on_missing="error")
        assert caught.value.message == (
            "d: of 3 rows 1 whose video is not in the cache: g (gone); 1 about a span of which"
            " nothing is cached: q (30.0 to 31.0, of 0.0 to 20.0)"
        )
        assert "/x/long.mp4" in caught.value.hint
        assert 'on_missing = "skip"' in caught.value.hint

    def test_it_is_decided_by_label(self):
        rows = {"kept": [note()], "lax": [note("gone")]}
        options = {"view": ViewSpec(), "max_clips": 0}
        joined = join(rows, CATALOG, on_missing={"lax": "skip"}, **options)
        assert [item.data for item in joined.items] == ["kept"]
        with pytest.raises(AnnotationError, match=r"^lax: of 1 rows"):
            join(rows, CATALOG, on_missing={"kept": "skip"}, **options)

    @pytest.mark.parametrize("num_lost", [0, 1, 2])
    def test_no_more_may_be_lost_than_is_said(self, num_lost):
        rows = {"d": [note()] * (4 - num_lost) + [note("gone")] * num_lost}
        options = {"view": ViewSpec(), "max_clips": 0, "on_missing": {"d": "skip"}}
        if num_lost <= 1:
            joined = join(rows, CATALOG, max_missing={"d": 0.25}, **options)
            assert len(joined.items) == 4 - num_lost
            return
        with pytest.raises(AnnotationError, match=r"more than max_missing = 0\.25 of them"):
            join(rows, CATALOG, max_missing={"d": 0.25}, **options)

    def test_rows_without_an_answer_are_left_out_in_any_case(self):
        joined = meet(note(), note(answer=""), on_missing="error")
        assert joined.report.labels["d"].counts["unsupervised"] == 1

    def test_nothing_left_is_an_error_in_any_case(self):
        with pytest.raises(AnnotationError, match=r"^of 2 rows none is left to learn from: d: 2"):
            meet(note("gone"), note(answer=""))
