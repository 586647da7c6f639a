"""EncodeAhead: gathers clips of one video after the other into batches, and encodes in a thread.

A batch may hold clips of several videos. Results come back in the order in which clips were added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from pipeline.decoding import ClipFrames
from pipeline.encoding import Features, StreamEncoders
from pipeline.measuring import Measures
from schemas.errors import VideoError

Owner = TypeVar("Owner")
Take = Callable[[Owner, ClipFrames, Features | VideoError], None]
"""What is done with a clip's features, or with the reason why it has none."""


class EncodeAhead(Generic[Owner]):
    """Encodes clips that are added, each for an owner; a context manager."""

    def __init__(
        self, encoders: StreamEncoders, *, take: Take[Owner], measures: Measures | None = None
    ) -> None:
        """`take` is called in the thread that adds clips, in their order."""
        self._measures = measures or Measures()
        self._encoders = encoders
        self._take = take
        self._gathered: list[tuple[Owner, ClipFrames]] = []
        self._ahead: deque[
            tuple[list[tuple[Owner, ClipFrames]], Future[list[Features | VideoError]]]
        ] = deque()
        num_threads = encoders.num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="encode")
        self._most_ahead = num_threads

    def __enter__(self) -> EncodeAhead[Owner]:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def add(self, owner: Owner, clip: ClipFrames) -> None:
        """One more clip. Errors of encoders, for whichever clips, come out here or in `finish`."""
        self._gathered.append((owner, clip))
        if len(self._gathered) >= self._encoders.batch_clips:
            self._start()

    def forget(self, owner: Owner) -> None:
        """Clips of this owner that are not yet being encoded are not wanted any more."""
        self._gathered = [pair for pair in self._gathered if pair[0] is not owner]

    def finish(self) -> None:
        """Encode and hand over all that is left."""
        self._start()
        while self._ahead:
            self._hand_over()

    def _start(self) -> None:
        batch, self._gathered = self._gathered, []
        if not batch:
            return
        while len(self._ahead) >= self._most_ahead:
            self._hand_over()
        clips = [clip for _, clip in batch]
        self._ahead.append((batch, self._threads.submit(self._encode, clips)))

    def _hand_over(self) -> None:
        batch, encoding = self._ahead.popleft()
        with self._measures.timed("wait_encode"):
            encoded = encoding.result()
        for (owner, clip), features in zip(batch, encoded, strict=True):
            self._take(owner, clip, features)

    def _encode(self, clips: list[ClipFrames]) -> list[Features | VideoError]:
        with self._measures.timed("encode"):
            return self._encoders.encode(clips)
