"""V-JEPA 2's encoder from files of weights; needs torch and transformers.

Shapes: B clips, T frames, C colours, H, W pixels, h, w cells, D channels.
"""

from __future__ import annotations

from typing import Any

import torch

from encoders.base import EncoderSpec, Runtime
from encoders.running import TorchEncoder
from encoders.tensors import load_strictly, read_tensors
from encoders.vit import Vit
from encoders.weights import Weights
from schemas.errors import UsageError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREFIX = "encoder."


class VideoTower(torch.nn.Module):
    """The first `num_blocks` blocks, and the norm after the last one where it is asked for."""

    encoder: Any

    def __init__(self, encoder: Any, *, num_blocks: int, norm: bool, grid: tuple[int, int]) -> None:
        """`encoder` is a VJEPA2Encoder of transformers."""
        super().__init__()
        self.encoder = encoder
        self.grid = grid
        encoder.layer = encoder.layer[:num_blocks]
        if not norm:
            encoder.layernorm = torch.nn.Identity()

    def forward(self, images_BTCHW: torch.Tensor) -> torch.Tensor:
        """(B, T, 3, H, W) float32 normalised -> (B, ceil(T / 2), h, w, D)."""
        if images_BTCHW.shape[1] % 2:
            images_BTCHW = torch.cat([images_BTCHW, images_BTCHW[:, -1:]], dim=1)
        tokens_BLD: torch.Tensor = self.encoder(pixel_values_videos=images_BTCHW).last_hidden_state
        B, _, D = tokens_BLD.shape
        return tokens_BLD.reshape(B, -1, *self.grid, D)


def load_vjepa2(
    spec: EncoderSpec,
    *,
    size: Vit,
    weights: Weights,
    num_blocks: int,
    norm: bool,
    runtime: Runtime,
) -> TorchEncoder:
    """The encoder without its predictor. WeightsError, DeviceError, UsageError."""
    device = "cpu" if weights.is_random else "meta"
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        encoder = _build(size)
    depth = len(encoder.layer)
    tower = VideoTower(encoder, num_blocks=num_blocks, norm=norm, grid=size.grid)
    report = None
    if not weights.is_random:
        tensors = {k.removeprefix(PREFIX): v for k, v in read_tensors(weights).items()}
        dropped = [f"layer.{i}" for i in range(num_blocks, depth)]
        ignored = ("predictor", *dropped, *(() if norm else ("layernorm",)))
        source = str(weights.paths[0])
        report = load_strictly(encoder, tensors, source=source, ignored=ignored)
    return TorchEncoder(tower, spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report)


def _build(size: Vit) -> Any:
    try:
        from transformers import VJEPA2Config, VJEPA2Model
    except ImportError as error:
        raise UsageError(
            f"V-JEPA 2 needs transformers: {error}", hint="pip install 'reelcache[transformers]'"
        ) from error
    shape: dict[str, Any] = {
        "patch_size": size.patch,
        "crop_size": size.image,
        "hidden_size": size.width,
        "num_hidden_layers": size.depth,
        "num_attention_heads": size.heads,
        "mlp_ratio": (size.mlp_width or 4 * size.width) / size.width,
        "attn_implementation": "sdpa",
        "pred_num_hidden_layers": 1,
    }
    return VJEPA2Model(VJEPA2Config(**shape)).encoder
