"""Segments: bytes of tars, each with its place in memory; read with as few calls as will do.

What lies between two segments that are near each other is read too, to where it does no harm: that
takes less than another call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.open_tars import MAX_VIEWS, OpenTars

Numbers = npt.NDArray[np.int64]

MAX_BYTES = 64 << 20
"""About what one call reads at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """S stretches of bytes."""

    visit: Numbers
    """(S,): which visit of a sample it is for; visits are numbered in the order of reading."""
    offset: Numbers
    """(S,): in the tar."""
    num_bytes: Numbers
    """(S,): at least 1."""
    place: Numbers
    """(S,): where they go, in bytes from the begin of the memory."""

    @classmethod
    def join(cls, parts: Sequence[Segments]) -> Segments:
        """All of them."""
        return cls(
            visit=np.concatenate([part.visit for part in parts]),
            offset=np.concatenate([part.offset for part in parts]),
            num_bytes=np.concatenate([part.num_bytes for part in parts]),
            place=np.concatenate([part.place for part in parts]),
        )

    def in_order(self) -> Segments:
        """Visit by visit and forward in each; those that touch in tar and memory are made one."""
        order = np.lexsort((self.offset, self.visit))
        visit, offset = self.visit[order], self.offset[order]
        num_bytes, place = self.num_bytes[order], self.place[order]
        touch = (
            (visit[1:] == visit[:-1])
            & (offset[1:] == offset[:-1] + num_bytes[:-1])
            & (place[1:] == place[:-1] + num_bytes[:-1])
        )
        first = np.concatenate([[0], np.flatnonzero(~touch) + 1])
        return Segments(
            visit=visit[first],
            offset=offset[first],
            num_bytes=np.add.reduceat(num_bytes, first),
            place=place[first],
        )


def read_segments(
    segments: Segments,
    memory: memoryview,
    *,
    tars: OpenTars,
    shard_names: Sequence[str],
    shard_of_visit: Numbers,
    spare: tuple[int, int],
) -> int | None:
    """Read them: None, or the first visit that its tar ends in.

    `spare` is (place, bytes) of memory for what lies between, and so bounds what counts as near.
    CacheDamaged: a tar cannot be read.
    """
    if not len(segments.visit):
        return None
    segments = segments.in_order()
    offset, num_bytes, place = segments.offset, segments.num_bytes, segments.place
    shard = shard_of_visit[segments.visit]
    gap = np.zeros_like(offset)
    gap[1:] = offset[1:] - (offset[:-1] + num_bytes[:-1])
    filled = np.cumsum(num_bytes) // MAX_BYTES
    near = (gap >= 0) & (gap <= spare[1])
    near[1:] &= (shard[1:] == shard[:-1]) & (filled[1:] == filled[:-1])
    near[0] = False
    gap[~near] = 0
    # Each segment is one view of the memory, and a gap before it another.
    starts = np.stack([np.full_like(place, spare[0]), place], axis=1).ravel()
    sizes = np.stack([gap, num_bytes], axis=1).ravel()
    kept = sizes > 0
    starts, sizes = starts[kept], sizes[kept]
    views = [
        memory[start:stop]
        for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    ]
    reached = np.cumsum(sizes)
    first = np.flatnonzero(~near)
    num_views = 1 + (gap > 0)
    first_view = (np.cumsum(num_views) - num_views)[first]
    stop_view = np.append(first_view[1:], len(views))
    runs = zip(
        shard[first].tolist(),
        offset[first].tolist(),
        first_view.tolist(),
        stop_view.tolist(),
        strict=True,
    )
    for number, (code, position, begin, end) in enumerate(runs):
        for start in range(begin, end, MAX_VIEWS):
            stop = min(start + MAX_VIEWS, end)
            wanted = int(reached[stop - 1] - reached[start] + sizes[start])
            count = tars.read_into(shard_names[code], views[start:stop], offset=position)
            if count < wanted:
                # Those before `first[number]` belong to runs before.
                short = offset[first[number] :] + num_bytes[first[number] :] > position + count
                return int(segments.visit[first[number] + int(np.argmax(short))])
            position += wanted
    return None
