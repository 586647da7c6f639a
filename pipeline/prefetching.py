"""DecodeAhead: decodes the pieces of a shard in order, and keeps idle processes busy with the next.

What decoder processes do ahead is bounded by their slots: they wait when those are full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order
from pipeline.fetching import Fetcher
from pipeline.jail import DecoderProcess
from pipeline.pool import DecoderPool
from pipeline.source_files import check_unchanged, size_and_time
from schemas.errors import ReelcacheError, StorageError, VideoError
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.resize import PictureSpec

LONG_SECONDS = 60.0
"""A piece of more is worth all processes; shorter ones are decoded side by side."""


@dataclass(slots=True)
class _Started:
    """A piece that was begun, or could not be."""

    decoding: Decoding | None
    error: ReelcacheError | None
    path: str = ""
    """On this machine."""
    file_state: tuple[int, int] = (0, 0)
    """Bytes and time of the file when it was begun."""

    def check_unchanged(self, *, cause: VideoError | None = None) -> None:
        """VideoError: source_changed."""
        check_unchanged(self.path, self.file_state, cause=cause)


class DecodeAhead:
    """The clips of pieces, taken piece by piece in their order; a context manager."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        recipe: Recipe,
        pictures: Mapping[str, PictureSpec],
        pool: DecoderPool,
        files: Fetcher | None = None,
        every_frame: bool = False,
    ) -> None:
        """`files` knows the same pieces; each is released when the next one is taken.

        `every_frame` as of `Decoding`.
        """
        self._every_frame = every_frame
        self._files = files or Fetcher()
        self._taken: Piece | None = None
        self._waits_for_file = False
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

        VideoError: of `Decoding.clips` and `Fetcher.path`. StartAgain. StorageError.
        """
        if order is None:
            if self._taken is not None:
                self._files.release(self._taken)
            self._taken = piece
            self._wait_for(piece)
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
                    started.check_unchanged()
                    self._fill()
                elif self._waits_for_file:
                    self._fill()
                yield clip
        except VideoError as error:
            if error.reason == "crashed":
                started.decoding.kill()  # whatever killed one may be at the others
            started.check_unchanged(cause=error)
            raise
        finally:
            started.decoding.close()

    def _fill(self) -> None:
        # Give the idle processes something to do.
        while self._waiting and (processes := self._pool.idle()):
            piece = self._waiting[-1]
            self._waits_for_file = not self._files.is_ready(piece)
            if self._waits_for_file:
                return
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
        try:
            path = self._files.path(piece)
            state = size_and_time(path)
        except (VideoError, StorageError) as error:
            return _Started(None, error)
        decoding = Decoding(
            piece,
            path=path,
            recipe=self._recipe,
            pictures=self._pictures,
            processes=processes,
            order=order,
            every_frame=self._every_frame,
        )
        return _Started(decoding, None, path, state)

    def _wait_for(self, piece: Piece) -> None:
        # What goes wrong comes out when the piece is begun.
        if not self._files.is_ready(piece):
            with contextlib.suppress(VideoError, StorageError):
                self._files.path(piece)


def first_order(piece: Piece, recipe: Recipe) -> Order:
    """The order to try first."""
    if piece.times_go_back:
        return "sorted"
    backend = recipe.decode.backend
    return "selected" if backend == "pyav" else backend
