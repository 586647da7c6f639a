"""SigLIP's image tower from files of weights; needs torch."""

from __future__ import annotations

from encoders.base import EncoderSpec, Runtime
from encoders.running import TorchEncoder
from encoders.siglip_keys import to_timm
from encoders.siglip_sizes import Size
from encoders.tensors import read_tensors
from encoders.timm_tower import loaded_tower, random_tower
from encoders.weights import Weights

MEAN = STD = (0.5, 0.5, 0.5)
ACTIVATIONS = {"gelu exact": "gelu", "gelu tanh": "gelu_tanh"}
"""Of a spec -> of timm."""


def load_siglip(
    spec: EncoderSpec, *, size: Size, weights: Weights, num_blocks: int, runtime: Runtime
) -> TorchEncoder:
    """The first `num_blocks` blocks of the tower. WeightsError, DeviceError."""
    choices = {
        "num_blocks": num_blocks,
        "norm": False,
        "grid": size.grid,
        "overrides": {"act_layer": ACTIVATIONS[spec.activation]},
    }
    report = None
    if weights.is_random:
        tower = random_tower(size.timm, **choices)
    else:
        tensors, ignored = to_timm(read_tensors(weights))
        source = str(weights.paths[0])
        tower, report = loaded_tower(size.timm, tensors, source=source, ignored=ignored, **choices)
    return TorchEncoder(tower, spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report)
