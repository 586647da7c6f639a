"""Where somebody speaks: Silero VAD, with the weights and the rules of its package silero-vad.

Nothing is loaded before there is a sound to listen to.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders.importing import package_version, told_if_broken

PACKAGE, _EXTRA = "silero-vad", "speech"
RATE = 16_000
CHUNK_SAMPLES = 512
THRESHOLD = 0.5
"""This and the others as of the package's `get_speech_timestamps`."""
MIN_SPEECH_MS, MIN_SILENCE_MS, PAD_MS = 250, 100, 30


class VoiceDetector:
    """Silero VAD on the CPU: it works on 32 ms at a time, one after the other."""

    def __init__(self) -> None:
        """UsageError: the package is not installed."""
        self._version = package_version(PACKAGE, what="speech is found by", extra=_EXTRA)

    @cached_property
    def _package(self) -> Any:
        with _as_before(), told_if_broken(PACKAGE, extra=_EXTRA):
            import silero_vad

            return silero_vad

    @cached_property
    def _network(self) -> Any:
        with _as_before():
            return self._package.load_silero_vad()

    @property
    def made_by(self) -> dict[str, Any]:
        """What its answers follow from, JSON-ready."""
        return {
            "by": PACKAGE,
            "version": self._version,
            "threshold": THRESHOLD,
            "min_speech_ms": MIN_SPEECH_MS,
            "min_silence_ms": MIN_SILENCE_MS,
            "pad_ms": PAD_MS,
        }

    def spans(self, sound: Iterable[npt.NDArray[np.float32]]) -> list[tuple[float, float, float]]:
        """(start, end, mean probability) of each stretch of speech, in seconds from the start.

        `sound` is 16 kHz mono in [-1, 1], in pieces of any length; what is kept of it is a number
        for each 32 ms. UsageError: the package is broken.
        """
        import torch

        probabilities: list[float] = []
        num_samples = 0
        held = np.zeros(0, np.float32)
        self._network.reset_states()
        with torch.inference_mode():
            for piece in sound:
                num_samples += len(piece)
                held = np.concatenate([held, piece])
                whole = len(held) // CHUNK_SAMPLES * CHUNK_SAMPLES
                for start in range(0, whole, CHUNK_SAMPLES):
                    probabilities.append(self._judge(held[start : start + CHUNK_SAMPLES]))
                held = held[whole:]
            if len(held):
                probabilities.append(self._judge(np.pad(held, (0, CHUNK_SAMPLES - len(held)))))
        stretches = self._package.get_speech_timestamps_from_probs(
            probabilities,
            sampling_rate=RATE,
            threshold=THRESHOLD,
            min_speech_duration_ms=MIN_SPEECH_MS,
            min_silence_duration_ms=MIN_SILENCE_MS,
            speech_pad_ms=PAD_MS,
            audio_length_samples=num_samples,
        )
        found = []
        for one in stretches:
            chunks = slice(one["start"] // CHUNK_SAMPLES, -(-one["end"] // CHUNK_SAMPLES))
            score = float(np.mean(probabilities[chunks]))
            found.append((one["start"] / RATE, one["end"] / RATE, score))
        return found

    def _judge(self, chunk: npt.NDArray[np.float32]) -> float:
        import torch

        return float(self._network(torch.from_numpy(chunk), RATE).item())


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Undo what loading the package does to a process: it takes all but one thread from torch."""
    import torch

    num_threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(num_threads)
