"""Probe many sources here, without a run: threads that each have a decoder process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from pipeline.jail import DecoderProcess
from pipeline.probing import probe_source
from schemas.recipe import DecodeLimits
from schemas.video import Probe, Source

END_SECONDS = 5.0
"""For threads to notice that nobody wants their probes any more."""


def probe_all(
    sources: Sequence[Source],
    *,
    limits: DecodeLimits,
    num_processes: int,
    on_probe: Callable[[Probe], None] = lambda _: None,
) -> list[Probe]:
    """The probes of the sources, in their order; nothing is written beside copies of remote files.

    Those lie in the system's folder for temporary files, as long as they are looked at. `on_probe`
    is called in threads, one at a time. WorkerDied: no decoder process starts. StorageError: the
    disk is full.
    """
    prober = _Prober(sources, limits, on_probe)
    threads = [
        threading.Thread(target=prober.work, name="probe", daemon=True)
        for _ in range(min(num_processes, len(sources)))
    ]
    with prober.ended_at_last(threads):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # with a limit, or a signal would wait for its end
                thread.join(0.2)
    if prober.error is not None:
        raise prober.error
    return [prober.probes[number] for number in range(len(sources))]


class _Prober:
    def __init__(
        self, sources: Sequence[Source], limits: DecodeLimits, on_probe: Callable[[Probe], None]
    ) -> None:
        self._left = iter(enumerate(sources))
        self._limits = limits
        self._on_probe = on_probe
        self._lock = threading.Lock()
        self._processes: list[DecoderProcess] = []
        self._is_over = False
        self.probes: dict[int, Probe] = {}
        self.error: BaseException | None = None

    def work(self) -> None:
        """Until there is no source left, or one thread has failed."""
        with DecoderProcess(self._limits) as process:
            self._processes.append(process)
            try:
                while (one := self._next()) is not None:
                    number, source = one
                    probe = probe_source(source, limits=self._limits, process=process)
                    with self._lock:
                        self.probes[number] = probe
                        self._on_probe(probe)
            except BaseException as error:  # raised again by who waits for the threads
                self.error = self.error or error
                self._is_over = True

    def _next(self) -> tuple[int, Source] | None:
        with self._lock:
            return None if self._is_over else next(self._left, None)

    @contextlib.contextmanager
    def ended_at_last(self, threads: Sequence[threading.Thread]) -> Iterator[None]:
        """Where the owner is told to end, decoder processes do not go on."""
        try:
            yield
        except BaseException:
            self._is_over = True
            for process in list(self._processes):
                process.interrupt()
            for thread in threads:
                if thread.is_alive():
                    thread.join(END_SECONDS)
            raise
