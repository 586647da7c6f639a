"""Extents: where the samples of a cache and their members lie in its tars, as plain arrays.

Taking a row from a table costs as much as reading the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NOWHERE = -1
"""The offset of a member that a sample does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """N samples, in the order of the index."""

    shard_names: list[str]
    shard_codes: npt.NDArray[np.int32]
    """(N,): which of `shard_names`."""
    offsets: npt.NDArray[np.int64]
    """(N,): of a sample's first header in its tar."""
    num_bytes: npt.NDArray[np.int64]
    """(N,): headers and padding included."""
    first_member: npt.NDArray[np.int32]
    """(N + 1,): the members of row n are [first_member[n], first_member[n + 1])."""
    names: list[str]
    """Of members, without the key."""
    name_codes: npt.NDArray[np.int32]
    member_offsets: npt.NDArray[np.int64]
    """Of a member's data in the tar."""
    member_bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, index: pa.Table) -> Extents:
        """Those that an index says."""
        columns = {
            name: index.column(name).combine_chunks()
            for name in ("shard", "offset", "bytes", "member_names")
        }
        shards = columns["shard"].dictionary_encode()
        names = columns["member_names"].flatten().dictionary_encode()
        return cls(
            shard_names=shards.dictionary.to_pylist(),
            shard_codes=shards.indices.to_numpy(),
            offsets=columns["offset"].to_numpy(),
            num_bytes=columns["bytes"].to_numpy(),
            first_member=columns["member_names"].offsets.to_numpy(),
            names=names.dictionary.to_pylist(),
            name_codes=names.indices.to_numpy(),
            member_offsets=index.column("member_offsets").combine_chunks().flatten().to_numpy(),
            member_bytes=index.column("member_bytes").combine_chunks().flatten().to_numpy(),
        )

    def rows_by_shard(self) -> dict[str, npt.NDArray[np.int64]]:
        """Name of a shard -> its rows, in their order."""
        return group_rows(self.shard_codes, self.shard_names)

    def members(self, row: int) -> Iterator[tuple[str, int, int]]:
        """(name, offset in the tar, bytes) of each member of a row."""
        where = slice(self.first_member[row], self.first_member[row + 1])
        names = (self.names[code] for code in self.name_codes[where])
        extents = (self.member_offsets[where].tolist(), self.member_bytes[where].tolist())
        return zip(names, *extents, strict=True)

    def find(
        self, rows: npt.NDArray[np.int64], *, names: Sequence[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(offsets in the tar, bytes) of the named members of R rows, (R, M) each.

        Offsets are NOWHERE where a sample has no such member.
        """
        wanted = {name: number for number, name in enumerate(names)}
        column_of_code = np.array([wanted.get(name, -1) for name in self.names], dtype=np.int64)
        first = self.first_member[rows].astype(np.int64)
        counts = self.first_member[rows + 1] - first
        row = np.repeat(np.arange(len(rows)), counts)
        # The members of all rows, one after another.
        member = np.arange(len(row)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        column = column_of_code[self.name_codes[member]]
        found = column >= 0
        row, column, member = row[found], column[found], member[found]
        offsets = np.full((len(rows), len(names)), NOWHERE, dtype=np.int64)
        num_bytes = np.zeros_like(offsets)
        offsets[row, column] = self.member_offsets[member]
        num_bytes[row, column] = self.member_bytes[member]
        return offsets, num_bytes


def group_rows(
    codes: npt.NDArray[np.integer], names: Sequence[str]
) -> dict[str, npt.NDArray[np.int64]]:
    """Name -> rows of its code, in their order; `codes` are (N,) places in `names`."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(names))
    parts = np.split(order, np.cumsum(counts)[:-1])
    return dict(zip(names, parts, strict=True)) if len(names) else {}
