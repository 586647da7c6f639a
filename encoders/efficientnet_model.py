"""The network of EfficientNet-Lite0, from timm; its weights are found by `efficientnet`.

Shapes: B clips, T frames, H, W pixels, h, w cells, D channels.
"""

from __future__ import annotations

from typing import Any

import timm
import torch


def make_model() -> Any:
    """The model of timm up to the last map of features, with random weights from a seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return timm.create_model(
            "tf_efficientnet_lite0", pretrained=False, num_classes=0, global_pool=""
        )


class FeatureMap(torch.nn.Module):
    """Every frame by itself: (B, T, 3, H, W) float32 -> (B, T, h, w, D)."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images_BTCHW: torch.Tensor) -> torch.Tensor:
        B, T = images_BTCHW.shape[:2]
        map_NDhw: torch.Tensor = self.model.forward_features(images_BTCHW.flatten(0, 1))  # type: ignore[operator]
        return map_NDhw.permute(0, 2, 3, 1).reshape(B, T, *map_NDhw.shape[2:], -1)
