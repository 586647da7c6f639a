"""DecodeAhead: decodes the pieces of a shard in order, and keeps idle processes busy with the next.

What decoder processes do ahead is bounded by their slots: they wait when those are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order
from pipeline.jail import DecoderProcess
from pipeline.local_files import check_unchanged, content_sha256, size_and_time, to_path
from pipeline.pool import DecoderPool
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.resize import PictureSpec

LONG_SECONDS = 60.0
"""A piece of more is worth all processes; shorter ones are decoded side by side."""


@dataclass(slots=True)
class _Started:
    """A piece that was begun, or could not be."""

    decoding: Decoding | None
    error: VideoError | None
    file_state: tuple[int, int]
    """Bytes and time of the file when it was begun."""

    def check_unchanged(self, piece: Piece, *, cause: VideoError | None = None) -> None:
        """VideoError: source_changed."""
        check_unchanged(piece.uri, self.file_state, cause=cause)


class DecodeAhead:
    """The clips of pieces, taken piece by piece in their order; a context manager."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        recipe: Recipe,
        pictures: Mapping[str, PictureSpec],
        pool: DecoderPool,
    ) -> None:
        self._waiting = list(reversed(pieces))
        self._recipe = recipe
        self._pictures = pictures
        self._pool = pool
        self._started: dict[int, _Started] = {}

    def __enter__(self) -> DecodeAhead:
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started.values():
            if started.decoding is not None:
                started.decoding.close()

    def clips(
        self, piece: Piece, *, order: Order | None = None
    ) -> Iterator[ClipFrames | DecodeOutcome]:
        """The clips of the next piece; with an order, of the same piece once more.

        VideoError: of `Decoding.clips`, and source_changed. StartAgain.
        """
        if order is None:
            self._fill()
            started = self._started.pop(id(piece))
        else:
            started = self._start(piece, order, self._pool.idle()[:1])
            self._fill()
        if started.error is not None:
            raise started.error
        assert started.decoding is not None
        try:
            for clip in started.decoding.clips():
                if isinstance(clip, DecodeOutcome):
                    started.check_unchanged(piece)
                    self._fill()
                yield clip
        except VideoError as error:
            if error.reason == "crashed":
                started.decoding.kill()  # whatever killed one may be at the others
            started.check_unchanged(piece, cause=error)
            raise
        finally:
            started.decoding.close()

    def _fill(self) -> None:
        # Give the idle processes something to do.
        while self._waiting and (processes := self._pool.idle()):
            piece = self._waiting[-1]
            order = first_order(piece, self._recipe)
            if order == "selected" and self._seconds(piece) > LONG_SECONDS:
                if len(processes) < len(self._pool.processes):
                    return
            elif order != "selected" or len(self._waiting) > 1:
                processes = processes[:1]
            self._waiting.pop()
            self._started[id(piece)] = self._start(piece, order, processes)

    def _seconds(self, piece: Piece) -> float:
        sampling = self._recipe.sampling
        return piece.num_clips * sampling.frames_per_clip / sampling.fps

    def _start(self, piece: Piece, order: Order, processes: Sequence[DecoderProcess]) -> _Started:
        state = (0, 0)
        try:
            path = checked_path(piece)
            state = size_and_time(piece.uri)
        except VideoError as error:
            return _Started(None, error, state)
        decoding = Decoding(
            piece,
            path=path,
            recipe=self._recipe,
            pictures=self._pictures,
            processes=processes,
            order=order,
        )
        return _Started(decoding, None, state)


def first_order(piece: Piece, recipe: Recipe) -> Order:
    """The order to try first."""
    if piece.times_go_back:
        return "sorted"
    backend = recipe.decode.backend
    return "selected" if backend == "pyav" else backend


def checked_path(piece: Piece) -> str:
    """Where the file of a piece lies. VideoError: it is not there, or has other content."""
    if size_and_time(piece.uri) != (piece.size_bytes, piece.mtime_ns):
        found = content_sha256(piece.uri)
        if found != piece.content_sha256:
            detail = f"planned {piece.content_sha256[:16]}, now {found[:16]}"
            raise VideoError("source_changed", detail)
    return str(to_path(piece.uri))
