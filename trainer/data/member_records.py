"""MemberRecords: what is small of samples, and the headers by which the members are checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.sample import encode_npy
from trainer.data.buffers import aligned
from trainer.data.segments import Numbers, Segments

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member that is read of each sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    header: bytes
    is_large: bool
    """Its data go to where they are used; those of others stay in the record."""

    @classmethod
    def of(cls, name: str, *shape: int, dtype: str, is_large: bool = False) -> Member:
        """With the header that an array of this shape has."""
        header = bytes(encode_npy(np.empty(shape, dtype=dtype))[0])
        return cls(name=name, shape=shape, dtype=dtype, header=header, is_large=is_large)

    @property
    def data_bytes(self) -> int:
        """Without the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def num_bytes(self) -> int:
        return len(self.header) + self.data_bytes


class MemberRecords:
    """How records of M members are laid out, each beginning at a multiple of 64."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = {member.name: member for member in members}
        self.num_bytes = 0
        """Of a record."""
        self._starts: dict[str, int] = {}
        for name, member in self.members.items():
            self._starts[name] = self.num_bytes
            self.num_bytes += aligned(self._size(member))
        self._header_at = np.concatenate(
            [self._starts[one.name] + np.arange(len(one.header)) for one in self.members.values()]
        )
        headers = b"".join(member.header for member in self.members.values())
        self._headers = np.frombuffer(headers, dtype=np.uint8)

    def segments(self, begins_VM: Numbers, *, place: int) -> Segments:
        """What fills V records from `place` on; `begins_VM`: where the members lie in the tars."""
        V, M = begins_VM.shape
        places_VM = np.arange(V)[:, None] * self.num_bytes + np.array(list(self._starts.values()))
        return Segments(
            visit=np.repeat(np.arange(V), M),
            offset=begins_VM.ravel(),
            num_bytes=np.tile([self._size(member) for member in self.members.values()], V),
            place=place + places_VM.ravel(),
        )

    def wrong(self, records: Bytes) -> tuple[int, Member] | None:
        """The first record and member whose header is not that of its shape and dtype."""
        same = records[:, self._header_at] == self._headers
        if same.all():
            return None
        record, number = np.argwhere(~same)[0]
        name = max(
            (name for name, start in self._starts.items() if start <= self._header_at[number]),
            key=self._starts.__getitem__,
        )
        return int(record), self.members[name]

    def data(self, name: str, records: Bytes) -> npt.NDArray[Any]:
        """(V, ...): a small member in each of V records."""
        member = self.members[name]
        start = self._starts[name] + len(member.header)
        array = records[:, start : start + member.data_bytes].view(member.dtype)
        return array.reshape(len(records), *member.shape)

    @staticmethod
    def _size(member: Member) -> int:
        return len(member.header) if member.is_large else member.num_bytes
