"""InternVideo2: the 1B video encoder of stage 2, and its distilled sizes.

Dense features of 224 x 224 frames, 16 x 16 cells a frame, by default from the last block but one:
there is no norm after the last. Any number of frames a clip: the table of positions, of 4 frames
in the 1B and 8 in the distilled files, is interpolated over time. Other image sizes are not
supported. Wang et al., InternVideo2, arXiv 2403.15377.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from encoders.base import EncoderSpec, Runtime, refuse_choices
from encoders.devices import choose_precision
from encoders.operations import Operations, transformer_operations
from encoders.tensors import (
    LoadReport,
    Tensors,
    count_families,
    keep_prefix,
    load_strictly,
    match_keys,
    read_tensors,
)
from encoders.weights import HubFiles, find_weights, how_to_get, weights_sha256
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

if TYPE_CHECKING:
    from encoders.internvideo2_model import InternVideo2
    from encoders.running import TorchEncoder

IMAGE = 224
GRID = 16
"""Cells a side; a cell is 14 pixels."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
DEFAULT_LAYER = -2
VISION_PREFIX = "vision_encoder."
"""Of the keys that are wanted, in files that also hold a text encoder."""
IGNORED = (
    "clip_decoder",
    "final_clip_decoder",
    "mae_decoder",
    "clip_pos_embed",
    "clip_img_pos_embed",
    "mae_pos_embed",
    "img_pos_embed",
    "clip_projector",
    "fc_norm",
    "head",
)
"""Families of keys in published files that features do not need: decoders of training, positions
of other inputs, pooling, classification."""
RESIZES = {
    "own": ResizeSpec(library="pillow", filter="bicubic", fit="squash"),
    "fast": ResizeSpec(),
    "apollo": ResizeSpec(
        library="opencv", filter="bilinear", fit="pad", background=(123, 116, 103)
    ),
}
RANDOM_NOTE = "random weights from a seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One of the published models."""

    width: int
    depth: int
    num_heads: int
    mlp_width: int
    table_frames: int
    """Frames of the table of positions as published; of a file its own number is taken."""
    hub: HubFiles
    names: tuple[str, ...]
    """Files that are looked for in a folder."""


def _distilled(name: str, *, width: int, depth: int, num_heads: int, size_bytes: int) -> Size:
    hub = HubFiles(
        repo="OpenGVLab/InternVideo2_distillation_models",
        files=(f"stage1/{name}/{name}_dist_1B_stage2/pytorch_model.bin",),
        size_bytes=size_bytes,
        licence="see the repository's page",
    )
    return Size(
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp_width=4 * width,
        table_frames=8,
        hub=hub,
        names=("model.safetensors", "pytorch_model.bin", *hub.files),
    )


