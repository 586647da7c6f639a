"""Averages over boxes of time and space: the two weaker resamplers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from trainer.model.pooling import Pooling, box_grid, boxes

KINDS = ("conv", "mlp")
GRID = (4, 5)


def call(pooling, features, *, mask=None):
    C, F = features.shape[:2]
    mask = torch.ones(C, F, dtype=torch.bool) if mask is None else mask
    seconds = (torch.arange(F) / 2).expand(C, F)
    return pooling(features, grid=GRID, frame_mask_CF=mask, frame_seconds_CF=seconds)


@given(st.integers(1, 256), st.integers(1, 8), st.integers(1, 27), st.integers(1, 27))
def test_boxes_are_exactly_as_many_as_tokens_and_cover_all(num_tokens, frames, height, width):
    T, H, W = box_grid(num_tokens, frames=frames, grid=(height, width))
    assert num_tokens == T * H * W
    assert frames >= T
    inside = boxes(num_tokens, frames=frames, grid=(height, width))
    assert inside.shape == (num_tokens, frames * height * width)
    assert inside.any(dim=0).all()
    assert inside.any(dim=1).all()


def test_usual_boxes_are_square_and_of_one_frame():
    assert box_grid(64, frames=4, grid=(27, 27)) == (4, 4, 4)
    assert box_grid(128, frames=4, grid=(16, 16))[0] == 4
    assert box_grid(2, frames=4, grid=(8, 8)) == (2, 1, 1)
    assert box_grid(24, frames=4, grid=(4, 9)) == (4, 2, 3)


def slowly(pooling: Pooling, features: torch.Tensor, kind: str, *, num_tokens: int):
    """With torch's own adaptive pooling, all frames there."""
    C, F, _, D = features.shape
    cells = features.view(C * F, *GRID, D).permute(0, 3, 1, 2)
    if kind == "mlp":
        flat = functional.linear(features, pooling.first.weight[:, :, 0, 0], pooling.first.bias)
        flat = functional.gelu(flat)
        flat = functional.linear(flat, pooling.second.weight[:, :, 0, 0], pooling.second.bias)
        cells = flat.view(C * F, *GRID, -1).permute(0, 3, 1, 2)
    else:
        cells = pooling.second(functional.gelu(pooling.first(cells)))
    cells = cells.unflatten(0, (C, F)).transpose(1, 2)
    size = box_grid(num_tokens, frames=F, grid=GRID)
    return functional.adaptive_avg_pool3d(cells, size).flatten(2).transpose(1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 6, 7, 12, 60])
def test_it_is_two_layers_and_an_adaptive_average(kind, num_tokens):
    torch.manual_seed(0)
    pooling = Pooling(6, kind=kind, width=8, num_tokens=num_tokens)
    features = torch.randn(2, 3, 20, 6)
    out = call(pooling, features)
    assert out.shape == (2, num_tokens, 8)
    assert torch.allclose(out, slowly(pooling, features, kind, num_tokens=num_tokens), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_do_not_exist_are_left_out_of_averages(kind):
    torch.manual_seed(0)
    pooling = Pooling(6, kind=kind, width=8, num_tokens=5)
    features = torch.randn(1, 4, 20, 6)
    mask = torch.tensor([[True, True, True, False]])
    assert box_grid(5, frames=4, grid=GRID)[0] == 1  # each box is of all four frames
    out = call(pooling, features, mask=mask)
    assert torch.allclose(out, call(pooling, features[:, :3]), atol=1e-6)
    others = features.clone()
    others[:, 3] = 1000.0
    assert torch.equal(out, call(pooling, others, mask=mask))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_reach_every_parameter_and_no_frame_gives_zeros(kind, dtype):
    torch.manual_seed(0)
    pooling = Pooling(6, kind=kind, width=8, num_tokens=6, positions=True).to(dtype)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out = call(pooling, torch.randn(2, 3, 20, 6, dtype=dtype), mask=mask)
    assert out.dtype == dtype
    assert not out[1].any()
    (out.float() * torch.randn(2, 6, 8)).sum().backward()
    for name, parameter in pooling.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_positions_tell_boxes_of_one_look_apart():
    torch.manual_seed(0)
    alike = torch.ones(1, 3, 20, 6)
    blind = call(Pooling(6, kind="mlp", width=8, num_tokens=3), alike)
    seeing = call(Pooling(6, kind="mlp", width=8, num_tokens=3, positions=True), alike)
    assert torch.allclose(blind[0, 0], blind[0, 2])
    assert (seeing[0, 0] - seeing[0, 2]).abs().max() > 0.01
