"""Give out packets of a table again, for decoding. Runs inside the decoder process only.

Few packets were kept; others are read once more, and checked against the table while they pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import av.error

from pipeline.jailed.opening import read_packets
from pipeline.jailed.packets import NO_TIME, PacketTable
from pipeline.jailed.scheduling import NotSelectable

SEEK_BYTES = 4 * 1024 * 1024
"""Reading over fewer bytes is about as fast as seeking."""
_SEEKABLE = ("mov", "matroska")
"""Containers with an index, in which a seek finds a packet exactly."""


class PacketReader:
    """Packets of one stream by their number in the table, forwards."""

    def __init__(
        self,
        container: Any,
        stream: Any,
        *,
        table: PacketTable,
        alive: Callable[[], None],
        reopen: Callable[[], tuple[Any, Any]],
    ) -> None:
        """`reopen` opens the file again and gives (container, stream)."""
        self._container = container
        self._stream = stream
        self._table = table
        self._alive = alive
        self._reopen = reopen
        self._position = 0
        self._packets: Iterator[Any] | None = None
        self._may_seek = table.container.startswith(_SEEKABLE)

    def read(self, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        """(number, packet) of [first, stop); `first` is a key frame not before what was read.

        NotSelectable: the file does not give the same packets again.
        """
        if self._table.kept is not None:
            for number in range(first, stop):
                self._alive()
                yield number, self._table.kept[number]
            return
        self._seek(first)
        while self._position < stop:
            packet = self._next()
            number = self._position
            if not self._is(packet, number):
                raise NotSelectable("reading again gives other packets")
            self._position += 1
            if number >= first:
                yield number, packet

    def _next(self) -> Any:
        if self._packets is None:
            self._packets = read_packets(self._container, self._stream, damaged=lambda: None)
        for packet in self._packets:
            self._alive()
            if packet.size:
                return packet
        raise NotSelectable("reading again gives fewer packets")

    def _is(self, packet: Any, number: int) -> bool:
        pts = NO_TIME if packet.pts is None else packet.pts
        return bool(pts == self._table.pts[number] and packet.size == self._table.sizes[number])

    def _seek(self, first: int) -> None:
        # Only a seek that is worth it; where it lands is looked up, never believed. A file in which
        # it fails is read from its start: whether one is tried depends on the other processes.
        num_bytes = sum(self._table.sizes[self._position : first])
        if not self._may_seek or num_bytes <= SEEK_BYTES:
            return
        try:
            self._container.seek(self._seek_target(first), stream=self._stream)
            self._packets = None
            packet = self._next()
        except (av.error.FFmpegError, NotSelectable):
            self._read_from_start()
            return
        landed = first
        while landed > 0 and not self._is(packet, landed):
            landed -= 1
        if not self._is(packet, landed):
            self._read_from_start()
            return
        rest = self._packets
        assert rest is not None
        self._packets = _chain(packet, rest)
        self._position = landed

    def _read_from_start(self) -> None:
        self._container, self._stream = self._reopen()
        self._packets, self._position, self._may_seek = None, 0, False

    def _seek_target(self, first: int) -> int:
        # An index holds dts or pts; pts finds a packet by both, unless the next key frame is near.
        table = self._table
        following = table.is_key.find(1, first + 1)
        near = following > 0 and table.dts[following] <= table.pts[first]
        return table.dts[first] if near and table.dts[first] != NO_TIME else table.pts[first]


def _chain(packet: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield packet
    yield from rest
