"""What encoders say of their work, beside what torch counts in models that have shapes only."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from encoders import (
    encoder_spec,
    internvideo2,
    list_encoders,
    list_sound_encoders,
    sound_spec,
    vjepa2,
    whisper,
)
from encoders.efficientnet_model import FeatureMap, make_model
from encoders.operations import Operations, transformer_operations
from encoders.registry import encoder_module
from encoders.timm_tower import TimmTower
from encoders.vjepa2_model import VideoTower, _build
from encoders.whisper_model import build_module
from schemas.recipe import EncoderSettings


def counted(module: torch.nn.Module, *shape: int) -> int:
    """By torch, for an input of a shape; nothing is computed."""
    module = module.to("meta").eval()
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad(), warnings.catch_warnings(), counter:
        warnings.simplefilter("ignore")
        module(torch.empty(*shape))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("encoder", "layer"),
    [
        ("siglip-b-16-224", -1),
        ("siglip-so400m-14-384", -2),
        ("siglip2-so400m-16-384", None),
        ("siglip2-gopt-16-256", -38),
        ("siglip2-b-32-256", None),
        ("dinov3-s-16-256", None),
        ("dinov3-h-plus-16-256", -30),
        ("pe-core-b-16-224", None),
        ("pe-core-l-14-336", -20),
        ("pe-core-g-14-448", -48),
    ],
)
def test_towers_of_pictures(encoder: str, layer: int | None) -> None:
    spec = encoder_spec(EncoderSettings(encoder=encoder, layer=layer))
    size = encoder_module(encoder).SIZES[encoder]
    num_blocks = int(spec.layer.split()[1])
    with torch.device("meta"):
        tower = TimmTower(
            size.timm, num_blocks=num_blocks, norm=False, grid=size.grid, overrides={}
        )
    assert spec.operations is not None
    assert spec.operations.of_clip(2) == counted(tower, 1, 2, 3, size.image, size.image)


@pytest.mark.parametrize("num_frames", [1, 4, 8])
@pytest.mark.parametrize(("encoder", "layer"), [("internvideo2-1b", -38), ("internvideo2-s14", -1)])
def test_internvideo2_attends_over_all_frames(encoder: str, layer: int, num_frames: int) -> None:
    settings = EncoderSettings(encoder=encoder, layer=layer)
    module = internvideo2._module(settings, table_frames=num_frames)
    spec = encoder_spec(settings)
    assert spec.operations is not None
    found = counted(module, 1, num_frames, 3, 224, 224)
    assert spec.operations.of_clip(num_frames) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("num_frames", [2, 6])
@pytest.mark.parametrize("encoder", ["vjepa2-l-16-256", "vjepa2-g-16-384"])
def test_vjepa2_takes_pairs_of_frames(encoder: str, num_frames: int) -> None:
    spec = encoder_spec(EncoderSettings(encoder=encoder, layer=-20))
    size = vjepa2.SIZES[encoder]
    with torch.device("meta"):
        model = _build(size)
    tower = VideoTower(model, num_blocks=size.depth - 19, norm=True, grid=size.grid)
    assert spec.operations is not None
    found = counted(tower, 1, num_frames, 3, size.image, size.image)
    assert spec.operations.of_clip(num_frames) == pytest.approx(found, rel=1e-12)


def test_efficientnet() -> None:
    spec = encoder_spec("efficientnet-lite0")
    assert spec.operations is not None
    assert spec.operations.of_clip(4) == counted(FeatureMap(make_model()), 1, 4, 3, 224, 224)


@pytest.mark.parametrize("encoder", ["whisper-tiny", "whisper-large-v3"])
def test_whisper(encoder: str) -> None:
    size = whisper.SIZES[encoder]
    with torch.device("meta"):
        module = build_module(
            dim=size.dim,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
            num_mels=size.num_mels,
        )
    spec = sound_spec(encoder)
    assert spec.operations is not None
    assert spec.operations.fixed == counted(module, 1, size.num_mels, 3000)


def test_the_published_sizes() -> None:
    """Of both encoders of Apollo whole, as arithmetic has them elsewhere: 667 and 2,306 GFLOP."""
    siglip = encoder_spec(EncoderSettings(encoder="siglip-so400m-14-384", layer=-1))
    video = encoder_spec(EncoderSettings(encoder="internvideo2-1b", layer=-1))
    assert siglip.operations is not None and video.operations is not None
    assert siglip.operations.of_clip(1) == pytest.approx(667e9, rel=2e-3)
    assert video.operations.of_clip(4) == pytest.approx(2306e9, rel=2e-3)


@pytest.mark.parametrize(
    ("names", "spec_of"), [(list_encoders, encoder_spec), (list_sound_encoders, sound_spec)]
)
def test_every_built_in_encoder_says_what_it_does(
    names: Callable[[], list[str]], spec_of: Callable[[str], object]
) -> None:
    for name in names():
        assert isinstance(getattr(spec_of(name), "operations", None), Operations), name


@given(
    tokens=st.integers(1, 300),
    extra=st.integers(0, 5),
    frames=st.integers(1, 16),
    blocks=st.integers(1, 4),
)
def test_joint_attention_is_that_of_one_long_sequence(
    tokens: int, extra: int, frames: int, blocks: int
) -> None:
    shape = {"num_blocks": blocks, "width": 8, "mlp_width": 20, "patch_values": 12}
    joint = transformer_operations(
        **shape, patches_per_frame=tokens, extra_tokens=extra, is_joint=True
    )
    long = transformer_operations(
        **shape,
        patches_per_frame=tokens * frames,
        extra_tokens=extra,
    )
    assert joint.of_clip(frames) == pytest.approx(long.of_clip(1), rel=1e-12)
