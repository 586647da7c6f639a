"""Synthetic clips through the decoder process: is it the frame on display, at its own time?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order, StartAgain
from pipeline.jail import DecoderProcess
from pipeline.planning import extend_plan
from pipeline.probing import probe_source
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.timeline import num_clips
from schemas.video import Probe, Source
from tests.asking import pictures_of
from tests.clips import (
    MAKERS,
    Clip,
    ClipShelf,
    UnreadablePicture,
    draw_frame_number,
    encode_clip,
    read_frame_number,
    run_ffmpeg,
    turned_by_matrix,
)
from tests.pieces import make_piece

TIME_TOLERANCE = 2e-6
RATES = ("1", "2", "3.7")
BROKEN = {"truncated.mp4", "truncated.mkv"}
COMMON_MATRICES = {1, 2, 5, 6, 7, 9}
FALLS_BACK = dict.fromkeys(("audio_comes_and_goes.ts", "growing_pictures.ts"), "damaged packets")
"""Joined from parts whose packet counters do not go on."""
WHOLE = sorted(MAKERS.keys() - BROKEN)


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(Recipe.load("tiny").limits) as process:
        yield process


def recipe_at(fps: str, *overrides: str) -> Recipe:
    return Recipe.load("tiny", overrides=[f"sampling.fps={fps}", *overrides])


def piece_of(clip: Clip, recipe: Recipe, **changes: object) -> Piece:
    """The whole clip as one piece, from what is known of it and not from a probe."""
    total = num_clips(
        len(clip.displayed(Fraction(str(recipe.sampling.fps)))), recipe.sampling.frames_per_clip
    )
    piece = make_piece(
        str(clip.path),
        "v",
        duration_seconds=float(clip.end - clip.times[0]),
        truncated=clip.truncated,
        has_audio=clip.has_audio,
        num_clips=total,
    )
    return replace(piece, **changes)  # type: ignore[arg-type]


def start(
    piece: Piece, recipe: Recipe, *processes: DecoderProcess, order: Order = "all"
) -> Decoding:
    return Decoding(
        piece,
        path=piece.uri,
        recipe=recipe,
        pictures=pictures_of(recipe),
        processes=processes,
        order=order,
    )


def decode(
    piece: Piece, recipe: Recipe, *processes: DecoderProcess, order: Order = "all"
) -> tuple[list[ClipFrames], DecodeOutcome]:
    *clips, outcome = start(piece, recipe, *processes, order=order).clips()
    assert isinstance(outcome, DecodeOutcome)
    assert all(isinstance(clip, ClipFrames) for clip in clips)
    return clips, outcome  # type: ignore[return-value]


def probe(clip: Clip, process: DecoderProcess) -> Probe:
    source = Source(uri=str(clip.path))
    return probe_source(source, limits=Recipe.load("tiny").limits, process=process)


def all_pictures(clip: ClipFrames) -> dict[str, npt.NDArray[np.uint8]]:
    assert clip.preview is not None
    return {**clip.frames, "preview": clip.preview}


def numbers_read(clips: list[ClipFrames]) -> list[int]:
    """The frame number of every sample that is not fill; all streams show the same."""
    numbers = []
    for clip in clips:
        for sample in range(clip.num_frames):
            seen = {
                name: read_frame_number(pictures[sample])
                for name, pictures in all_pictures(clip).items()
            }
            assert len(set(seen.values())) == 1, f"the streams show different frames: {seen}"
            numbers.append(next(iter(seen.values())))
    return numbers


def ranges_of(clips: list[ClipFrames]) -> npt.NDArray[np.float64]:
    return np.concatenate([clip.times[: clip.num_frames] for clip in clips])


@pytest.mark.parametrize("order", ["selected", "all"])
@pytest.mark.parametrize("fps", RATES)
@pytest.mark.parametrize("name", WHOLE)
def test_pictures_and_times_are_those_on_display(
    name: str, fps: str, order: Order, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip, recipe = clips[name], recipe_at(fps)
    if not clip.in_order:
        order = "sorted"
    elif order == "selected" and name in FALLS_BACK:
        with pytest.raises(StartAgain) as caught:
            decode(piece_of(clip, recipe), recipe, process, order=order)
        assert (caught.value.order, caught.value.why) == ("all", FALLS_BACK[name])
        return
    decoded, outcome = decode(piece_of(clip, recipe), recipe, process, order=order)
    shown = clip.displayed(Fraction(fps))
    assert numbers_read(decoded) == [clip.numbers[index] for index in shown]
    expected = np.array([clip.display_range(index) for index in shown])
    np.testing.assert_allclose(ranges_of(decoded), expected, rtol=0, atol=TIME_TOLERANCE)
    assert (outcome.num_decode_errors, outcome.corrupt) == (0, False)
    if order == "selected":
        assert len(set(shown)) <= outcome.num_frames_decoded <= len(clip.times)
    else:
        assert outcome.num_frames_decoded == len(clip.times)


@pytest.mark.parametrize("fps", RATES)
@pytest.mark.parametrize("name", WHOLE)
def test_clips_lie_back_to_back(
    name: str, fps: str, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip, recipe = clips[name], recipe_at(fps)
    order: Order = "all" if clip.in_order else "sorted"
    decoded, _ = decode(piece_of(clip, recipe), recipe, process, order=order)
    clip_seconds = recipe.sampling.frames_per_clip / float(fps)
    first = float(clip.times[0])
    bounds = [first + number * clip_seconds for number in range(len(decoded))]
    bounds.append(float(clip.end))
    assert [c.clip_index for c in decoded] == list(range(len(decoded)))
    assert [c.start_seconds for c in decoded] == pytest.approx(bounds[:-1], abs=TIME_TOLERANCE)
    assert [c.end_seconds for c in decoded] == pytest.approx(bounds[1:], abs=TIME_TOLERANCE)
    total = len(clip.displayed(Fraction(fps)))
    n = recipe.sampling.frames_per_clip
    assert [c.num_frames for c in decoded] == [n] * (total // n) + [total % n] * (total % n > 0)
    last = decoded[-1]
    for pictures in (*all_pictures(last).values(), last.times):
        for fill in pictures[last.num_frames :]:
            assert np.array_equal(fill, pictures[last.num_frames - 1])


@pytest.mark.parametrize("name", WHOLE)
def test_a_probe_promises_what_decoding_gives(
    name: str, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip, recipe = clips[name], recipe_at("2")
    found = probe(clip, process)
    assert found.reject is None
    assert found.first_seconds == pytest.approx(float(clip.times[0]), abs=TIME_TOLERANCE)
    assert found.last_seconds == pytest.approx(float(clip.times[-1]), abs=TIME_TOLERANCE)
    assert found.duration_seconds == pytest.approx(
        float(clip.end - clip.times[0]), abs=TIME_TOLERANCE
    )
    assert found.num_packets == len(clip.times)
    assert (found.width, found.height) == (clip.width, clip.height)
    assert found.has_audio == clip.has_audio
    assert not found.truncated
    [spec] = extend_plan([found], recipe=recipe, recipe_fingerprint="", clip_bytes=1, existing=[])
    assert spec.num_clips == num_clips(len(clip.displayed(Fraction(2))), 4)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_what_is_left_of_a_cut_file_has_its_own_times(
    name: str, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip, recipe = clips[name], recipe_at("2")
    found = probe(clip, process)
    assert found.reject is None
    assert found.truncated
    decoded, outcome = decode(piece_of(clip, recipe), recipe, process)
    numbers = numbers_read(decoded)
    whole = clip.displayed(Fraction(2))
    assert 2 < len(numbers) < len(whole)
    assert numbers == whole[: len(numbers)]
    assert outcome.num_frames_decoded < len(clip.times)
    starts = [float(clip.times[number]) for number in numbers]
    np.testing.assert_allclose(ranges_of(decoded)[:, 0], starts, rtol=0, atol=TIME_TOLERANCE)
    assert decoded[-1].end_seconds < float(clip.end)


@pytest.mark.parametrize("name", ["25.mp4", "variable_rate.mp4", "starts_at_10s.ts", "60.mp4"])
def test_pieces_are_slices_of_the_whole(
    name: str, clips: ClipShelf, process: DecoderProcess
) -> None:
    clip, recipe = clips[name], recipe_at("3.7", "sampling.frames_per_clip=3")
    piece = piece_of(clip, recipe)
    whole, _ = decode(piece, recipe, process)
    assert len(whole) >= 5
    for first, stop in ((0, 2), (2, 4), (1, len(whole)), (len(whole) - 1, len(whole))):
        part = replace(piece, first_clip=first, num_clips=stop - first, is_last=stop == len(whole))
        orders: tuple[Order, ...] = ("selected", "all", "sorted")
        for order in orders:
            decoded, _ = decode(part, recipe, process, order=order)
            assert len(decoded) == stop - first
            for got, expected in zip(decoded, whole[first:stop], strict=True):
                assert got.clip_index == expected.clip_index
                assert got.num_frames == expected.num_frames
                assert (got.start_seconds, got.end_seconds) == (
                    expected.start_seconds,
                    expected.end_seconds,
                )
                assert np.array_equal(got.times, expected.times)
                pictures = all_pictures(expected)
                for stream, array in all_pictures(got).items():
                    assert np.array_equal(array, pictures[stream])


def test_the_last_piece_takes_clips_beyond_the_plan(
    plain_clip: Clip, process: DecoderProcess
) -> None:
    recipe = recipe_at("2")
    whole, _ = decode(piece_of(plain_clip, recipe), recipe, process)
    decoded, _ = decode(piece_of(plain_clip, recipe, num_clips=1), recipe, process)
    assert len(decoded) == len(whole) == 3


def test_a_span_is_on_the_clock_of_the_source(clips: ClipShelf, process: DecoderProcess) -> None:
    clip, recipe = clips["starts_at_10s.ts"], recipe_at("2")
    piece = piece_of(clip, recipe, start_seconds=11.21, end_seconds=13.21)
    decoded, _ = decode(piece, recipe, process)
    assert numbers_read(decoded) == [30, 42, 55, 67]  # the frames at 11.20, 11.68, 12.20, 12.68
    [only] = decoded
    assert (only.start_seconds, only.end_seconds) == (11.21, 13.21)


def test_times_that_go_back_need_a_second_start(clips: ClipShelf, process: DecoderProcess) -> None:
    clip, recipe = clips["goes_back.ts"], recipe_at("2")
    piece = piece_of(clip, recipe)
    orders: tuple[Order, ...] = ("selected", "all")
    for order in orders:
        with pytest.raises(StartAgain) as caught:
            decode(piece, recipe, process, order=order)
    assert caught.value.order == "sorted"
    decoded, _ = decode(piece, recipe, process, order="sorted")
    starts = ranges_of(decoded)[:, 0]
    assert (np.diff(starts) >= 0).all()
    assert max(numbers_read(decoded)) >= 50  # the late half is there too


@pytest.mark.parametrize(
    "name", ["rotation_90.mp4", "rotation_180.mp4", "rotation_270.mov", "wide_pixels.mp4"]
)
def test_shape_as_coded_and_as_seen(name: str, clips: ClipShelf, process: DecoderProcess) -> None:
    clip, recipe = clips[name], recipe_at("1")
    decoded, _ = decode(piece_of(clip, recipe), recipe, process)
    shape = decoded[0].shape
    assert (shape["source_width"], shape["source_height"]) == (clip.width, clip.height)
    assert (shape["display_width"], shape["display_height"]) == clip.display_size
    assert shape["rotation"] % 360 == clip.rotation
    width, height = clip.display_size
    assert decoded[0].preview is not None
    _, preview_height, preview_width, _ = decoded[0].preview.shape
    assert preview_height == recipe.preview.height
    assert preview_width == round(preview_height * width / height)


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_a_player_turns_the_same_way(rotation: int, clips: ClipShelf) -> None:
    """The clips themselves: ffmpeg applies the matrix by itself, and the picture is upright."""
    name = next(name for name in MAKERS if name.startswith(f"rotation_{rotation}"))
    clip = clips[name]
    width, height = clip.display_size
    output = run_ffmpeg(
        *("-i", clip.path, "-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "gray", "pipe:1")
    )
    picture = np.frombuffer(output, np.uint8).reshape(height, width)
    assert read_frame_number(picture) == 0
    with pytest.raises(UnreadablePicture):
        read_frame_number(np.rot90(picture, k=-rotation // 90))


def test_an_odd_angle_is_not_applied(
    tmp_path_factory: pytest.TempPathFactory, process: DecoderProcess
) -> None:
    """A matrix can hold 10 degrees: the picture is left as coded."""
    recipe = recipe_at("1")
    folder = tmp_path_factory.mktemp("angle")
    plain = encode_clip(folder / "plain.mp4")
    run_ffmpeg("-display_rotation", "10", "-i", plain.path, "-c", "copy", folder / "turned.mp4")
    clip = replace(plain, path=folder / "turned.mp4")
    decoded, _ = decode(piece_of(clip, recipe), recipe, process)
    assert decoded[0].shape["rotation"] == 0
    assert numbers_read(decoded) == clip.displayed(Fraction(1))


def test_a_quarter_turn_swaps_the_sides_of_odd_sizes(
    tmp_path_factory: pytest.TempPathFactory, process: DecoderProcess
) -> None:
    recipe = recipe_at("1")
    path = tmp_path_factory.mktemp("odd_turn") / "turned.mp4"
    clip = turned_by_matrix(path, rotation=270, width=178, height=142)
    decoded, _ = decode(piece_of(clip, recipe), recipe, process)
    assert numbers_read(decoded) == clip.displayed(Fraction(1))
    shape = decoded[0].shape
    assert (shape["display_width"], shape["display_height"]) == (142, 178)


@pytest.mark.parametrize("rotation", [0, 90])
@pytest.mark.parametrize("aspect", [(1, 1000), (1000, 1), (1, 2**31 - 1), (2**31 - 1, 1)])
def test_pixels_of_absurd_shape_do_no_harm(
    aspect: tuple[int, int], rotation: int, tmp_path: Path, process: DecoderProcess
) -> None:
    wide = encode_clip(
        tmp_path / "wide.mp4", quarter_turns=-rotation // 90, options="-vf setsar=2/1"
    )
    path = tmp_path / "turned.mp4"
    run_ffmpeg("-display_rotation", str(rotation), "-i", wide.path, "-c", "copy", path)
    box = b"pasp" + bytes([0, 0, 0, 2, 0, 0, 0, 1])
    absurd = b"pasp" + b"".join(number.to_bytes(4, "big") for number in aspect)
    assert path.read_bytes().count(box) == 1
    path.write_bytes(path.read_bytes().replace(box, absurd))
    clip, recipe = replace(wide, path=path), recipe_at("1")
    [first, *_], _ = decode(piece_of(clip, recipe), recipe, process)
    assert [read_frame_number(picture) for picture in first.frames["image"]] == [0, 25, 50, 75]
    assert min(first.shape["display_width"], first.shape["display_height"]) >= 1
    assert first.preview is not None
    _, height, width, _ = first.preview.shape
    assert height == 64
    assert 1 <= width <= 4 * height


@pytest.mark.parametrize("matrix", range(19))
def test_a_colour_matrix_that_cannot_be_converted_costs_that_video(
    matrix: int, tmp_path: Path, plain_clip: Clip, process: DecoderProcess
) -> None:
    """By the numbers of H.273; 14 and 15 are in files of Dolby Vision."""
    path = tmp_path / "tagged.mp4"
    tag = f"h264_metadata=matrix_coefficients={matrix}"
    run_ffmpeg("-i", plain_clip.path, "-c", "copy", "-bsf:v", tag, path)
    clip, recipe = replace(plain_clip, path=path), recipe_at("1")
    try:
        decoded, _ = decode(piece_of(clip, recipe), recipe, process)
    except VideoError as error:
        assert error.reason == "unsupported_codec"
        assert matrix not in COMMON_MATRICES
    else:
        assert numbers_read(decoded) == clip.displayed(Fraction(1))


def test_decoding_twice_gives_the_same_bytes(clips: ClipShelf, process: DecoderProcess) -> None:
    for name in ("b_frames.mp4", "truncated.mp4"):
        recipe = recipe_at("3.7")
        piece = piece_of(clips[name], recipe)
        once, outcome = decode(piece, recipe, process)
        again, same_outcome = decode(piece, recipe, process)
        assert outcome == same_outcome
        for one, other in zip(once, again, strict=True):
            assert np.array_equal(one.times, other.times)
            assert one.corrupt == other.corrupt
            for stream, array in all_pictures(one).items():
                assert np.array_equal(array, all_pictures(other)[stream])


def test_no_preview_where_the_recipe_has_none(plain_clip: Clip, process: DecoderProcess) -> None:
    recipe = recipe_at("1", "preview.enabled=false")
    decoded, _ = decode(piece_of(plain_clip, recipe), recipe, process)
    assert all(clip.preview is None for clip in decoded)
    assert {name: array.shape for name, array in decoded[0].frames.items()} == {
        "image": (4, 64, 64, 3),
        "video": (4, 48, 48, 3),
    }


def test_stopping_early_leaves_the_process_usable(
    plain_clip: Clip, process: DecoderProcess
) -> None:
    recipe = recipe_at("25")
    piece = piece_of(plain_clip, recipe)
    clips = start(piece, recipe, process).clips()
    first = next(clips)
    clips.close()  # type: ignore[attr-defined]
    assert isinstance(first, ClipFrames)
    decoded, _ = decode(piece_of(plain_clip, recipe_at("1")), recipe_at("1"), process)
    assert numbers_read(decoded) == plain_clip.displayed(Fraction(1))


@pytest.mark.parametrize("size", [(96, 64), (64, 64), (48, 48), (175, 143), (20, 20)])
def test_the_tests_own_pictures_can_be_read(size: tuple[int, int]) -> None:
    width, height = size
    for number in range(0, 1024, 31):
        assert read_frame_number(draw_frame_number(number, width=width, height=height)) == number
    for level in (0, 128, 255):
        with pytest.raises(UnreadablePicture):
            read_frame_number(np.full((height, width), level, dtype=np.uint8))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_tests_own_pictures_do_not_read_when_turned(turns: int) -> None:
    num_read = 0
    for number in range(1024):
        picture = draw_frame_number(number, width=16, height=16)
        with contextlib.suppress(UnreadablePicture):
            read_frame_number(np.rot90(picture, k=turns))
            num_read += 1
    assert num_read < 50


def test_the_tests_own_rule_is_the_one_of_the_contract(clips: ClipShelf) -> None:
    clip = clips["29.97.mp4"]
    assert clip.displayed(Fraction(1)) == [0, 29, 59, 89, 119]
    assert clip.display_range(29) == pytest.approx((0.967633, 1.001), abs=1e-6)
    assert math.isclose(clip.end, Fraction(125 * 1001, 30000))
