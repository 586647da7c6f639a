"""Streams of features join on one grid as Apollo's towers do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from trainer.model import fusing
from trainer.model.fusing import fuse

DTYPES = (torch.float32, torch.bfloat16)


def halves(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).half()


def plainly(features: dict[str, torch.Tensor], *, dtype: torch.dtype) -> torch.Tensor:
    """Apollo's description, of float tensors (C, T, H, W, D): (C, T, N, D)."""
    size = tuple(max(one.shape[axis] for one in features.values()) for axis in (1, 2, 3))
    joined = []
    for one in features.values():
        if one.shape[1:4] != size:
            moved = one.float().permute(0, 4, 1, 2, 3)
            moved = functional.interpolate(moved, size=size, mode="trilinear", align_corners=False)
            one = moved.permute(0, 2, 3, 4, 1)
        joined.append(one.to(dtype))
    return torch.cat(joined, dim=-1).flatten(2, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smaller_grid_is_resized_to_the_larger(dtype):
    features = {"internvideo2": halves(2, 4, 2, 3, 5), "siglip": halves(2, 4, 4, 5, 7, seed=1)}
    fused = fuse(features, scales={}, num_frames=4, frames_taken=None, dtype=dtype)
    assert fused.grid == (4, 5)
    assert fused.features_CFND.shape == (2, 4, 20, 12)
    assert fused.features_CFND.dtype == dtype
    assert torch.equal(fused.features_CFND, plainly(features, dtype=dtype))


def test_channels_follow_the_order_of_the_streams():
    one, other = halves(1, 2, 2, 2, 3), halves(1, 2, 2, 2, 4, seed=1)
    settings = {"scales": {}, "num_frames": 2, "frames_taken": None, "dtype": torch.float32}
    ab = fuse({"a": one, "b": other}, **settings).features_CFND
    ba = fuse({"b": other, "a": one}, **settings).features_CFND
    assert torch.equal(ab, torch.cat([ba[..., 4:], ba[..., :4]], dim=-1))
    assert torch.equal(ab[..., :3], one.float().flatten(2, 3))


def test_the_grid_takes_the_larger_of_each_axis():
    features = {"wide": halves(1, 2, 2, 6, 3), "tall": halves(1, 2, 5, 3, 3, seed=1)}
    fused = fuse(features, scales={}, num_frames=2, frames_taken=None, dtype=torch.float32)
    assert fused.grid == (5, 6)
    assert torch.equal(fused.features_CFND, plainly(features, dtype=torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_temporal_stride_is_spread_over_the_frames_and_those_looked_at_are_taken(dtype):
    features = {"motion": halves(2, 2, 2, 2, 3), "still": halves(2, 4, 3, 3, 5, seed=1)}
    whole = plainly(features, dtype=dtype)
    taken = torch.tensor([[0, 2], [1, 3]])
    clips = torch.arange(2)[:, None]
    seen = {"motion": features["motion"], "still": features["still"][clips, taken]}
    fused = fuse(seen, scales={}, num_frames=4, frames_taken=taken, dtype=dtype, strided={"motion"})
    assert torch.equal(fused.features_CFND, whole[clips, taken])
    everything = fuse(
        features, scales={}, num_frames=4, frames_taken=None, dtype=dtype, strided={"motion"}
    )
    assert torch.equal(everything.features_CFND, whole)


@pytest.mark.parametrize("grid", [2, 3])
def test_int8_is_times_its_scale_of_each_frame(grid):
    values = torch.randint(-127, 128, (2, 3, 2, 2, 4), dtype=torch.int8)
    scales = torch.rand(2, 3, 4) + 0.1
    features = {"a": values, "b": halves(2, 3, grid, grid, 1)}
    floats = {**features, "a": values.float() * scales[:, :, None, None, :]}
    fused = fuse(
        features, scales={"a": scales}, num_frames=3, frames_taken=None, dtype=torch.float32
    )
    assert torch.equal(fused.features_CFND, plainly(floats, dtype=torch.float32))


def test_a_strided_int8_stream_has_the_scale_of_the_frames_that_exist():
    values = torch.randint(-127, 128, (1, 2, 2, 2, 3), dtype=torch.int8)
    scale = torch.rand(3) + 0.1
    scales = torch.stack([torch.zeros(3), scale])[None]  # the first frame does not exist
    fused = fuse(
        {"a": values},
        scales={"a": scales},
        num_frames=4,
        frames_taken=torch.tensor([[0, 3]]),
        dtype=torch.float32,
        strided={"a"},
    )
    whole = functional.interpolate(
        (values.float() * scale).permute(0, 4, 1, 2, 3), size=(4, 2, 2), mode="trilinear"
    ).permute(0, 2, 3, 4, 1)
    assert torch.allclose(fused.features_CFND, whole[:, [0, 3]].flatten(2, 3), atol=1e-6)


def test_a_stream_that_has_the_grid_is_cast_once_and_nothing_more(monkeypatch):
    casts: list[tuple[torch.dtype, torch.dtype]] = []
    to = torch.Tensor.to

    def watched(self, *args, **settings):
        out = to(self, *args, **settings)
        casts.append((self.dtype, out.dtype))
        return out

    monkeypatch.setattr(torch.Tensor, "to", watched)
    monkeypatch.setattr(fusing, "_resize", None)
    features = {"a": halves(2, 4, 3, 3, 5), "b": halves(2, 4, 3, 3, 2, seed=1)}
    fuse(features, scales={}, num_frames=4, frames_taken=None, dtype=torch.bfloat16)
    assert casts == [(torch.float16, torch.bfloat16)] * 2


def test_what_was_fused_may_be_written_to():
    features = {"a": torch.randn(1, 2, 2, 2, 3)}
    kept = features["a"].clone()
    fused = fuse(features, scales={}, num_frames=2, frames_taken=None, dtype=torch.float32)
    fused.features_CFND.zero_()
    assert torch.equal(features["a"], kept)


def test_there_may_be_no_clip():
    features = {"a": halves(0, 2, 2, 2, 3), "b": halves(0, 4, 3, 3, 5)}
    fused = fuse(
        features,
        scales={},
        num_frames=4,
        frames_taken=torch.zeros(0, 4, dtype=torch.int64),
        dtype=torch.float32,
        strided={"a"},
    )
    assert fused.features_CFND.shape == (0, 4, 9, 8)
