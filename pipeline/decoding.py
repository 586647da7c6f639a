"""Decode one piece of a video in decoder processes: clips of pixels, and how it went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.jail import DecoderProcess, Exchange
from pipeline.sampling import PictureClip, Sampled, SampledFrame, assemble_clips
from pipeline.slots import PREVIEW, FrameArrays, SlotLayout, read_slot
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import MAX_PREVIEW_ASPECT, Recipe

Order = Literal["selected", "all", "sorted", "decord", "ffmpeg"]
"""How a video is decoded. By PyAV: only what is wanted, every frame, every frame twice to sort
them. Or by another backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
    """The pixels of one clip."""

    clip_index: int
    num_frames: int
    """Frames that are not fill."""
    start_seconds: float
    end_seconds: float
    times: npt.NDArray[np.float64]
    """(T, 2) seconds of display."""
    frames: dict[str, npt.NDArray[np.uint8]]
    """Stream -> (T, H, W, 3)."""
    preview: npt.NDArray[np.uint8] | None
    """(T, H, W, 3), small."""
    corrupt: bool
    """Decoding met damage since the clip before."""
    shape: dict[str, int]
    """Fields of `pixels.Shape`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutcome:
    """How decoding a piece went; the last thing that is given."""

    num_frames_decoded: int
    num_decode_errors: int
    corrupt: bool


class StartAgain(Exception):
    """What was given so far is void: decode in another order."""

    def __init__(self, order: Order, why: str) -> None:
        super().__init__(order, why)
        self.order: Order = order
        self.why = why


@dataclass(frozen=True, slots=True)
class _Picture:
    """A sampled frame as the decoder process gave it."""

    arrays: FrameArrays
    shape: dict[str, int]
    num_problems: int
    """Damage that decoding had met by then."""


class Decoding:
    """A piece in the hands of decoder processes, which have begun."""

    def __init__(
        self,
        piece: Piece,
        *,
        path: str,
        recipe: Recipe,
        sizes: Mapping[str, tuple[int, int]],
        processes: Sequence[DecoderProcess],
        order: Order = "selected",
    ) -> None:
        """`sizes` is stream -> (width, height); all of `processes` are idle.

        Several processes share the work in the order "selected"; otherwise there must be one.
        """
        self._piece = piece
        self._order = order
        self._frames_per_clip = recipe.sampling.frames_per_clip
        picture_bytes = {name: 3 * width * height for name, (width, height) in sizes.items()}
        if recipe.preview.enabled:
            picture_bytes[PREVIEW] = int(3 * MAX_PREVIEW_ASPECT * recipe.preview.height**2)
        self._layout = SlotLayout.of(picture_bytes)
        request = {
            "kind": "decode",
            "path": path,
            "max_pixels": recipe.limits.max_pixels,
            "max_duration_seconds": recipe.limits.max_duration_seconds,
            "window": _window(piece, recipe),
            "sizes": {name: list(size) for name, size in sizes.items()},
            "preview_height": recipe.preview.height if recipe.preview.enabled else None,
            "picture_bytes": picture_bytes,
            "order": order,
            "num_parts": len(processes),
        }
        self._done: list[dict[str, Any]] = []
        self._num_problems = 0
        self._exchanges: list[Exchange] = []
        try:
            for part, process in enumerate(processes):
                exchange = process.start(
                    request | {"part": part},
                    duration_seconds=piece.duration_seconds,
                    shared_bytes=self._layout.num_bytes,
                )
                self._exchanges.append(exchange)
        except BaseException:
            self.close()
            raise

    def clips(self) -> Iterator[ClipFrames | DecodeOutcome]:
        """The clips of the piece in order, then one DecodeOutcome.

        VideoError: the video cannot be decoded, and what was given so far may not be complete.
        StartAgain: see there.
        """
        # Damage ahead of a later piece is that of the pieces before. Sorting decodes all before the
        # first clip: then damage is that of the video.
        before = None if self._piece.first_clip and self._order != "sorted" else 0
        try:
            for clip in assemble_clips(self._samples(), frames_per_clip=self._frames_per_clip):
                if before is None:
                    before = clip.samples[0].picture.num_problems
                seen = self._num_problems  # up to the first sample of the next clip, or the end
                yield _to_clip_frames(clip, corrupt=seen > before)
                before = 0 if self._order == "sorted" else seen
        finally:
            self.close()
        yield DecodeOutcome(
            num_frames_decoded=sum(answer["num_frames_decoded"] for answer in self._done),
            num_decode_errors=sum(answer["num_decode_errors"] for answer in self._done),
            corrupt=any(answer["num_problems"] for answer in self._done),
        )

    def close(self) -> None:
        """Give up what is not done; closing twice is fine."""
        for exchange in self._exchanges:
            exchange.abandon()

    def _samples(self) -> Sampled[_Picture]:
        answers = [_answers(exchange) for exchange in self._exchanges]
        stops: list[int | None] = [None]
        if self._order == "selected":
            schedules = [_take(those, "schedule") for those in answers]
            stops = schedules[0]["stops"]
        for segment, stop in enumerate(stops):
            part = segment % len(answers)
            sample: SampledFrame[_Picture] | None = None
            while sample is None or sample.k + 1 != stop:
                answer = next(answers[part])
                if answer["kind"] == "done":
                    self._done.append(answer)
                    break
                with _as_crash(self._exchanges[part]):
                    sample = self._read_sample(answer, self._exchanges[part], previous=sample)
                yield sample
        if self._order == "selected":
            self._done = [_take(those, "done") for those in answers]
        self._num_problems = self._done[0]["num_problems"]
        return float(self._done[0]["end_seconds"])

    def _read_sample(
        self,
        answer: dict[str, Any],
        exchange: Exchange,
        *,
        previous: SampledFrame[_Picture] | None,
    ) -> SampledFrame[_Picture]:
        self._num_problems = answer["num_problems"]
        slot = answer["slot"]
        if slot is not None:
            memory = exchange.process.memory
            arrays = read_slot(memory, self._layout, slot, answer["pictures"])
            exchange.send({"kind": "free", "slot": slot})
            picture = _Picture(arrays, answer["shape"], self._num_problems)
        elif previous is not None:
            picture = replace(previous.picture, num_problems=self._num_problems)
        else:
            raise LookupError("no frame to show again")
        return SampledFrame(
            k=answer["k"],
            grid_seconds=answer["grid_seconds"],
            start_seconds=answer["start_seconds"],
            end_seconds=answer["end_seconds"],
            picture=picture,
        )


@contextlib.contextmanager
def _as_crash(exchange: Exchange) -> Iterator[None]:
    # A process that hostile input has taken over may say anything.
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        exchange.kill()
        raise VideoError("crashed", f"the decoder process sent nonsense: {error}") from error


def _answers(exchange: Exchange) -> Iterator[dict[str, Any]]:
    for answer, _ in exchange.answers():
        if answer["kind"] == "start_again":
            raise StartAgain(answer["order"], answer["why"])
        yield answer


def _take(answers: Iterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    answer = next(answers)
    if answer["kind"] != kind:
        raise LookupError(f"{answer['kind']} and not {kind}")
    return answer


def _window(piece: Piece, recipe: Recipe) -> dict[str, Any]:
    n = recipe.sampling.frames_per_clip
    return {
        "fps": recipe.sampling.fps,
        "start_seconds": piece.start_seconds,
        "end_seconds": piece.end_seconds,
        "first_k": piece.first_clip * n,
        "stop_k": None if piece.is_last else (piece.first_clip + piece.num_clips) * n,
    }


def _to_clip_frames(clip: PictureClip[_Picture], *, corrupt: bool) -> ClipFrames:
    pictures = [sample.picture for sample in clip.samples]
    joined = {
        name: np.stack([picture.arrays[name] for picture in pictures])
        for name in pictures[0].arrays
        if name != PREVIEW
    }
    previews = [picture.arrays[PREVIEW] for picture in pictures if PREVIEW in picture.arrays]
    return ClipFrames(
        clip_index=clip.clip_index,
        num_frames=clip.num_frames,
        start_seconds=clip.start_seconds,
        end_seconds=clip.end_seconds,
        times=np.array([[s.start_seconds, s.end_seconds] for s in clip.samples], np.float64),
        frames=joined,
        preview=np.stack([_like(p, previews[0]) for p in previews]) if previews else None,
        corrupt=corrupt,
        shape=pictures[0].shape,
    )


def _like(
    preview_HWC: npt.NDArray[np.uint8], first_HWC: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    # The picture's size may change in the middle of a video.
    if preview_HWC.shape == first_HWC.shape:
        return preview_HWC
    height, width, _ = first_HWC.shape
    image = Image.fromarray(preview_HWC)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
