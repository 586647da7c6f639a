"""read_ahead: threads make the next results while the caller uses one, in the order of the jobs.

Threads, not processes: reading waits in system calls, which run side by side, and a result is used
where it was made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, TypeVar

from trainer.data.buffers import BufferRing, Buffers

J = TypeVar("J")
T = TypeVar("T")


class Result(Generic[T]):
    """A value whose memory is used again once it is released; a context manager."""

    def __init__(self, value: T, *, release: Callable[[], None]) -> None:
        self.value = value
        self._release: Callable[[], None] | None = release

    def __enter__(self) -> T:
        return self.value

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The value may be overwritten from now on: copies from it are over. Once is enough."""
        release, self._release = self._release, None
        if release is not None:
            release()


class ReadAhead(Generic[T]):
    """An iterator over results, which is closed when it ends or fails; a context manager."""

    def __init__(
        self,
        jobs: Iterable[J],
        make: Callable[[J, Buffers], T],
        *,
        num_threads: int,
        depth: int,
        pin_memory: bool,
    ) -> None:
        self._jobs = iter(jobs)
        self._make: Callable[[J, Buffers], T] = make
        self._ring = BufferRing(depth, pin_memory=pin_memory)
        self._depth, self._num_held = depth, 0
        self._line: deque[Future[Result[T]]] = deque()
        """What is being made and what waits, in the order of the jobs."""
        self._taking = threading.Lock()
        """Held while a job is taken, and not while the caller looks for what is done."""
        self._changed = threading.Condition()
        self._is_ended = False
        """There will be no more jobs."""
        self._threads = [
            threading.Thread(target=self._work, name=f"read-ahead-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Result[T]]:
        return self

    def __next__(self) -> Result[T]:
        with self._changed:
            if self._num_held == self._depth:
                raise RuntimeError(f"all {self._depth} results are held: release one before")
        if not self._threads:
            self._make_next()
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._is_ended)
            if not self._line:
                raise StopIteration
            future = self._line.popleft()
        try:
            result = future.result()
        except BaseException:
            self.close()
            raise
        with self._changed:
            self._num_held += 1
        return result

    def __enter__(self) -> ReadAhead[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Make nothing more, and wait for the threads: each ends what it is at.

        Results that are held stay as they are.
        """
        self._end()
        self._ring.close()
        for thread in self._threads:
            thread.join()
        self._line.clear()

    def _work(self) -> None:
        while self._make_next():
            pass

    def _make_next(self) -> bool:
        """Make the result of the next job: whether there was one."""
        # Memory first: so the job that the caller waits for always has some.
        buffers = self._ring.acquire()
        if buffers is None:
            return False
        future: Future[Result[T]] = Future()
        with self._taking:
            if self._is_ended:
                return False
            try:
                job = next(self._jobs)
            except StopIteration:
                self._end()
                self._ring.close()
                return False
            except BaseException as error:
                self._end(last=future)
                future.set_exception(error)
                return False
            with self._changed:
                self._line.append(future)
                self._changed.notify_all()
        try:
            value = self._make(job, buffers)
        except BaseException as error:
            self._end()  # no job after one that failed
            future.set_exception(error)
            return False
        future.set_result(Result(value, release=lambda: self._give_back(buffers)))
        return True

    def _end(self, *, last: Future[Result[T]] | None = None) -> None:
        with self._changed:
            self._is_ended = True
            if last is not None:
                self._line.append(last)
            self._changed.notify_all()

    def _give_back(self, buffers: Buffers) -> None:
        with self._changed:
            self._num_held -= 1
        self._ring.release(buffers)


def read_ahead(
    jobs: Iterable[J],
    make: Callable[[J, Buffers], T],
    *,
    num_threads: int,
    depth: int,
    pin_memory: bool = False,
) -> ReadAhead[T]:
    """Results of `make(job, buffers)` in the order of the jobs, at most `depth` at a time.

    Those that are being made, that wait and that are held count alike. `num_threads` 0: each is
    made when it is asked for. Jobs are taken one at a time, by whichever thread is free. What
    `make` or the jobs raise is raised at its place, and ends it. RuntimeError: the next is asked
    for while all `depth` are held.
    """
    return ReadAhead(jobs, make, num_threads=num_threads, depth=depth, pin_memory=pin_memory)
