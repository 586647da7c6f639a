"""Loudness of bands of sound: what a person sees in a spectrogram, with no weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from encoders.base import Runtime, refuse_choices
from encoders.operations import Operations
from encoders.sound import SoundSpec
from schemas.recipe import EncoderSettings

NUM_MELS = 80
NUM_WINDOWS = 30
TOKENS_PER_WINDOW = 100


@dataclass(frozen=True, slots=True)
class MelBands:
    """A `SoundEncoder`: the log-mel spectrogram that Whisper's encoder is given."""

    spec: SoundSpec

    def encode(self, samples_NS: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(N, 480000) float32 in [-1, 1] -> (N, 30, 100, 80) float32, a token each 10 ms.

        What is 80 dB or more below the loudest of its chunk has all the same value.
        """
        import torch

        from encoders.log_mel import log_mel

        shape = (NUM_WINDOWS, TOKENS_PER_WINDOW, NUM_MELS)
        features_NWLD = np.empty((len(samples_NS), *shape), np.float32)
        # One at a time, so that a chunk does not depend on how others are computed.
        for samples_S, features_WLD in zip(samples_NS, features_NWLD, strict=True):
            mels_1MT = log_mel(torch.from_numpy(samples_S[None]), num_mels=NUM_MELS)
            features_WLD[:] = mels_1MT[0].T.reshape(shape).numpy()
        return features_NWLD


def spec(settings: EncoderSettings, *, device: str) -> SoundSpec:  # noqa: ARG001 - CPU only
    """30 s of 16 kHz to 30 windows of 100 tokens of 80 bands. RecipeError: of any choice."""
    refuse_choices(settings)
    return SoundSpec(
        name="log-mel",
        rate=16_000,
        num_windows=NUM_WINDOWS,
        tokens_per_window=TOKENS_PER_WINDOW,
        dim=NUM_MELS,
        architecture=f"loudness of {NUM_MELS} bands",
        preprocessing=f"log-mel of 30 s, {NUM_MELS} mels, fft 400, hop 160, 8 decades",
        libraries=("torch",),
        operations=Operations(),
    )


def load(
    spec: SoundSpec,
    *,
    settings: EncoderSettings,  # noqa: ARG001 - it has no choices
    runtime: Runtime,  # noqa: ARG001 - CPU only
) -> MelBands:
    """The encoder; the device makes no difference."""
    return MelBands(spec)