SIZES = {
    "internvideo2-1b": Size(
        width=1408,
        depth=40,
        num_heads=16,
        mlp_width=6144,
        table_frames=4,
        hub=HubFiles(
            repo="OpenGVLab/InternVideo2-Stage2_1B-224p-f4",
            files=("InternVideo2-stage2_1b-224p-f4.pt",),
            size_bytes=2_820_000_000,
            licence="see the repository's page",
            gated=True,
        ),
        names=("model.safetensors", "InternVideo2-stage2_1b-224p-f4.pt"),
    ),
    "internvideo2-l14": _distilled(
        "L14", width=1024, depth=24, num_heads=16, size_bytes=650_000_000
    ),
    "internvideo2-b14": _distilled(
        "B14", width=768, depth=12, num_heads=12, size_bytes=205_000_000
    ),
    "internvideo2-s14": _distilled("S14", width=384, depth=12, num_heads=6, size_bytes=60_000_000),
}


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:
    """What the encoder is with these settings; RecipeError: a layer that it has not."""
    refuse_choices(settings, but=("weights", "layer", "gelu", "resize", "precision"))
    name = settings.encoder
    size = SIZES[name]
    num_blocks = _num_blocks(settings)
    sha256 = weights_sha256(settings.weights, encoder=name, names=size.names, hub=size.hub)
    return EncoderSpec(
        name=name,
        width=IMAGE,
        height=IMAGE,
        grid=(GRID, GRID),
        dim=size.width,
        architecture=(
            f"InternVideo2 {size.width} x {size.depth}, {size.num_heads} heads,"
            f" MLP {size.mlp_width}, patch 14; RMSNorm of q and k over the width,"
            " layer scale in float32; positions linear over time"
        ),
        preprocessing=f"/ 255, mean {MEAN}, std {STD}",
        resize=RESIZES[settings.resize or "own"],
        layer=f"block {num_blocks} of {size.depth}, no norm, without CLS",
        activation=f"gelu {settings.gelu or 'tanh'}",
        precision=choose_precision(settings.precision, device=device),
        weights_sha256=sha256,
        weights_hint=how_to_get(size.hub),
        libraries=("torch",),
        operations=_operations(size, num_blocks=num_blocks),
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> TorchEncoder:
    """The encoder with its weights; only the blocks that are run are built and read.

    WeightsError: not the weights of this model, with the keys. Its `report` is a LoadReport.
    """
    from encoders.running import TorchEncoder

    size = SIZES[spec.name]
    weights = find_weights(settings.weights, encoder=spec.name, names=size.names, hub=size.hub)
    if weights.is_random:
        module = _module(settings, table_frames=size.table_frames)
        module.randomise(seed=0)
        report = _report_random(module)
    else:
        source = str(weights.paths[0])
        tensors, outside = _visual(read_tensors(weights))
        table_frames = _table_frames(tensors, source=source)
        module = _module(settings, table_frames=table_frames)
        unused = (f"blocks.{i}" for i in range(len(module.blocks), size.depth))
        report = load_strictly(
            module,
            tensors,
            source=source,
            ignored=(*IGNORED, *unused),
            dropped=outside,
            note=f"positions of {table_frames} frames, interpolated for clips of another number",
        )
    return TorchEncoder(module, spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report)


def published_tensors(
    encoder: str, tensors: Tensors, *, source: str
) -> tuple[Tensors, dict[str, int]]:
    """Of a published file: what features of any layer need, and families left out -> how many.

    WeightsError: not the weights of this model.
    """
    inside, outside = _visual(tensors)
    every = EncoderSettings(encoder=encoder, layer=-1)
    module = _module(every, table_frames=_table_frames(inside, source=source))
    expected = module.state_dict()
    ignored = match_keys(expected, inside, source=source, ignored=IGNORED)
    return {key: inside[key] for key in expected}, dict(sorted((outside | ignored).items()))


def _operations(size: Size, *, num_blocks: int) -> Operations:
    return transformer_operations(
        num_blocks=num_blocks,
        width=size.width,
        mlp_width=size.mlp_width,
        patches_per_frame=GRID**2,
        patch_values=3 * (IMAGE // GRID) ** 2,
        extra_tokens=1,
        is_joint=True,
    )


def _num_blocks(settings: EncoderSettings) -> int:
    depth = SIZES[settings.encoder].depth
    layer = DEFAULT_LAYER if settings.layer is None else settings.layer
    if not -depth <= layer <= -1:
        raise RecipeError(
            f"layer = {layer}: {settings.encoder} has the layers -{depth} to -1, from the end"
        )
    return depth + 1 + layer


def _module(settings: EncoderSettings, *, table_frames: int) -> InternVideo2:
    import torch

    from encoders.internvideo2_model import InternVideo2

    size = SIZES[settings.encoder]
    with torch.device("meta"):
        return InternVideo2(
            width=size.width,
            num_blocks=_num_blocks(settings),
            num_heads=size.num_heads,
            mlp_width=size.mlp_width,
            table_frames=table_frames,
            gelu=settings.gelu or "tanh",
        )


def _visual(tensors: Tensors) -> tuple[Tensors, dict[str, int]]:
    # A file with a text encoder names the video encoder's keys with a prefix, any other does not.
    inside = keep_prefix(tensors, VISION_PREFIX)
    if len(inside) == len(tensors):
        return inside, {}
    return inside, count_families(key for key in tensors if not key.startswith(VISION_PREFIX))


def _table_frames(tensors: Tensors, *, source: str) -> int:
    # A wrong width is found with all other shapes, later.
    table = tensors.get("pos_embed")
    rows = table.shape[1] - 1 if table is not None and table.ndim == 3 else 0
    if rows < 1 or rows % GRID**2:
        what = "missing" if table is None else f"{tuple(table.shape)}"
        raise WeightsError(
            f"{source}: not the weights of this model: pos_embed is {what},"
            f" expected (1, 1 + frames * {GRID**2}, D)",
            hint="see docs/encoders.md for the files that are known",
        )
    return rows // GRID**2


def _report_random(module: InternVideo2) -> LoadReport:
    state = module.state_dict()
    return LoadReport(
        loaded=tuple(state),
        ignored={},
        num_parameters=sum(value.numel() for value in state.values()),
        note=RANDOM_NOTE,
    )
