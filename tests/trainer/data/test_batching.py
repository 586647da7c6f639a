"""make_batch beside a reference that goes token by token and clip by clip."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.batch import Batch
from trainer.data.batching import RowItem, frames_of, make_batch, takes_sound_away
from trainer.data.clip_reader import CachedClips
from trainer.data.rendering import Rendered
from trainer.data.video_view import VideoView

F, K, A = 4, 3, 2


def rendered_of(rng: np.random.Generator, *, clips: list[int]) -> Rendered:
    """Made up: text, each clip after a word of its own, and text that is partly supervised."""
    supervised: list[bool] = [False] * int(rng.integers(1, 4))
    spans, slots = [], []
    for _ in clips:
        first = len(supervised)
        supervised += [False] * (1 + K + A)
        slots.append(first + 1)
        spans.append([first, len(supervised)])
        supervised += [False] * int(rng.integers(0, 2))
    supervised += (rng.random(int(rng.integers(1, 6))) < 0.5).tolist()
    said = [i for i, one in enumerate(supervised) if one]
    first_C1 = np.array(slots, dtype=np.int64)[:, None]
    return Rendered(
        ids_L=rng.integers(0, 1000, len(supervised)),
        supervised_L=np.array(supervised, dtype=np.bool_),
        clips_C=np.array(clips, dtype=np.int64),
        clip_slots_CK=first_C1 + np.arange(K),
        audio_slots_CA=first_C1 + K + np.arange(A),
        clip_span_C2=np.array(spans, dtype=np.int64).reshape(-1, 2),
        prompt_length=said[0] if said else len(supervised),
    )


def view_of(rng: np.random.Generator, *, num_clips: int) -> VideoView:
    """Clips of two seconds, on a clock that begins later than the video's."""
    starts = 2.0 * np.arange(num_clips) - 3.0
    return VideoView(
        video_id="v",
        rows=rng.integers(-1, 50, (num_clips, F)),
        frames=rng.integers(0, F, (num_clips, F)),
        start_seconds=starts,
        end_seconds=starts + 2.0,
        origin_seconds=float(rng.integers(0, 3)),
    )


@st.composite
def rows(draw: st.DrawFn) -> list[RowItem]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    items = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["text", "nothing seen", "video", "span"]))
        view = None if kind == "text" else view_of(rng, num_clips=5 * (kind != "nothing seen"))
        clips: list[int] = []
        if view is not None and len(view):
            # Also out of order, twice, and of some only.
            clips = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
        items.append(
            RowItem(
                id=f"i{number}",
                rendered=rendered_of(rng, clips=clips),
                view=view,
                answer_span=(-5.0, 1.5) if kind == "span" else None,
            )
        )
    return items


def clips_of(items: list[RowItem], *, with_audio: bool = True) -> CachedClips:
    """Values by which a frame is known."""
    rows_CF, _ = frames_of(items, frames_per_clip=F)
    C = len(rows_CF)
    begins = np.concatenate(
        [i.shown.start_seconds + i.shown.origin_seconds for i in items if i.shown is not None]
        or [np.zeros(0)]
    )
    starts = torch.from_numpy(begins[:, None] + 0.5 * np.arange(F) + 0.01)
    mask = torch.from_numpy(rows_CF >= 0)
    return CachedClips(
        features={"image": torch.arange(C * F).view(C, F, 1, 1, 1).half()},
        scales={},
        frame_mask=mask,
        frame_times=torch.stack([starts, starts + 0.5], dim=2) * mask[:, :, None],
        audio=torch.ones(C, A, 2).half() if with_audio else None,
        audio_mask=torch.ones(C, A, dtype=torch.bool) if with_audio else None,
    )


def batch_of(items: list[RowItem], *, with_audio: bool = True, sound_off=()) -> Batch:
    _, frames_CF = frames_of(items, frames_per_clip=F)
    clips = clips_of(items, with_audio=with_audio)
    return make_batch(items, clips, frames_CF=frames_CF, sound_off=sound_off)


def tokens_of(items: list[RowItem]) -> Iterator[tuple[int, RowItem, int]]:
    """(position in the row, item, position in the item)."""
    position = 0
    for item in items:
        for place in range(len(item.rendered)):
            yield position, item, place
            position += 1


def shown_clips(items: list[RowItem]) -> Iterator[tuple[int, int, RowItem, int, int]]:
    """(number of the item, its first position, item, clip in its text, clip of its view)."""
    first = 0
    for number, item in enumerate(items):
        for place, clip in enumerate(item.rendered.clips_C.tolist()):
            yield number, first, item, place, clip
        first += len(item.rendered)


