"""Log-mel spectrograms as Whisper was trained on: 16 kHz, 25 ms every 10 ms, in float32.

Source of the formulas: Radford et al. 2022 (arXiv 2212.04356), section 2.2, and for the mel scale
and its filters of equal area Slaney 1998, "Auditory Toolbox".
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

RATE = 16_000
N_FFT, HOP = 400, 160
LEAST_POWER = 1e-10
RANGE_DECADES = 8.0
"""What is weaker than this below the loudest value of a chunk is raised to it."""
_LINEAR_HZ, _BREAK_HZ, _BREAK_MEL = 200 / 3, 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27


def log_mel(samples_NS: torch.Tensor, *, num_mels: int) -> torch.Tensor:
    """(N, S) float32 in [-1, 1] -> (N, num_mels, S / HOP) float32; each chunk by itself.

    S is a multiple of HOP. The sound is mirrored at both ends.
    """
    window = torch.hann_window(N_FFT, device=samples_NS.device)
    spectrum_NFT = torch.stft(samples_NS, N_FFT, HOP, window=window, return_complex=True)
    # Frames are centred on 0, HOP, ... S; the last one belongs to what follows.
    power_NFT = (spectrum_NFT[..., :-1].abs() ** 2).contiguous()
    filters_MF = torch.from_numpy(mel_filters(num_mels)).to(samples_NS.device)
    mels_NMT = (filters_MF @ power_NFT).clamp(min=LEAST_POWER).log10()
    loudest = mels_NMT.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(mels_NMT, loudest - RANGE_DECADES) + 4.0) / 4.0


@functools.cache
def mel_filters(num_mels: int) -> npt.NDArray[np.float32]:
    """(num_mels, N_FFT / 2 + 1) float32: triangles on Slaney's mel scale, of equal area."""
    bins_hz = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    highest_mel = _BREAK_MEL + np.log(RATE / 2 / _BREAK_HZ) / _LOG_STEP
    corners_hz = _mel_to_hz(np.linspace(0, highest_mel, num_mels + 2))
    left, peak, right = corners_hz[:-2, None], corners_hz[1:-1, None], corners_hz[2:, None]
    rising, falling = (bins_hz - left) / (peak - left), (right - bins_hz) / (right - peak)
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters: npt.NDArray[np.float32] = (triangles * 2 / (right - left)).astype(np.float32)
    return filters


def _mel_to_hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Linear up to 1 kHz, then 27 steps for a factor of 6.4.
    above = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels < _BREAK_MEL, _LINEAR_HZ * mels, above)
