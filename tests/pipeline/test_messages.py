"""The messages between a decoder process and its owner: whole, damaged, and too many to read."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator

import pytest

from pipeline import messages


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(where to read, where to write); a test may close the second."""
    read_fd, write_fd = os.pipe()
    yield read_fd, write_fd
    os.close(read_fd)
    with contextlib.suppress(OSError):
        os.close(write_fd)


def test_a_message_comes_as_it_was_sent(pipe: tuple[int, int]) -> None:
    receiver = messages.Receiver(pipe[0])
    sent = {"kind": "clip", "name": "видео\n", "times": [[0.1, 1e-9]], "nothing": None}
    messages.send(pipe[1], sent, [b"abc", memoryview(bytes(range(10)))])
    messages.send(pipe[1], {"kind": "done"})
    message, payload = receiver.receive(timeout_seconds=5)
    assert message == sent
    assert bytes(payload) == b"abc" + bytes(range(10))
    assert receiver.receive(timeout_seconds=5) == ({"kind": "done"}, bytearray())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(messages.HEADER.pack(2**32 - 1, 0), id="too much text"),
        pytest.param(messages.HEADER.pack(2, 2**63) + b"{}", id="too many bytes"),
        pytest.param(messages.HEADER.pack(4, 0) + b"{'a'", id="not JSON"),
        pytest.param(messages.HEADER.pack(0, 0), id="no text"),
        pytest.param(messages.HEADER.pack(2, 0) + b"\xff\xfe", id="not UTF-8"),
        pytest.param(messages.HEADER.pack(2, 0) + b"[]", id="a list"),
        pytest.param(messages.HEADER.pack(4, 0) + b"null", id="null"),
        pytest.param(b"printed by a library " * 4, id="noise"),
        pytest.param(messages.HEADER.pack(50_000, 0) + b"[" * 50_000, id="nested"),
    ],
)
def test_a_damaged_message(data: bytes, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], data)
    with pytest.raises(messages.Damaged):
        messages.Receiver(pipe[0]).receive(timeout_seconds=5)


@pytest.mark.parametrize("kept", [0, 1, messages.HEADER.size, messages.HEADER.size + 3, -1])
def test_a_message_that_breaks_off(kept: int, pipe: tuple[int, int]) -> None:
    text = json.dumps({"kind": "clip"}).encode()
    whole = messages.HEADER.pack(len(text), 10) + text + bytes(10)
    os.write(pipe[1], whole[:kept])
    os.close(pipe[1])
    with pytest.raises(messages.PipeClosed):
        messages.Receiver(pipe[0]).receive(timeout_seconds=5)


def test_a_message_that_does_not_go_on(pipe: tuple[int, int]) -> None:
    receiver = messages.Receiver(pipe[0])
    os.write(pipe[1], messages.HEADER.pack(100, 0) + b"{")
    with pytest.raises(messages.WaitedTooLong):
        receiver.receive(timeout_seconds=0.2)
    assert 0.15 < receiver.waited_seconds < 5


def test_nobody_reads() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        with pytest.raises(messages.PipeClosed):
            messages.send(write_fd, {"kind": "done"}, [bytes(1000)])
    finally:
        os.close(write_fd)


def test_a_message_waits_for_a_reader_that_comes(pipe: tuple[int, int]) -> None:
    """Far more than a pipe holds."""
    sent = {"kind": "clip"}, [bytes(range(256)) * 4000]
    writer = threading.Thread(
        target=lambda: messages.send(pipe[1], *sent, timeout_seconds=20), daemon=True
    )
    writer.start()
    message, payload = messages.Receiver(pipe[0]).receive(timeout_seconds=20)
    writer.join()
    assert (message, [bytes(payload)]) == sent


def test_nobody_reads_but_the_pipe_is_open(pipe: tuple[int, int]) -> None:
    """The other side may have stopped reading on purpose: that must not stop this one."""
    with pytest.raises(messages.WaitedTooLong):
        for _ in range(2000):
            messages.send(pipe[1], {"kind": "free", "slot": 1}, [bytes(100)], timeout_seconds=0.1)


def test_reading_many_messages_takes_time_too(pipe: tuple[int, int]) -> None:
    receiver = messages.Receiver(pipe[0])
    for _ in range(100):
        messages.send(pipe[1], {"kind": "alive"})
    for _ in range(100):
        before = receiver.waited_seconds
        receiver.receive(timeout_seconds=5)
        assert receiver.waited_seconds > before