@given(rows())
def test_tokens_are_those_of_the_items_in_turn(items: list[RowItem]) -> None:
    batch = batch_of(items)
    expected = list(tokens_of(items))
    assert batch.input_ids_L.tolist() == [item.rendered.ids_L[i] for _, item, i in expected]
    assert batch.position_ids_L.tolist() == [i for _, _, i in expected]
    assert batch.item_ids == tuple(item.id for item in items)
    # The first token of an item is predicted by nothing, least of all by the item before.
    targets = {
        position - 1: item.rendered.ids_L[i]
        for position, item, i in expected
        if i > 0 and item.rendered.supervised_L[i]
    }
    assert dict(zip(batch.predict_S.tolist(), batch.targets_S.tolist(), strict=True)) == targets
    assert len(batch.predict_S) == len(targets) == batch.num_targets


@given(rows())
def test_clips_are_where_their_items_say(items: list[RowItem]) -> None:
    batch = batch_of(items)
    assert batch.audio_slots_CA is not None
    shown = list(shown_clips(items))
    assert len(shown) == len(batch.clip_slots_CK) == len(batch.clip_item_C)
    rows_CF, frames_CF = frames_of(items, frames_per_clip=F)
    for c, (number, first, item, place, clip) in enumerate(shown):
        rendered, view = item.rendered, item.view
        assert view is not None
        slots = [first + slot for slot in rendered.clip_slots_CK[place].tolist()]
        assert batch.clip_slots_CK[c].tolist() == slots
        assert batch.audio_slots_CA[c].tolist() == [slots[-1] + 1 + a for a in range(A)]
        assert batch.clip_span_C2[c].tolist() == [slots[0] - 1, slots[-1] + A + 1]
        assert batch.clip_item_C[c] == number
        assert rows_CF[c].tolist() == view.rows[clip].tolist()
        assert frames_CF[c].tolist() == batch.frames_taken_CF[c].tolist()
        assert frames_CF[c].tolist() == view.frames[clip].tolist()
        # Of five clips that touch.
        assert batch.clip_place_C[c].item() == pytest.approx((clip + 0.5) / 5)
        for f, row in enumerate(view.rows[clip].tolist()):
            expected = 0.5 * f + 0.01 if row >= 0 else 0.0
            assert batch.frame_seconds_CF[c, f].item() == pytest.approx(expected, abs=1e-6)


@given(rows(), st.data())
def test_sound_is_taken_from_the_items_that_are_named(items, data) -> None:
    off = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    clips = clips_of(items)
    assert clips.audio_mask is not None
    batch = make_batch(
        items, clips, frames_CF=frames_of(items, frames_per_clip=F)[1], sound_off=off
    )
    assert batch.audio_mask_CA is not None
    expected = [[not off[number]] * A for number, *_ in shown_clips(items)]
    assert batch.audio_mask_CA.tolist() == expected
    assert clips.audio_mask.all()  # that which was read is left as it is
    assert batch.audio_CAD is clips.audio


@given(rows())
def test_the_head_is_asked_where_the_answer_begins(items: list[RowItem]) -> None:
    batch = batch_of(items)
    assert batch.head_positions_R is not None and batch.head_targets_R2 is not None
    positions, first = [], 0
    for item in items:
        if item.answer_span is not None and item.rendered.supervised_L.any():
            positions.append(first + int(np.argmax(item.rendered.supervised_L)) - 1)
        first += len(item.rendered)
    assert batch.head_positions_R.tolist() == positions
    # Ten seconds from -3 on; what begins before is cut.
    expected = np.tile([0.0, 0.45], (len(positions), 1))
    np.testing.assert_allclose(batch.head_targets_R2.numpy(), expected, atol=1e-6)


def test_nothing_of_features_is_copied() -> None:
    rng = np.random.default_rng(0)
    view = view_of(rng, num_clips=2)
    items = [RowItem(id="i", rendered=rendered_of(rng, clips=[0, 1]), view=view)]
    clips = clips_of(items, with_audio=False)
    batch = make_batch(items, clips, frames_CF=frames_of(items, frames_per_clip=F)[1])
    assert batch.features["image"].data_ptr() == clips.features["image"].data_ptr()
    assert (batch.audio_CAD, batch.audio_mask_CA, batch.audio_slots_CA) == (None, None, None)


def test_sound_is_taken_away_as_often_as_is_said_and_every_time_the_same() -> None:
    def taken(**changes: float) -> list[bool]:
        spec = {"seed": 0, "epoch": 0, "probability": 0.3} | changes
        return [takes_sound_away(f"i{i}", **spec) for i in range(4000)]

    assert taken() == taken()
    assert abs(np.mean(taken()) - 0.3) < 0.03
    for other in ({"seed": 1}, {"epoch": 1}):
        both = np.mean(np.array(taken()) & np.array(taken(**other)))
        assert abs(both - 0.09) < 0.02
    assert not any(taken(probability=0.0))
    assert all(taken(probability=1.0))
