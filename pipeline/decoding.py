"""Decode one piece of a video in decoder processes: clips of pixels, and how it went."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.answers import Nonsense, mapping, number, text, whole, wholes
from pipeline.jail import DecoderProcess, Exchange
from pipeline.sampling import PictureClip, Sampled, SampledFrame, assemble_clips
from pipeline.slots import PREVIEW, FrameArrays, SlotLayout, read_slot
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import MAX_PREVIEW_ASPECT, Recipe
from schemas.resize import PictureSpec
from schemas.settings import to_mapping

Order = Literal["decord", "ffmpeg", "selected", "all", "sorted"]
"""How a video is decoded: by another backend; or by PyAV, only what is wanted, every frame, or
every frame twice to sort them. Each may hand over to a later one."""
Taken = TypeVar("Taken")
_ORDERS: tuple[Order, ...] = get_args(Order)
MAX_FRAME_RATE = 1000.0
"""Frames a second of a video of which every frame is taken, at most."""
_SHAPE = ("source_width", "source_height", "display_width", "display_height")


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
    complaint: str
    """The last that libav had to say, of one process."""


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


@dataclass(frozen=True, slots=True)
class _Done:
    """How one process's share went."""

    end_seconds: float
    num_frames_decoded: int
    num_decode_errors: int
    num_problems: int
    complaint: str

    @classmethod
    def of(cls, answer: dict[str, Any]) -> _Done:
        if answer["kind"] != "done":
            raise Nonsense(f"{answer['kind']} and not done")
        return cls(
            end_seconds=number(answer, "end_seconds"),
            num_frames_decoded=whole(answer, "num_frames_decoded"),
            num_decode_errors=whole(answer, "num_decode_errors"),
            num_problems=whole(answer, "num_problems"),
            complaint=text(answer, "complaint"),
        )


