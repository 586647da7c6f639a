"""TorchEncoder: batches, memory, precision. On a CPU; what a GPU adds is in the marker `gpu`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoders import EncoderSpec, Runtime, check_encoder
from encoders.running import TorchEncoder
from schemas.errors import DeviceError

SIZE, GRID, DIM = 32, 4, 16


class Patches(torch.nn.Module):
    """A convolution and a few linear layers with a norm: what encoders are made of."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.patches = torch.nn.Conv2d(3, DIM, SIZE // GRID, SIZE // GRID)
            self.norm = torch.nn.LayerNorm(DIM)
            self.mix = torch.nn.Linear(DIM, DIM)
        self.batches: list[int] = []
        self.most: int | None = None
        """Clips that fit into the memory of this pretended device."""

    def forward(self, images_BTCHW: torch.Tensor) -> torch.Tensor:
        B, T = images_BTCHW.shape[:2]
        self.batches.append(B)
        if self.most is not None and self.most < B:
            raise torch.OutOfMemoryError("no more")
        cells = self.patches(images_BTCHW.flatten(0, 1)).permute(0, 2, 3, 1)
        features = cells + self.mix(torch.nn.functional.gelu(self.norm(cells)))
        return features.reshape(B, T, GRID, GRID, DIM)


def make(*, precision: str = "float32", **runtime: Any) -> tuple[TorchEncoder, Patches]:
    module = Patches()
    spec = EncoderSpec(
        name="patches",
        width=SIZE,
        height=SIZE,
        grid=(GRID, GRID),
        dim=DIM,
        architecture="for tests",
        preprocessing="mean 0.5, std 0.5",
        precision=precision,
    )
    runtime_ = Runtime(**runtime)
    return TorchEncoder(
        module, spec=spec, runtime=runtime_, mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7)
    ), module


def frames(num_clips: int, num_frames: int = 2) -> np.ndarray:
    shape = (num_clips, num_frames, SIZE, SIZE, 3)
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 8])
@pytest.mark.parametrize("num_clips", [1, 2, 5])
def test_features_are_those_of_a_plain_forward(max_batch: int, num_clips: int) -> None:
    encoder, module = make(max_batch=max_batch)
    pixels = frames(num_clips)
    images = torch.from_numpy(pixels).float().permute(0, 1, 4, 2, 3) / 255
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    expected = module((images - mean.view(3, 1, 1)) / std.view(3, 1, 1)).numpy()
    np.testing.assert_allclose(encoder.encode(pixels), expected, atol=1e-5)


def test_every_forward_has_the_same_number_of_clips() -> None:
    encoder, module = make(max_batch=4)
    encoder.encode(frames(9))
    encoder.encode(frames(1))
    assert module.batches == [4, 4, 4, 4]


def test_on_a_cpu_clips_go_one_by_one_and_a_batch_makes_no_difference_at_all() -> None:
    encoder, module = make()
    together = encoder.encode(frames(5))
    assert set(module.batches) == {1}
    alone = [encoder.encode(frames(5)[i : i + 1]) for i in range(5)]
    assert np.concatenate(alone).tobytes() == together.tobytes()


def test_in_any_batch_a_clip_has_the_same_features_within_the_stated_tolerance() -> None:
    pixels = frames(7)
    expected = make(max_batch=1)[0].encode(pixels)
    for max_batch in (2, 3, 7, 16):
        found = make(max_batch=max_batch)[0].encode(pixels)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_out_of_memory_halves_the_batch_and_the_work_goes_on() -> None:
    encoder, module = make(max_batch=16)
    module.most = 3
    pixels = frames(5)
    np.testing.assert_allclose(encoder.encode(pixels), make()[0].encode(pixels), atol=1e-5)
    assert module.batches[:4] == [16, 8, 4, 2]
    module.batches.clear()
    encoder.encode(pixels)
    assert module.batches == [2, 2, 2], "it does not try the large batch again"


def test_one_clip_that_is_too_much_is_said() -> None:
    encoder, module = make(max_batch=2)
    module.most = 0
    with pytest.raises(DeviceError, match="patches: one clip is too much for the memory of cpu"):
        encoder.encode(frames(1))


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 2e-2), ("float16", 3e-3)])
def test_a_lower_precision_is_close_and_what_autocast_gives(
    precision: str, tolerance: float
) -> None:
    encoder, module = make(precision=precision)
    pixels = frames(3)
    expected = make()[0].encode(pixels)
    found = encoder.encode(pixels)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
    assert module.mix.weight.dtype == getattr(torch, precision), "converted once, not each time"
    assert module.norm.weight.dtype == torch.float32
    plain = Patches()
    images = torch.from_numpy(pixels[:1]).float().permute(0, 1, 4, 2, 3) / 255
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    images = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.inference_mode(), torch.autocast("cpu", dtype=getattr(torch, precision)):
        autocast = plain(images).float().numpy()
    np.testing.assert_allclose(found[:1], autocast, atol=1e-6)


def test_a_library_that_has_no_memory_for_its_handles_halves_the_batch_too() -> None:
    encoder, module = make(max_batch=4)
    forward = module.forward

    def no_handle(images_BTCHW: torch.Tensor) -> torch.Tensor:
        if len(images_BTCHW) > 1:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        return forward(images_BTCHW)

    module.forward = no_handle  # type: ignore[method-assign]
    np.testing.assert_allclose(encoder.encode(frames(3)), make()[0].encode(frames(3)), atol=1e-5)
    assert encoder.max_batch == 1


def test_any_other_failure_comes_out_as_it_is() -> None:
    encoder, module = make(max_batch=4)

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    module.forward = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shapes do not match"):
        encoder.encode(frames(1))
    assert encoder.max_batch == 4


def test_weights_that_are_too_much_for_the_device_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(Patches, "to", no_room)
    with pytest.raises(DeviceError, match="patches: its weights are too much for the memory of"):
        make()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_bare_forward_is_what_encoding_gives(precision: str) -> None:
    encoder, _ = make(precision=precision, max_batch=3)
    forward = encoder.bare_forward(frames(3))
    np.testing.assert_array_equal(forward().float().numpy(), encoder.encode(frames(3)))
    np.testing.assert_array_equal(forward().float().numpy(), forward().float().numpy())


def test_nothing_can_be_trained() -> None:
    encoder, module = make()
    encoder.encode(frames(1))
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_pixels_that_were_given_stay_as_they_are() -> None:
    pixels = frames(3)
    pixels.flags.writeable = False
    encoder, _ = make()
    encoder.encode(pixels)
    assert np.array_equal(pixels, frames(3))


def test_the_contract_test_finds_nothing_wrong() -> None:
    for precision in ("float32", "bfloat16"):
        assert check_encoder(make(precision=precision, max_batch=2)[0]) == []
