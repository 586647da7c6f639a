"""The resampler is Apollo's, to the number of its parameters and to the last operation."""

from __future__ import annotations

import math

import pytest
import torch

from schemas.errors import ConfigError, ModelDamaged
from trainer.data.cache_shape import CacheShape, StreamShape
from trainer.model.connector import Connector
from trainer.model.perceiver import Perceiver, PerceiverBlock, apollo_key, load_apollo
from trainer.model.positions import Positions
from trainer.model_spec import ConnectorSpec

GRID = (2, 3)
APOLLO = CacheShape(
    fps=2.0,
    frames_per_clip=4,
    streams={
        "internvideo2": StreamShape(num_grids=4, height=16, width=16, dim=1408, dtype="float16"),
        "siglip": StreamShape(num_grids=4, height=27, width=27, dim=1152, dtype="float16"),
    },
)
APOLLO_SPEC = ConnectorSpec(
    tokens_per_frame=32, depth=1, heads=16, kv_heads=4, head_dim=96, positions="none"
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def small(**settings) -> Perceiver:
    return Perceiver(
        5, **{"width": 12, "num_tokens": 4, "depth": 2, "heads": 4, "kv_heads": 2} | settings
    )


def call(perceiver, features, *, mask=None, seconds=None):
    C, F = features.shape[:2]
    mask = torch.ones(C, F, dtype=torch.bool) if mask is None else mask
    seconds = torch.zeros(C, F) if seconds is None else seconds
    return perceiver(features, grid=GRID, frame_mask_CF=mask, frame_seconds_CF=seconds)


@pytest.mark.parametrize(
    ("width", "count"), [(1536, 38_358_528), (2048, 63_727_616), (3584, 177_583_616)]
)
def test_it_has_as_many_parameters_as_apollos(width, count):
    with torch.device("meta"):
        connector = Connector(APOLLO_SPEC, shape=APOLLO, frames_per_clip=4, width=width, audio=None)
    assert connector.tokens_per_clip == 128
    assert sum(one.numel() for one in connector.parameters()) == count


def norm_slowly(norm, x):
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    return ((x - mean) / (variance + 1e-5).sqrt() * norm.norm.weight + norm.norm.bias) * norm.scale


def block_slowly(block, latents, context, mask, *, heads, kv_heads, head_dim):
    """One clip, one token and one head after the other: (K, D), (M, D), (M + K,) -> (K, D)."""
    attention, out = block.self_attn, []
    normed = [norm_slowly(block.input_latents_norm, one) for one in latents]
    known = [norm_slowly(block.input_context_norm, one) for one in context] + normed
    for k, latent in enumerate(latents):
        mixed = []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            rows = slice(head * head_dim, (head + 1) * head_dim)
            kv_rows = slice(kv * head_dim, (kv + 1) * head_dim)
            q = attention.q_proj.weight[rows] @ normed[k]
            seen = [one for one, there in zip(known, mask, strict=True) if there]
            scores = [(q @ (attention.k_proj.weight[kv_rows] @ one)).item() for one in seen]
            exps = [math.exp((score - max(scores)) / math.sqrt(head_dim)) for score in scores]
            mixed.append(
                sum(
                    exp / sum(exps) * (attention.v_proj.weight[kv_rows] @ one)
                    for exp, one in zip(exps, seen, strict=True)
                )
            )
        latent = latent + attention.o_proj.weight @ torch.cat(mixed)
        inner = norm_slowly(block.post_attention_layernorm, latent)
        gate, up = block.mlp.gate_proj.weight @ inner, block.mlp.up_proj.weight @ inner
        out.append(latent + block.mlp.down_proj.weight @ (gate / (1 + (-gate).exp()) * up))
    return torch.stack(out)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 3), (4, 4, 2), (3, 1, 5)])
def test_a_block_does_what_a_loop_over_tokens_and_heads_does(heads, kv_heads, head_dim):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    block = PerceiverBlock(8, ff_mult=2, **shape).double()
    latents, context = torch.randn(2, 3, 8).double(), torch.randn(2, 7, 8).double()
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 2:5] = False
    mask[1, :7] = False
    out = block(latents, context, mask_CM=mask)
    for clip in range(2):
        slowly = block_slowly(block, latents[clip], context[clip], mask[clip].tolist(), **shape)
        assert torch.allclose(out[clip], slowly, atol=1e-10)


def test_depth_and_what_is_around_the_blocks():
    perceiver = small(kv_heads=0).double()
    features = torch.randn(1, 3, 6, 5).double()
    context = (features @ perceiver.proj.weight.T + perceiver.proj.bias).flatten(1, 2)
    latents = perceiver.latents[None]
    for layer in perceiver.layers:
        latents = block_slowly(
            layer, latents[0], context[0], [True] * 22, heads=4, kv_heads=4, head_dim=3
        )[None]
    wanted = torch.stack([norm_slowly(perceiver.norm, one) for one in latents[0]])
    assert torch.allclose(call(perceiver, features)[0], wanted, atol=1e-10)


