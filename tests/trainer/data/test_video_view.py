"""What is seen of a cached video: fewer frames, other clips, spans, gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from trainer.config import ViewSpec
from trainer.data.video_view import CachedVideo, evenly, frame_stride, view_video

FPS = 2.0
T = 4
"""Of the cache."""


def make_video(clips=range(5), *, last_frames=T, origin=0.5) -> CachedVideo:
    """Clips of 2 s; the last one holds `last_frames`, and frames are displayed for 0.5 s."""
    clip_index = np.array(list(clips), dtype=np.int64)
    starts = origin + clip_index * T / FPS
    num_frames = np.full(len(clip_index), T)
    num_frames[-1] = last_frames
    return CachedVideo(
        video_id="v",
        rows=100 + np.arange(len(clip_index)),
        clip_index=clip_index,
        start_seconds=starts,
        end_seconds=starts + num_frames / FPS,
        num_frames=num_frames,
    )


def see(video, *, span=None, **spec):
    return view_video(video, ViewSpec(**spec), cache_fps=FPS, frames_per_clip=T, span=span)


def grid(view, video):
    """Every frame that is seen, as its number k on the cache's grid."""
    there = view.rows >= 0
    return video.clip_index[view.rows[there] - 100] * T + view.frames[there]


videos = st.builds(
    make_video,
    st.sets(st.integers(0, 12), min_size=1).map(sorted),
    last_frames=st.integers(1, T),
    origin=st.floats(-3, 100),
)
rates = st.sampled_from([0.0, 2.0, 1.0, 2 / 3, 0.5, 0.25])
spans = st.none() | st.tuples(st.floats(-5, 120), st.floats(0.01, 60)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


class TestPlain:
    def test_the_default_is_exactly_the_clips_of_the_cache(self):
        video = make_video([0, 1, 3], last_frames=2)
        view = see(video)
        assert view.rows.tolist() == [[100] * 4, [101] * 4, [102, 102, -1, -1]]
        assert view.frames.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 0]]
        assert (view.start_seconds == video.start_seconds).all()
        assert (view.end_seconds == video.end_seconds).all()

    @given(videos)
    def test_regrouping_into_the_same_clips_changes_nothing(self, video):
        # By way of clips of 1 frame, which takes the other path.
        whole, single = see(video), see(video, frames_per_clip=1)
        there = whole.rows >= 0
        assert single.rows[:, 0].tolist() == whole.rows[there].tolist()
        assert single.frames[:, 0].tolist() == whole.frames[there].tolist()
        clip = np.nonzero(there)[0]
        firsts = np.flatnonzero(np.diff(clip, prepend=-1))
        lasts = np.flatnonzero(np.diff(clip, append=-1))
        assert np.allclose(single.start_seconds[firsts], whole.start_seconds)
        assert np.allclose(single.end_seconds[lasts], whole.end_seconds)


class TestRate:
    def test_one_fps_of_two_takes_every_second_frame(self):
        video = make_video(range(3), last_frames=2)  # k = 0 ... 9
        view = see(video, fps=1.0)
        assert grid(view, video).tolist() == [0, 2, 4, 6, 8]
        assert view.rows.tolist() == [[100, 100, 101, 101], [102, -1, -1, -1]]
        assert view.frames.tolist() == [[0, 2, 0, 2], [0, 0, 0, 0]]
        assert view.start_seconds.tolist() == [0.5, 4.5]
        # The frame that is passed over at the end belongs to the one before it.
        assert view.end_seconds.tolist() == [4.5, 5.5]

    def test_a_gap_is_left_out_and_nothing_moves_into_it(self):
        video = make_video([0, 1, 4])
        view = see(video, fps=1.0)
        assert view.rows.tolist() == [[100, 100, 101, 101], [102, 102, -1, -1]]
        assert view.start_seconds.tolist() == [0.5, 8.5]
        assert view.end_seconds.tolist() == [4.5, 10.5]  # not until the next cached frame
        view = see(make_video([0, 1, 3]), fps=1.0)
        assert view.rows.tolist() == [[100, 100, 101, 101], [-1, -1, 102, 102]]
        assert view.start_seconds.tolist() == [0.5, 6.5]

    @given(videos, rates, st.integers(0, 5))
    def test_frames_are_those_of_the_rate_in_order_and_clips_follow_the_grid(
        self, video, fps, frames_per_clip
    ):
        view = see(video, fps=fps, frames_per_clip=frames_per_clip)
        stride, F = round(FPS / (fps or FPS)), frames_per_clip or T
        cached = [
            index * T + frame
            for index, count in zip(video.clip_index, video.num_frames, strict=True)
            for frame in range(count)
        ]
        assert grid(view, video).tolist() == [k for k in cached if k % stride == 0]
        assert (view.rows >= 0).any(axis=1).all()
        assert (view.start_seconds < view.end_seconds).all()
        assert (np.diff(view.start_seconds) > 0).all()
        assert (view.start_seconds[1:] >= view.end_seconds[:-1] - 1e-9).all()
        groups = np.unique(
            np.array([k for k in cached if k % stride == 0], dtype=int) // stride // F
        )
        assert len(view) == len(groups)
        full = (view.rows >= 0).all(axis=1)
        for i in np.flatnonzero(full[:-1] & (np.diff(groups) == 1) if len(groups) > 1 else []):
            last = grid(view.take(np.array([i])), video)[-1]
            if all(k in cached for k in range(last, last + stride + 1)):
                assert view.end_seconds[i] == pytest.approx(view.start_seconds[i + 1])

    def test_a_rate_that_the_cache_cannot_give_is_refused_whatever_the_input(self):
        for spec in (ViewSpec(fps=0.75), ViewSpec(fps=3.0), ViewSpec(fps=0.75, input="text")):
            with pytest.raises(ConfigError, match="divided by a whole number"):
                view_video(make_video(), spec, cache_fps=FPS, frames_per_clip=T, span=None)
        assert frame_stride(ViewSpec(fps=10.0), cache_fps=30.0) == 3


