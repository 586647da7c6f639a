"""SigLIP and SigLIP 2 at fixed resolutions: the image tower of open_clip's models.

The features are all patch tokens of one block, without the final norm; there is no class token.
By default of the block before the last one, which is what transformers calls hidden_states[-2];
layer -1 is its hidden_states[-1], which is not its last_hidden_state: that one is normed.
"""

from __future__ import annotations

from pathlib import Path

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.devices import choose_precision
from encoders.published import check_fields, config_beside, mentions
from encoders.siglip_sizes import FILES, SIZES, TRANSFORMERS_MARK, Size
from encoders.text_space import Ending, TextEncoder
from encoders.vit import choose_block, choose_resize, find_files, name_layer
from encoders.weights import Weights, how_to_get
from schemas.errors import WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

OWN_LAYER = -2
OWN_RESIZE = ResizeSpec(library="pillow", filter="bicubic", fit="squash")
APOLLO_RESIZE = ResizeSpec(
    library="pillow", filter="bicubic", fit="pad", background=(127, 127, 127)
)
_GELUS = {"gelu_pytorch_tanh": "tanh", "gelu": "exact"}
"""Names of transformers."""
_TRANSFORMERS_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""What a config.json leaves out."""


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:
    """Whichever of `SIZES` the settings name. RecipeError, WeightsError."""
    size = SIZES[settings.encoder]
    num_blocks = choose_block(settings, depth=size.depth, own=OWN_LAYER)
    resize = choose_resize(settings, own=OWN_RESIZE, apollo=APOLLO_RESIZE)
    weights = find_files(size, settings, names=FILES) if settings.weights else None
    gelu = size.gelu if weights is None else _published_gelu(weights, size, settings.encoder)
    return EncoderSpec(
        name=settings.encoder,
        width=size.image,
        height=size.image,
        grid=size.grid,
        dim=size.width,
        architecture=f"{size.open_clip}: {size.shape}",
        preprocessing="/ 255, mean 0.5, std 0.5",
        resize=resize,
        layer=name_layer(num_blocks, depth=size.depth, norm=False),
        activation=f"gelu {settings.gelu or gelu}",
        precision=choose_precision(settings.precision, device=device),
        weights_sha256="" if weights is None else weights.sha256(),
        weights_hint=how_to_get(size.hub),
        libraries=("torch", "timm"),
        operations=size.operations(num_blocks),
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> Encoder:
    """The encoder; its `report` says what became of every key. WeightsError, DeviceError."""
    from encoders.siglip_model import load_siglip

    size = SIZES[settings.encoder]
    num_blocks = choose_block(settings, depth=size.depth, own=OWN_LAYER)
    weights = find_files(size, settings, names=FILES)
    return load_siglip(spec, size=size, weights=weights, num_blocks=num_blocks, runtime=runtime)


def load_ending(settings: EncoderSettings, *, runtime: Runtime) -> Ending:
    """What comes after the cached layer; see `text_space.load_ending`."""
    from encoders.siglip_text import load_siglip_ending

    size, weights = _found(settings)
    return load_siglip_ending(
        spec(settings, device=runtime.device),
        size=size,
        weights=weights,
        num_blocks=choose_block(settings, depth=size.depth, own=OWN_LAYER),
        runtime=runtime,
    )


def load_text(
    settings: EncoderSettings, *, tokenizer: Path | None, runtime: Runtime
) -> TextEncoder:
    """The text tower; see `text_space.load_text`."""
    from encoders.siglip_text import load_siglip_text

    size, weights = _found(settings)
    return load_siglip_text(
        spec(settings, device=runtime.device),
        size=size,
        weights=weights,
        gelu=settings.gelu or _text_gelu(weights),
        tokenizer=tokenizer,
        runtime=runtime,
    )


def _found(settings: EncoderSettings) -> tuple[Size, Weights]:
    size = SIZES[settings.encoder]
    if not settings.weights:
        raise WeightsError(
            f"the encoder {settings.encoder} needs its weights", hint=how_to_get(size.hub)
        )
    return size, find_files(size, settings, names=FILES)


def _text_gelu(weights: Weights) -> str:
    # Of a file of transformers; open_clip has its own word on it.
    if weights.is_random or not mentions(weights, TRANSFORMERS_MARK):
        return ""
    beside = config_beside(weights, "config.json")
    text = {} if beside is None else beside[1].get("text_config")
    name = text.get("hidden_act") if isinstance(text, dict) else None
    return _GELUS.get(str(name or _TRANSFORMERS_DEFAULTS["hidden_act"]), "tanh")


def _published_gelu(weights: Weights, size: Size, encoder: str) -> str:
    """As the library runs it in whose layout the file is; WeightsError: of another model."""
    if weights.is_random:
        return size.gelu
    if mentions(weights, TRANSFORMERS_MARK):
        return _check_transformers(weights, size, encoder)
    _check_timm(weights, size, encoder)
    return size.gelu


def _check_transformers(weights: Weights, size: Size, encoder: str) -> str:
    beside = config_beside(weights, "config.json")
    if beside is None:
        return _GELUS[str(_TRANSFORMERS_DEFAULTS["hidden_act"])]
    path, config = beside
    if not str(config.get("model_type", "")).startswith("siglip"):
        raise WeightsError(f"{path}: model_type = {config.get('model_type')!r} is no SigLIP")
    within = "vision_config" if "vision_config" in config else ""
    vision = config[within] if within else config
    vision = _TRANSFORMERS_DEFAULTS | (vision if isinstance(vision, dict) else {})
    expected = {
        "image_size": (size.image, *size.same_weights),
        "patch_size": (size.patch,),
        "hidden_size": (size.width,),
        "num_hidden_layers": (size.depth,),
        "num_attention_heads": (size.heads,),
        "layer_norm_eps": (1e-6,),
        "hidden_act": tuple(_GELUS),
    }
    check_fields(path, vision, expected, encoder=encoder, within=within)
    return _GELUS[vision["hidden_act"]]


def _check_timm(weights: Weights, size: Size, encoder: str) -> None:
    family = size.timm.rpartition("_")[0]
    images = (size.image, *size.same_weights)
    names = tuple(f"{family}_{image}" for image in images)
    beside = config_beside(weights, "open_clip_config.json")
    if beside is not None:
        path, config = beside
        model = config.get("model_cfg")
        vision = model.get("vision_cfg") if isinstance(model, dict) else None
        expected = {"image_size": images, "timm_model_name": names}
        found = vision if isinstance(vision, dict) else {}
        check_fields(path, found, expected, encoder=encoder, within="model_cfg.vision_cfg")
        return
    beside = config_beside(weights, "config.json")
    if beside is not None and "architecture" in beside[1]:
        check_fields(*beside, {"architecture": names}, encoder=encoder)