def test_initial_values_are_apollos():
    perceiver = Perceiver(400, width=640, num_tokens=64, heads=16, kv_heads=4, head_dim=32)
    block = perceiver.layers[0]
    deviations = {
        perceiver.proj.weight: math.sqrt(2 / 400),
        block.self_attn.q_proj.weight: math.sqrt(2 / 640),
        block.self_attn.o_proj.weight: math.sqrt(2 / 512),
        block.mlp.gate_proj.weight: math.sqrt(0.4 / 640),
        block.mlp.down_proj.weight: math.sqrt(0.2 / 2560),
        perceiver.latents: 0.1,
    }
    for parameter, wanted in deviations.items():
        assert parameter.std().item() == pytest.approx(wanted, rel=0.02)
    assert perceiver.latents.mean().item() == pytest.approx(0.5, abs=0.005)
    assert perceiver.norm.scale.mean().item() == pytest.approx(1, abs=0.005)
    assert perceiver.norm.scale.std().item() == pytest.approx(0.02, rel=0.15)
    assert not perceiver.proj.bias.any()


def test_apollos_keys_are_simple_renames():
    assert apollo_key("proj.weight") == "proj.0.weight"
    assert apollo_key("latents") == "resampler.latents"
    for ours, theirs in [
        ("layers.0.input_latents_norm.scale", "layers.0.input_latents_norm.wheight"),
        ("layers.0.post_attention_layernorm.norm.bias",) * 2,
        ("layers.0.self_attn.k_proj.weight",) * 2,
        ("layers.0.mlp.down_proj.weight",) * 2,
        ("norm.scale", "norm.wheight"),
    ]:
        assert ours in small().state_dict()
        assert apollo_key(ours) == f"resampler.{theirs}"


def test_apollos_weights_load():
    trained, fresh = small(), small()
    published = {apollo_key(name): value for name, value in trained.state_dict().items()}
    assert "resampler.layers.1.self_attn.q_proj.weight" in published
    load_apollo(fresh, published)
    features = torch.randn(1, 2, 6, 5)
    assert torch.equal(call(fresh, features), call(trained, features))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 3}, r"layers\.2\..* is missing"),
        ({"num_tokens": 8}, r"resampler\.latents has shape \[4, 12\], expected \[8, 12\]"),
        ({"depth": 1}, r"layers\.1\..* is not expected"),
        ({"positions": True}, r"positions\..* is missing"),
    ],
)
def test_weights_of_another_shape_are_refused(settings, message):
    published = {apollo_key(name): value for name, value in small().state_dict().items()}
    with pytest.raises(ModelDamaged, match=message):
        load_apollo(small(**settings), published)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_under_the_mask_do_not_matter(dtype):
    perceiver = small(positions=True).to(dtype)
    features = torch.randn(2, 3, 6, 5, dtype=dtype)
    mask = torch.tensor([[True, True, False], [False, True, False]])
    others = torch.where(mask[..., None, None], features, 1000 * torch.randn_like(features))
    assert torch.equal(call(perceiver, features, mask=mask), call(perceiver, others, mask=mask))
    assert not torch.equal(call(perceiver, features), call(perceiver, others))


def test_a_frame_that_is_masked_is_as_one_that_is_not_there():
    perceiver = small()
    features = torch.randn(2, 3, 6, 5)
    mask = torch.tensor([[True, True, False]]).expand(2, 3)
    shorter = call(perceiver, features[:, :2])
    assert torch.allclose(call(perceiver, features, mask=mask), shorter, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_clip_without_any_frame_is_finite_and_so_are_its_gradients(dtype):
    perceiver = small(positions=True).to(dtype)
    out = call(perceiver, torch.zeros(1, 3, 6, 5, dtype=dtype), mask=torch.zeros(1, 3).bool())
    assert out.isfinite().all()
    (out.float() ** 2).sum().backward()
    assert all(one.grad.isfinite().all() for one in perceiver.parameters() if one.grad is not None)


@pytest.mark.parametrize("settings", [{}, {"dim": 20}, {"positions": True}, {"head_dim": 5}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_reach_every_parameter(settings, dtype):
    perceiver = small(**settings).to(dtype)
    features = torch.randn(2, 3, 6, 5, dtype=dtype)
    seconds = torch.arange(3).expand(2, 3) / 2
    out = call(perceiver, features, seconds=seconds)
    assert out.shape == (2, 4, 12)
    assert out.dtype == dtype
    (out.float() * torch.randn(2, 4, 12)).sum().backward()
    for name, parameter in perceiver.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert torch.equal(out, call(perceiver, features, seconds=seconds))


def test_without_positions_the_order_of_cells_is_unknown_and_with_them_it_is_not():
    features = torch.randn(1, 3, 6, 5)
    shuffled = features[:, [2, 0, 1]][:, :, [3, 1, 0, 2, 5, 4]]
    blind, seeing = small().double(), small(positions=True).double()
    assert torch.allclose(call(blind, features.double()), call(blind, shuffled.double()))
    seconds = torch.tensor([[0.0, 0.5, 1.0]])
    one = call(seeing, features.double(), seconds=seconds)
    other = call(seeing, shuffled.double(), seconds=seconds)
    assert (one - other).abs().max() > 0.01


def test_time_is_in_seconds_whatever_the_rate_of_frames():
    positions = Positions(16)
    fast = positions(torch.arange(8)[None] / 4, grid=GRID)
    slow = positions(torch.arange(4)[None] / 2, grid=GRID)
    assert torch.equal(fast[:, ::2], slow)
    flat = slow.flatten(0, 2)
    apart = (flat[:, None] - flat[None]).norm(dim=-1) + 10 * torch.eye(len(flat))
    assert apart.min() > 0.1


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="heads = 5 must divide the resampler's width 12"):
        small(heads=5, kv_heads=0)
    with pytest.raises(ConfigError, match="heads = 4 must be a multiple of kv_heads = 3"):
        small(kv_heads=3)