class TestSpan:
    @given(videos, rates, st.integers(0, 5), spans)
    def test_a_span_takes_whole_clips_of_the_same_grid(self, video, fps, frames_per_clip, span):
        whole = see(video, fps=fps, frames_per_clip=frames_per_clip)
        part = see(video, fps=fps, frames_per_clip=frames_per_clip, span=span)
        start, end = span or (-np.inf, np.inf)
        kept = [
            i
            for i in range(len(whole))
            if min(end, whole.end_seconds[i]) - max(start, whole.start_seconds[i]) > 2e-6
        ]
        inside = part.rows.tolist(), part.frames.tolist(), part.start_seconds.tolist()
        wanted = whole.take(np.array(kept, dtype=int))
        if len(wanted) == len(part):  # else the border is within the tolerance
            expected = wanted.rows.tolist(), wanted.frames.tolist(), wanted.start_seconds.tolist()
            assert inside == expected
        else:
            assert 0 < len(part) - len(wanted) <= 2

    def test_it_is_half_open(self):
        video = make_video(range(4), origin=0.0)
        assert see(video, span=(2.0, 4.0)).rows[:, 0].tolist() == [101]
        assert see(video, span=(1.9, 4.1)).rows[:, 0].tolist() == [100, 101, 102]
        assert len(see(video, span=(8.0, 9.0))) == 0
        assert video.overlapping((2.0, 4.0)).tolist() == [1]

    def test_the_end_that_a_lower_rate_passes_over_is_still_seen(self):
        view = see(make_video(range(3), last_frames=2, origin=0.0), fps=1.0, span=(4.6, 5.0))
        assert view.rows.tolist() == [[102, -1, -1, -1]]


class TestUniform:
    @given(videos, st.integers(1, 60), st.integers(0, 5), spans)
    def test_so_many_frames_evenly_over_what_is_asked_for(self, video, num_frames, F, span):
        view = see(video, policy="uniform", num_frames=num_frames, frames_per_clip=F, span=span)
        k = grid(view, video)
        seconds = video.start_seconds[0] + (k - video.clip_index[0] * T) / FPS
        assert len(k) <= num_frames
        assert (np.diff(k) > 0).all()
        assert len(view) == -(-len(k) // (F or T))
        if span is None:
            assert len(k) == min(num_frames, video.num_frames.sum())
        else:
            assert ((seconds < span[1]) & (seconds + 2 > span[0])).all()

    def test_they_lie_in_the_middle_of_equal_parts(self):
        video = make_video(range(4), origin=0.0)  # k = 0 ... 15
        view = see(video, policy="uniform", num_frames=4, frames_per_clip=2)
        assert grid(view, video).tolist() == [2, 6, 10, 14]
        assert view.start_seconds.tolist() == [1.0, 5.0]
        assert view.end_seconds.tolist() == [3.5, 7.5]

    def test_center_is_one_frame_in_the_middle_of_the_span(self):
        video = make_video(range(4), origin=0.0)
        view = see(video, input="center")
        assert view.rows.tolist() == [[102, -1, -1, -1]]
        assert view.frames[0, 0] == 0
        view = see(video, input="center", span=(0.0, 1.5))
        assert grid(view, video).tolist() == [1]
        assert (view.start_seconds[0], view.end_seconds[0]) == (0.5, 1.0)

    def test_text_sees_nothing(self):
        view = see(make_video(), input="text", frames_per_clip=2)
        assert len(view) == 0
        assert view.rows.shape == (0, 2)


class TestLimits:
    @given(st.integers(1, 200), st.integers(1, 200))
    def test_evenly_keeps_order_and_bounds(self, count, wanted):
        chosen = evenly(count, min(count, wanted))
        assert (np.diff(chosen) > 0).all()
        assert 0 <= chosen[0] <= chosen[-1] < count
        assert (
            np.diff(chosen).max(initial=1) - np.diff(chosen).min(initial=1) <= count // wanted + 1
        )

    def test_spread_keeps_clips_whole_with_their_times(self):
        view = see(make_video(range(9)), max_clips=3)
        assert view.rows.tolist() == [[101] * 4, [104] * 4, [107] * 4]
        assert view.start_seconds.tolist() == [2.5, 8.5, 14.5]
        assert view.end_seconds.tolist() == [4.5, 10.5, 16.5]
        assert view.spread(3) is view
        assert view.spread(5) is view

    def test_a_picture_on_long_display_does_not_stop_the_clock(self):
        # Times are those of the grid: nothing but the clips' starts and the rate is needed.
        view = see(make_video(range(2)), frames_per_clip=1)
        assert np.diff(view.start_seconds).tolist() == [0.5] * 7
        assert (view.start_seconds[1:] == view.end_seconds[:-1]).all()

    def test_an_empty_video_has_an_empty_view(self):
        video = make_video(range(3))
        none = CachedVideo(
            video_id="v",
            rows=video.rows[:0],
            clip_index=video.clip_index[:0],
            start_seconds=video.start_seconds[:0],
            end_seconds=video.end_seconds[:0],
            num_frames=video.num_frames[:0],
        )
        for spec in ({}, {"fps": 1.0}, {"input": "center"}, {"policy": "uniform", "num_frames": 3}):
            assert len(see(none, **spec)) == 0
