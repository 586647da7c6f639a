"""The module of InternVideo2's video encoder, up to the block whose output is wanted.

Keys as published. Shapes: B clips, T frames, H, W pixels, h, w cells, N = 1 + T h w
tokens, D width.
What keeps float32 under autocast: the norms, the layer scale, the sum of the blocks.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

PATCH = 14
"""Pixels a side; a frame deep."""
CELLS = 256
"""Of a frame, 16 x 16: the table of positions has no other."""
EPS = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x) in float32, cast to the dtype of x, and only then times the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x, self.weight.shape, eps=EPS)  # adds up in float32 by itself
        return normed.to(x.dtype) * self.weight.to(x.dtype)


class LayerScale(nn.Module):
    """Times a learned vector, the product in float32 and then cast to the dtype of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float32) * self.gamma).to(x.dtype)


class Attention(nn.Module):
    """Of all tokens of a clip to each other; q and k are normed over all heads together."""

    def __init__(self, width: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_norm = RMSNorm(width)
        self.k_norm = RMSNorm(width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x_BND).chunk(3, dim=-1)
        q, k, v = self._split(self.q_norm(q)), self._split(self.k_norm(k)), self._split(v)
        mixed_BHNd = functional.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.proj(mixed_BHNd.transpose(1, 2).flatten(2))
        return out

    def _split(self, x_BND: torch.Tensor) -> torch.Tensor:
        return x_BND.reshape(*x_BND.shape[:2], self.num_heads, -1).transpose(1, 2)


class Mlp(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, width: int, *, hidden: int, gelu: Literal["tanh", "exact"]) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(functional.gelu(self.fc1(x), approximate=self.approximate))
        return out


class Block(nn.Module):
    """Attention and MLP, each normed before and scaled after."""

    def __init__(
        self, width: int, *, num_heads: int, mlp_width: int, gelu: Literal["tanh", "exact"]
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(width)
        self.attn = Attention(width, num_heads=num_heads)
        self.ls1 = LayerScale(width)
        self.norm2 = RMSNorm(width)
        self.mlp = Mlp(width, hidden=mlp_width, gelu=gelu)
        self.ls2 = LayerScale(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: torch.Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class PatchEmbed(nn.Module):
    """One linear map of each patch; the convolution has no overlap, and one frame of depth."""

    def __init__(self, width: int) -> None:
        super().__init__()
        size = (1, PATCH, PATCH)
        self.proj = nn.Conv3d(3, width, kernel_size=size, stride=size)

    def forward(self, x_BTCHW: torch.Tensor) -> torch.Tensor:
        """-> (B, T h w, D), frame by frame, row by row."""
        B = x_BTCHW.shape[0]
        # Of depth one, so frame by frame in two dimensions: nothing has to be transposed.
        weight = self.proj.weight.squeeze(2)
        cells = functional.conv2d(x_BTCHW.flatten(0, 1), weight, self.proj.bias, stride=PATCH)
        return cells.flatten(2).transpose(1, 2).reshape(B, -1, cells.shape[1])


class InternVideo2(nn.Module):
    """(B, T, 3, 224, 224) float32, normalised -> (B, T, 16, 16, D): the last block's, without CLS.

    `table_frames` is of the table of positions; another T is interpolated.
    """

    def __init__(
        self,
        *,
        width: int,
        num_blocks: int,
        num_heads: int,
        mlp_width: int,
        table_frames: int,
        gelu: Literal["tanh", "exact"] = "tanh",
    ) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + table_frames * CELLS, width))
        self.blocks = nn.ModuleList(
            Block(width, num_heads=num_heads, mlp_width=mlp_width, gelu=gelu)
            for _ in range(num_blocks)
        )
        self._positions: dict[tuple[int, torch.device], torch.Tensor] = {}

    def forward(self, x_BTCHW: torch.Tensor) -> torch.Tensor:
        B, T, _, H, W = x_BTCHW.shape
        patches = self.patch_embed(x_BTCHW)
        x_BND = torch.cat([self.cls_token.expand(B, -1, -1), patches], dim=1)
        x_BND = x_BND + self.positions(T)
        for block in self.blocks:
            x_BND = block(x_BND)
        return x_BND[:, 1:].reshape(B, T, H // PATCH, W // PATCH, -1)

    def positions(self, num_frames: int) -> torch.Tensor:
        """(1, 1 + T h w, D): the table, each cell linear over time, CLS as it is."""
        if self.pos_embed.shape[1] == 1 + num_frames * CELLS:
            return self.pos_embed
        key = (num_frames, self.pos_embed.device)
        if key not in self._positions:
            self._positions[key] = _stretch(self.pos_embed.detach(), num_frames=num_frames)
        return self._positions[key]

    @torch.no_grad()
    def randomise(self, *, seed: int) -> None:
        """Fill every parameter from the seed, also of a module on the device `meta`."""
        self.to_empty(device="cpu")
        generator = torch.Generator().manual_seed(seed)
        for name, value in self.named_parameters():
            if name.endswith(("norm.weight", "norm1.weight", "norm2.weight")):
                value.fill_(1.0)
            elif name.endswith("gamma"):
                value.fill_(0.1)
            elif name.endswith("bias"):
                value.zero_()
            else:
                value.normal_(std=0.02, generator=generator)


def _stretch(table_1ND: torch.Tensor, *, num_frames: int) -> torch.Tensor:
    table_1ND = table_1ND.to(torch.float32)
    cls, width = table_1ND[:, :1], table_1ND.shape[-1]
    over_time = table_1ND[:, 1:].reshape(1, -1, CELLS * width).transpose(1, 2)
    stretched = functional.interpolate(
        over_time, size=num_frames, mode="linear", align_corners=False
    )
    return torch.cat([cls, stretched.transpose(1, 2).reshape(1, -1, width)], dim=1)
