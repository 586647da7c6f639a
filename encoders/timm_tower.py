"""TimmTower: the patch tokens of one block of a vision transformer of timm.

Shapes: B clips, T frames, C colours, H, W pixels, h, w cells, D channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import timm
import torch

from encoders.tensors import LoadReport, Tensors, load_strictly

OPEN_CLIP_PREFIX = "visual.trunk."
"""Of the image tower in the files of open_clip."""
OPEN_CLIP_OTHERS = ("text", "logit_scale", "logit_bias")
"""Families of keys beside it."""
HEADS = ("attn_pool", "head", "fc_norm")
"""Families of keys of timm that come after the last block and its norm."""


class TimmTower(torch.nn.Module):
    """The first `num_blocks` blocks, and the norm after the last one where it is asked for."""

    trunk: Any

    def __init__(
        self,
        name: str,
        *,
        num_blocks: int,
        norm: bool,
        grid: tuple[int, int],
        overrides: Mapping[str, Any],
    ) -> None:
        """`name` is timm's, `overrides` are arguments of timm.create_model."""
        super().__init__()
        self.trunk = timm.create_model(name, num_classes=0, global_pool="", **overrides)
        self.depth = len(self.trunk.blocks)
        self.norm = norm
        self.grid = grid
        self.trunk.prune_intermediate_layers([num_blocks - 1], prune_norm=not norm)

    def forward(self, images_BTCHW: torch.Tensor) -> torch.Tensor:
        """(B, T, 3, H, W) float32 normalised -> (B, T, h, w, D), without class or registers."""
        tokens_NLD: torch.Tensor
        (tokens_NLD,) = self.trunk.forward_intermediates(
            images_BTCHW.flatten(0, 1),
            indices=1,
            norm=self.norm,
            output_fmt="NLC",
            intermediates_only=True,
        )
        return tokens_NLD.reshape(*images_BTCHW.shape[:2], *self.grid, -1)

    def dropped(self) -> tuple[str, ...]:
        """Families of timm's keys of which this tower has no use."""
        blocks = range(len(self.trunk.blocks), self.depth)
        return (*HEADS, *(f"blocks.{i}" for i in blocks), *(() if self.norm else ("norm",)))


def random_tower(name: str, **choices: Any) -> TimmTower:
    """With seeded random weights; `choices` as of `TimmTower`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TimmTower(name, **choices)


def loaded_tower(
    name: str, tensors: Tensors, *, source: str, ignored: Iterable[str] = (), **choices: Any
) -> tuple[TimmTower, LoadReport]:
    """With these tensors in timm's keys; `choices` as of `TimmTower`.

    WeightsError: a key is missing, or is neither the tower's nor of what it drops or of `ignored`.
    """
    with torch.device("meta"):
        tower = TimmTower(name, **choices)
    report = load_strictly(
        tower.trunk, tensors, source=source, ignored=(*tower.dropped(), *ignored)
    )
    _fill_buffers(tower)
    return tower, report


def strip_open_clip(tensors: Tensors) -> Tensors:
    """Keys of open_clip -> of timm; all others stay as they are."""
    return {key.removeprefix(OPEN_CLIP_PREFIX): value for key, value in tensors.items()}


def _fill_buffers(module: torch.nn.Module) -> None:
    # Tables that no file holds: still to be computed after a construction without memory.
    for part in module.modules():
        missing = {k: b for k, b in part.named_buffers(recurse=False) if b.is_meta}
        for key, buffer in missing.items():
            part.register_buffer(key, torch.empty_like(buffer, device="cpu"), persistent=False)
        if missing:
            part.init_non_persistent_buffers()  # type: ignore[operator]
