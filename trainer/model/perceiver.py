"""Perceiver: learnt latents look at all cells of a clip and become its tokens.

The resampler of Apollo (arXiv 2412.10360), which is that of Idefics2 (arXiv 2405.02246) with other
norms and initial values; with `positions` none and `dim` = `width` its published weights load.
Shapes: C clips, F frames, N cells of a frame, K latents, M = F N + K keys, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from schemas.errors import ConfigError, ModelDamaged
from trainer.model.positions import Positions


class WeightedNorm(nn.Module):
    """LayerNorm, times a second learnt vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.scale = nn.Parameter(torch.empty(dim).normal_(mean=1.0, std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x) * self.scale
        return out


class Attention(nn.Module):
    """Latents ask; context and latents answer. Queries share heads of keys and values in groups."""

    def __init__(self, dim: int, *, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.groups, self.kv_heads, self.head_dim = heads // kv_heads, kv_heads, head_dim
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=False)
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.kaiming_normal_(linear.weight)

    def forward(self, latents_CKD: Tensor, context_CMD: Tensor, *, mask_CM: Tensor) -> Tensor:
        """mask_CM: (C, M) bool over context and latents; False is never looked at."""
        C, K, _ = latents_CKD.shape
        # Queries of a group lie behind each other, as if there were more of them: no mask tells
        # them apart, and keys need not be repeated.
        q = self.q_proj(latents_CKD).view(C, K, self.kv_heads, self.groups, self.head_dim)
        q_CHQd = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
        mixed_CHQd = functional.scaled_dot_product_attention(
            q_CHQd,
            self._keys(self.k_proj, latents_CKD, context_CMD),
            self._keys(self.v_proj, latents_CKD, context_CMD),
            attn_mask=mask_CM[:, None, None, :],
        )
        mixed = mixed_CHQd.view(C, self.kv_heads, self.groups, K, self.head_dim)
        out: Tensor = self.o_proj(mixed.permute(0, 3, 1, 2, 4).flatten(2))
        return out

    def _keys(self, linear: nn.Linear, latents_CKD: Tensor, context_CMD: Tensor) -> Tensor:
        # Joined after the projection, where they are narrow.
        both = torch.cat([linear(context_CMD), linear(latents_CKD)], dim=1)
        return both.view(*both.shape[:2], self.kv_heads, self.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, dim: int, *, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)
        nn.init.normal_(self.gate_proj.weight, std=math.sqrt(0.4 / dim))
        nn.init.normal_(self.up_proj.weight, std=math.sqrt(0.4 / dim))
        nn.init.normal_(self.down_proj.weight, std=math.sqrt(0.4 / (2 * hidden)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class PerceiverBlock(nn.Module):
    """Attention and MLP, each with norm before and sum after."""

    def __init__(self, dim: int, *, heads: int, kv_heads: int, head_dim: int, ff_mult: int) -> None:
        super().__init__()
        self.input_latents_norm = WeightedNorm(dim)
        self.input_context_norm = WeightedNorm(dim)
        self.self_attn = Attention(dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        self.post_attention_layernorm = WeightedNorm(dim)
        self.mlp = Mlp(dim, hidden=ff_mult * dim)

    def forward(self, latents_CKD: Tensor, context_CMD: Tensor, *, mask_CM: Tensor) -> Tensor:
        """New latents; mask as of `Attention`."""
        latents_CKD = latents_CKD + self.self_attn(
            self.input_latents_norm(latents_CKD),
            self.input_context_norm(context_CMD),
            mask_CM=mask_CM,
        )
        out: Tensor = latents_CKD + self.mlp(self.post_attention_layernorm(latents_CKD))
        return out


class Perceiver(nn.Module):
    """(C, F, N, dim_in) -> (C, K, width)."""

    def __init__(
        self,
        dim_in: int,
        *,
        width: int,
        num_tokens: int,
        dim: int = 0,
        depth: int = 1,
        heads: int = 16,
        kv_heads: int = 0,
        head_dim: int = 0,
        ff_mult: int = 4,
        positions: bool = False,
    ) -> None:
        """`dim` 0: as `width`. ConfigError: heads that do not divide."""
        super().__init__()
        dim, kv_heads = dim or width, kv_heads or heads
        if heads % kv_heads:
            raise ConfigError(
                f"model.connector.heads = {heads} must be a multiple of kv_heads = {kv_heads}"
            )
        if not head_dim and dim % heads:
            raise ConfigError(
                f"model.connector.heads = {heads} must divide the resampler's width {dim}",
                hint="or say model.connector.head_dim",
            )
        self.proj = nn.Linear(dim_in, dim)
        nn.init.kaiming_normal_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)
        self.positions = Positions(dim) if positions else None
        latents = torch.empty(num_tokens, dim)
        self.latents = nn.Parameter(nn.init.trunc_normal_(latents, mean=0.5, std=0.1))
        self.layers = nn.ModuleList(
            PerceiverBlock(
                dim,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim or dim // heads,
                ff_mult=ff_mult,
            )
            for _ in range(depth)
        )
        self.norm = WeightedNorm(dim)
        self.out = None
        if dim != width:
            self.out = nn.Linear(dim, width)
            nn.init.normal_(self.out.weight, std=dim**-0.5)
            nn.init.zeros_(self.out.bias)

    def forward(
        self,
        features_CFND: Tensor,
        *,
        grid: tuple[int, int],
        frame_mask_CF: Tensor,
        frame_seconds_CF: Tensor,
    ) -> Tensor:
        """Tokens of each clip.

        Frames whose mask is False are never looked at, but must be finite; a clip that has none
        becomes what the latents say of themselves.
        """
        C, _, N, _ = features_CFND.shape
        context = self.proj(features_CFND)
        if self.positions is not None:
            context = context + self.positions(frame_seconds_CF, grid=grid)
        latents_CKD = self.latents.expand(C, -1, -1)
        latents_mask = frame_mask_CF.new_ones(C, len(self.latents))
        mask_CM = torch.cat([frame_mask_CF.repeat_interleave(N, dim=1), latents_mask], dim=1)
        for layer in self.layers:
            latents_CKD = layer(latents_CKD, context.flatten(1, 2), mask_CM=mask_CM)
        tokens: Tensor = self.norm(latents_CKD)
        if self.out is not None:
            tokens = self.out(tokens)
        return tokens


def apollo_key(name: str) -> str:
    """A parameter of `Perceiver` -> how Apollo's state dict names it."""
    if name.startswith("proj."):
        return name.replace("proj.", "proj.0.", 1)
    return f"resampler.{name}".replace(".scale", ".wheight")


def load_apollo(perceiver: Perceiver, state_dict: Mapping[str, Tensor]) -> None:
    """Fill a Perceiver from the connector of a published Apollo model.

    ModelDamaged: keys or shapes are others than this one's, which needs positions none and
    `dim` = `width`.
    """
    wanted = {name: apollo_key(name) for name in perceiver.state_dict()}
    for name, key in wanted.items():
        have = tuple(state_dict[key].shape) if key in state_dict else None
        want = tuple(perceiver.get_parameter(name).shape)
        if have != want:
            found = "is missing" if have is None else f"has shape {list(have)}"
            raise ModelDamaged(
                f"Apollo's connector: {key} {found}, expected {list(want)}",
                hint="depth, heads, tokens and width of model.connector must be those it was"
                " trained with, and positions none",
            )
    more = set(state_dict) - set(wanted.values())
    if more:
        raise ModelDamaged(f"Apollo's connector: {sorted(more)[0]} is not expected")
    perceiver.load_state_dict({name: state_dict[key] for name, key in wanted.items()})
