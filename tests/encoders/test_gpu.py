"""What a GPU adds to running encoders: the same features, memory that ends, two threads at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from encoders import EncoderSpec, Runtime, check_encoder, load_encoder
from encoders.running import TorchEncoder
from schemas.errors import DeviceError
from schemas.recipe import EncoderSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use"),
]
ENCODERS = [("internvideo2-s14", 224), ("siglip-b-16-224", 224)]
MEGABYTE = 1 << 20


@pytest.fixture
def all_memory() -> Iterator[None]:
    """Whatever part of the GPU a test leaves itself, the next one has all of it."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def frames(num_clips: int, side: int = 224) -> np.ndarray:
    shape = (num_clips, 4, side, side, 3)
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def load(name: str, *, precision: str = "float32", **runtime: object) -> TorchEncoder:
    settings = EncoderSettings(encoder=name, weights="random", precision=precision)  # type: ignore[arg-type]
    encoder = load_encoder(settings, runtime=Runtime(**runtime))  # type: ignore[arg-type]
    assert isinstance(encoder, TorchEncoder)
    return encoder


class Hungry(torch.nn.Module):
    """Takes 64 MB for each clip, and gives its mean pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, images_BTCHW: torch.Tensor) -> torch.Tensor:
        B, T = images_BTCHW.shape[:2]
        ballast = torch.ones(B, 16 * MEGABYTE, device=images_BTCHW.device)
        means_BTC = images_BTCHW.mean(dim=(3, 4)) * self.scale + 0 * ballast[:, :1, None]
        return means_BTC.reshape(B, T, 1, 1, 3)


def hungry(**runtime: object) -> TorchEncoder:
    spec = EncoderSpec(
        name="hungry",
        width=8,
        height=8,
        grid=(1, 1),
        dim=3,
        architecture="for tests",
        preprocessing="none",
        precision="float32",
    )
    runtime_ = Runtime(**runtime)  # type: ignore[arg-type]
    return TorchEncoder(Hungry(), spec=spec, runtime=runtime_, mean=(0, 0, 0), std=(1, 1, 1))


def allow_megabytes(count: int) -> None:
    """Beyond what is taken by now."""
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + count * MEGABYTE
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(allowed / total)


@pytest.mark.parametrize(("name", "side"), ENCODERS)
def test_in_float32_a_gpu_gives_the_features_of_a_cpu(name: str, side: int) -> None:
    pixels = frames(3, side)
    expected = load(name).encode(pixels)
    found = load(name, device="cuda", max_batch=2).encode(pixels)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "side"), ENCODERS)
@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 5e-2), ("float16", 1e-2)])
def test_a_lower_precision_is_close_to_float32(
    name: str, side: int, precision: str, tolerance: float
) -> None:
    pixels = frames(3, side)
    expected = load(name, device="cuda").encode(pixels)
    found = load(name, precision=precision, device="cuda").encode(pixels)
    assert np.abs(found - expected).max() > 0
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= tolerance


def test_many_batches_come_back_in_their_places() -> None:
    pixels = frames(23, 8)
    expected = hungry().encode(pixels)
    np.testing.assert_allclose(hungry(device="cuda", max_batch=2).encode(pixels), expected, 1e-5)


@pytest.mark.usefixtures("all_memory")
def test_out_of_memory_halves_the_batch_and_the_work_goes_on() -> None:
    pixels = frames(9, 8)
    encoder = hungry(device="cuda", max_batch=16)
    allow_megabytes(400)  # four clips take 256 MB and what hangs on them, eight 512
    np.testing.assert_allclose(encoder.encode(pixels), hungry().encode(pixels), 1e-5)
    assert encoder.max_batch in (2, 4)


@pytest.mark.usefixtures("all_memory")
def test_one_clip_that_is_too_much_is_said() -> None:
    encoder = hungry(device="cuda", max_batch=2)
    allow_megabytes(40)
    with pytest.raises(DeviceError, match="hungry: one clip is too much for the memory of cuda"):
        encoder.encode(frames(1, 8))


@pytest.mark.usefixtures("all_memory")
def test_weights_that_are_too_much_are_said() -> None:
    allow_megabytes(8)
    with pytest.raises(DeviceError, match="its weights are too much for the memory of cuda"):
        load("internvideo2-s14", device="cuda")


def test_two_threads_give_what_one_gives() -> None:
    encoder = load("internvideo2-s14", device="cuda", max_batch=2)
    batches = [frames(5) + np.uint8(number) for number in range(8)]
    expected = [encoder.encode(batch) for batch in batches]
    with ThreadPoolExecutor(2) as threads:
        for found, alone in zip(threads.map(encoder.encode, batches), expected, strict=True):
            assert np.abs(found - alone).max() <= 1e-5 * np.abs(alone).max()


@pytest.mark.usefixtures("all_memory")
def test_two_threads_that_want_more_memory_than_there_is_both_come_through() -> None:
    encoder = hungry(device="cuda", max_batch=16)
    batches = [frames(20, 8) + np.uint8(number) for number in range(4)]
    expected = [hungry().encode(batch) for batch in batches]
    allow_megabytes(800)
    with ThreadPoolExecutor(2) as threads:
        for found, alone in zip(threads.map(encoder.encode, batches), expected, strict=True):
            np.testing.assert_allclose(found, alone, 1e-5)


@pytest.mark.slow
def test_compiled_it_gives_the_same_within_the_tolerance() -> None:
    pixels = frames(3)
    expected = load("internvideo2-s14", device="cuda").encode(pixels)
    found = load("internvideo2-s14", device="cuda", compile=True).encode(pixels)
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


def test_the_contract_test_finds_nothing_wrong() -> None:
    for precision in ("float32", "bfloat16"):
        assert check_encoder(load("internvideo2-s14", precision=precision, device="cuda")) == []