class Decoding:
    """A piece in the hands of decoder processes, which have begun."""

    def __init__(
        self,
        piece: Piece,
        *,
        path: str,
        recipe: Recipe,
        pictures: Mapping[str, PictureSpec],
        processes: Sequence[DecoderProcess],
        order: Order = "selected",
        every_frame: bool = False,
    ) -> None:
        """`pictures` is stream -> what it takes; all of `processes` are idle.

        Several processes share the work in the order "selected"; otherwise there must be one.
        `every_frame` is for whole videos: every frame is a sample, and comes once.
        """
        self._piece = piece
        self._order = order
        self._specs = dict(pictures)
        self._preview_height = recipe.preview.height if recipe.preview.enabled else None
        self._frames_per_clip = recipe.sampling.frames_per_clip
        self._next_k = piece.first_clip * self._frames_per_clip
        rate = MAX_FRAME_RATE if every_frame else recipe.sampling.fps
        self._stop_k = int(recipe.limits.max_duration_seconds * rate) + 2
        picture_bytes = {name: spec.num_bytes for name, spec in pictures.items()}
        if recipe.preview.enabled:
            picture_bytes[PREVIEW] = int(3 * MAX_PREVIEW_ASPECT * recipe.preview.height**2)
        self._layout = SlotLayout.of(picture_bytes)
        request = {
            "kind": "decode",
            "path": path,
            "max_pixels": recipe.limits.max_pixels,
            "max_duration_seconds": recipe.limits.max_duration_seconds,
            "window": _window(piece, recipe) | {"every_frame": every_frame},
            "pictures": {name: to_mapping(spec) for name, spec in pictures.items()},
            "preview_height": self._preview_height,
            "picture_bytes": picture_bytes,
            "order": order,
            "num_parts": len(processes),
        }
        self._done: list[_Done] = []
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
            num_frames_decoded=sum(done.num_frames_decoded for done in self._done),
            num_decode_errors=sum(done.num_decode_errors for done in self._done),
            corrupt=any(done.num_problems for done in self._done),
            complaint=self._done[-1].complaint,
        )

    def close(self) -> None:
        """Give up what is not done; closing twice is fine."""
        for exchange in self._exchanges:
            exchange.abandon()

    def kill(self) -> None:
        """End the children that were at it, but for those that have gone on to other work."""
        for exchange in self._exchanges:
            exchange.kill()

    def _samples(self) -> Sampled[_Picture]:
        answers = [_answers(exchange, self._order) for exchange in self._exchanges]
        stops: list[int] | None = None
        if self._order == "selected":
            schedules = [self._take(part, answers, _stops) for part in range(len(answers))]
            stops = schedules[0]
        for segment, stop in enumerate([None] if stops is None else stops):
            part = segment % len(answers)
            sample: SampledFrame[_Picture] | None = None
            while sample is None or sample.k + 1 != stop:
                answer = self._take(part, answers, lambda answer: answer)
                if answer["kind"] == "done" and stop is None:
                    with _as_crash(self._exchanges[part]):
                        self._done.append(_Done.of(answer))
                    break
                with _as_crash(self._exchanges[part]):
                    sample = self._read_sample(answer, self._exchanges[part], previous=sample)
                yield sample
        if stops is not None:
            self._done = [self._take(part, answers, _Done.of) for part in range(len(answers))]
        self._num_problems = self._done[0].num_problems
        return self._done[0].end_seconds

    def _take(
        self,
        part: int,
        answers: Sequence[Iterator[dict[str, Any]]],
        read: Callable[[dict[str, Any]], Taken],
    ) -> Taken:
        # The next answer of one process.
        with _as_crash(self._exchanges[part]):
            answer = next(answers[part], None)
            if answer is None:
                raise Nonsense("the last answer comes early")
            return read(answer)

    def _read_sample(
        self,
        answer: dict[str, Any],
        exchange: Exchange,
        *,
        previous: SampledFrame[_Picture] | None,
    ) -> SampledFrame[_Picture]:
        if answer["kind"] != "sample":
            raise Nonsense(f"{answer['kind']} and not a sample")
        k = whole(answer, "k")
        if k != self._next_k:
            raise Nonsense(f"sample {k} and not {self._next_k}")
        if k >= self._stop_k:
            raise Nonsense(f"more samples than {self._stop_k}, as many as a video may have")
        self._next_k = k + 1
        self._num_problems = whole(answer, "num_problems")
        if answer.get("slot") is not None:
            slot = whole(answer, "slot")
            shapes = self._read_shapes(mapping(answer, "pictures"))
            try:
                arrays = read_slot(exchange.process.memory, self._layout, slot, shapes)
            except ValueError as error:
                raise Nonsense(str(error)) from error
            exchange.send({"kind": "free", "slot": slot})
            picture = _Picture(arrays, _read_shape(answer), self._num_problems)
        elif previous is not None:
            picture = replace(previous.picture, num_problems=self._num_problems)
        else:
            raise Nonsense("no frame to show again")
        return SampledFrame(
            k=k,
            grid_seconds=number(answer, "grid_seconds"),
            start_seconds=number(answer, "start_seconds"),
            end_seconds=number(answer, "end_seconds"),
            picture=picture,
        )

    def _read_shapes(self, pictures: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shapes = {name: tuple(wholes(pictures, name)) for name in pictures}
        expected: dict[str, tuple[int, ...]] = {
            name: (spec.height, spec.width, 3) for name, spec in self._specs.items()
        }
        if self._preview_height is not None:
            width = shapes.get(PREVIEW, ())[1:2]
            expected[PREVIEW] = (self._preview_height, *width, 3)
        if shapes != expected:
            raise Nonsense(f"pictures of {shapes} and not {expected}")
        return shapes


def _read_shape(answer: dict[str, Any]) -> dict[str, int]:
    shape = mapping(answer, "shape")
    read = {name: whole(shape, name, least=1) for name in _SHAPE}
    return read | {"rotation": whole(shape, "rotation", least=-180)}


def _stops(answer: dict[str, Any]) -> list[int]:
    if answer["kind"] != "schedule":
        raise Nonsense(f"{answer['kind']} and not a schedule")
    return wholes(answer, "stops")


@contextlib.contextmanager
def _as_crash(exchange: Exchange) -> Iterator[None]:
    # A process that hostile input has taken over may say anything.
    try:
        yield
    except Nonsense as error:
        exchange.kill()
        raise VideoError("crashed", f"the decoder process sent nonsense: {error}") from error


def _answers(exchange: Exchange, order: Order) -> Iterator[dict[str, Any]]:
    for answer, _ in exchange.answers():
        if answer["kind"] == "start_again":
            later = _ORDERS[_ORDERS.index(order) + 1 :]
            chosen = text(answer, "order")
            for one in later:
                if chosen == one:
                    raise StartAgain(one, text(answer, "why"))
            raise Nonsense(f"to start again as {chosen!r} after {order!r}")
        yield answer


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
