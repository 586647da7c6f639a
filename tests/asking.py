"""Ask a decoder process for a probe or for clips, with little to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoders import encoder_spec
from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order, StartAgain
from pipeline.jail import DecoderProcess
from pipeline.probing import probe_source
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.resize import PictureSpec
from schemas.video import Probe, Source
from tests.clips import Clip
from tests.pieces import make_piece

ORDERS: tuple[Order, ...] = ("selected", "all", "sorted")


def recipe_at(fps: float = 1.0, **limits: Any) -> Recipe:
    """The recipe "tiny" at another rate and with other limits."""
    overrides = [f"limits.{name}={value}" for name, value in limits.items()]
    return Recipe.load("tiny", overrides=[f"sampling.fps={fps}", *overrides])


def pictures_of(recipe: Recipe) -> dict[str, PictureSpec]:
    """What the recipe's encoders take."""
    specs = {name: encoder_spec(stream) for name, stream in recipe.streams.items()}
    return {
        name: PictureSpec(width=spec.width, height=spec.height, resize=spec.resize)
        for name, spec in specs.items()
    }


def piece_of(path: Path, *, first_clip: int = 0, num_clips: int | None = None) -> Piece:
    """Some clips of a file, by default all of them."""
    return make_piece(
        str(path),
        "v",
        first_clip=first_clip,
        num_clips=num_clips or 0,
        is_last=num_clips is None,
    )


def start(
    piece: Path | Piece,
    *processes: DecoderProcess,
    recipe: Recipe | None = None,
    order: Order = "all",
) -> Decoding:
    """Begin to decode a file or some clips of it."""
    recipe = recipe or recipe_at()
    piece = piece_of(piece) if isinstance(piece, Path) else piece
    return Decoding(
        piece,
        path=piece.uri,
        recipe=recipe,
        pictures=pictures_of(recipe),
        processes=processes,
        order=order,
    )


def decode(
    piece: Path | Piece,
    *processes: DecoderProcess,
    recipe: Recipe | None = None,
    order: Order = "all",
) -> tuple[list[ClipFrames], DecodeOutcome]:
    """All clips, and how it went, in the order that it takes in the end. VideoError."""
    try:
        given = list(start(piece, *processes, recipe=recipe, order=order).clips())
    except StartAgain as again:
        return decode(piece, processes[0], recipe=recipe, order=again.order)
    clips = [clip for clip in given if isinstance(clip, ClipFrames)]
    [outcome] = [one for one in given if isinstance(one, DecodeOutcome)]
    return clips, outcome


def probe(path: Path, process: DecoderProcess, *, recipe: Recipe | None = None) -> Probe:
    """What can be told of a file without decoding. VideoError: its reject."""
    limits = (recipe or recipe_at()).limits
    probe = probe_source(Source(uri=str(path)), limits=limits, process=process)
    if probe.reject is not None:
        raise VideoError(probe.reject.reason, probe.reject.detail)
    return probe


def assert_usable(process: DecoderProcess, clip: Clip) -> None:
    """Another video is decoded in full."""
    clips, outcome = decode(clip.path, process)
    assert sum(one.num_frames for one in clips) == 5
    assert outcome.num_frames_decoded == len(clip.times)
    assert not outcome.corrupt
