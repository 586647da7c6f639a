"""SigLIP and SigLIP 2 at fixed resolutions: the image tower of open_clip's models.

The features are all patch tokens of one block, without the final norm; there is no class token.
By default of the block before the last one, which is what transformers calls hidden_states[-2];
layer -1 is its hidden_states[-1], which is not its last_hidden_state: that one is normed.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.choices import choose_block, choose_resize, name_layer
from encoders.devices import choose_precision
from encoders.published import check_fields, config_beside, mentions
from encoders.weights import HubFiles, Weights, find_weights, how_to_get
from schemas.errors import WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

OWN_LAYER = -2
FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "pytorch_model.bin",
)
"""In a folder, in this order."""
OWN_RESIZE = ResizeSpec(library="pillow", filter="bicubic", fit="squash")
APOLLO_RESIZE = ResizeSpec(
    library="pillow", filter="bicubic", fit="pad", background=(127, 127, 127)
)
TRANSFORMERS_MARK = "embeddings.patch_embedding."
"""In a tensor's name: the file has the layout of transformers."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A published model."""

    open_clip: str
    """Its name there."""
    timm: str
    """Of its image tower."""
    image: int
    """Pixels a side of the picture."""
    patch: int
    width: int
    depth: int
    """Blocks."""
    heads: int
    gelu: str
    """As open_clip and timm run it; transformers says so in its config.json."""
    hub: HubFiles
    same_weights: tuple[int, ...] = ()
    """Other picture sizes under which the same weights are published."""

    @property
    def grid(self) -> tuple[int, int]:
        """Whole patches only: of 384 pixels 378 are read where a patch has 14."""
        return self.image // self.patch, self.image // self.patch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    timm: str
    patch: int
    width: int
    depth: int
    heads: int


_B16 = _Family(timm="vit_base_patch16_siglip", patch=16, width=768, depth=12, heads=12)
_B32 = _Family(timm="vit_base_patch32_siglip", patch=32, width=768, depth=12, heads=12)
_L16 = _Family(timm="vit_large_patch16_siglip", patch=16, width=1024, depth=24, heads=16)
_SO14 = _Family(timm="vit_so400m_patch14_siglip", patch=14, width=1152, depth=27, heads=16)
_SO16 = _Family(timm="vit_so400m_patch16_siglip", patch=16, width=1152, depth=27, heads=16)
_G16 = _Family(timm="vit_giantopt_patch16_siglip", patch=16, width=1536, depth=40, heads=16)


def _size(
    family: _Family,
    open_clip: str,
    *,
    image: int,
    gelu: str,
    gigabytes: float,
    repo: str = "",
    same_weights: tuple[int, ...] = (),
) -> Size:
    return Size(
        open_clip=open_clip,
        timm=f"{family.timm}_{image}",
        image=image,
        patch=family.patch,
        width=family.width,
        depth=family.depth,
        heads=family.heads,
        gelu=gelu,
        hub=HubFiles(
            repo=f"timm/{repo or open_clip}",
            files=FILES[:2],
            size_bytes=round(gigabytes * 1e9),
            licence="Apache-2.0",
        ),
        same_weights=same_weights,
    )


_SO384 = "ViT-SO400M-14-SigLIP-384"
SIZES = {
    "siglip-b-16-224": _size(_B16, "ViT-B-16-SigLIP", image=224, gelu="exact", gigabytes=0.81),
    "siglip-b-16-256": _size(_B16, "ViT-B-16-SigLIP-256", image=256, gelu="exact", gigabytes=0.81),
    "siglip-b-16-384": _size(_B16, "ViT-B-16-SigLIP-384", image=384, gelu="exact", gigabytes=0.81),
    "siglip-b-16-512": _size(_B16, "ViT-B-16-SigLIP-512", image=512, gelu="exact", gigabytes=0.82),
    "siglip-l-16-256": _size(_L16, "ViT-L-16-SigLIP-256", image=256, gelu="exact", gigabytes=2.61),
    "siglip-l-16-384": _size(_L16, "ViT-L-16-SigLIP-384", image=384, gelu="exact", gigabytes=2.61),
    "siglip-so400m-14-224": _size(
        _SO14, "ViT-SO400M-14-SigLIP", image=224, gelu="exact", gigabytes=3.51
    ),
    "siglip-so400m-14-378": _size(
        _SO14,
        "ViT-SO400M-14-SigLIP-378",
        image=378,
        gelu="exact",
        gigabytes=3.51,
        repo=_SO384,
        same_weights=(384,),
    ),
    "siglip-so400m-14-384": _size(_SO14, _SO384, image=384, gelu="exact", gigabytes=3.51),
    "siglip2-b-16-224": _size(_B16, "ViT-B-16-SigLIP2", image=224, gelu="exact", gigabytes=1.50),
    "siglip2-b-16-256": _size(
        _B16, "ViT-B-16-SigLIP2-256", image=256, gelu="exact", gigabytes=1.50
    ),
    "siglip2-b-16-384": _size(
        _B16, "ViT-B-16-SigLIP2-384", image=384, gelu="exact", gigabytes=1.50
    ),
    "siglip2-b-16-512": _size(
        _B16, "ViT-B-16-SigLIP2-512", image=512, gelu="exact", gigabytes=1.50
    ),
    "siglip2-b-32-256": _size(_B32, "ViT-B-32-SigLIP2-256", image=256, gelu="tanh", gigabytes=1.51),
    "siglip2-l-16-256": _size(
        _L16, "ViT-L-16-SigLIP2-256", image=256, gelu="exact", gigabytes=3.53
    ),
    "siglip2-l-16-384": _size(
        _L16, "ViT-L-16-SigLIP2-384", image=384, gelu="exact", gigabytes=3.53
    ),
    "siglip2-l-16-512": _size(_L16, "ViT-L-16-SigLIP2-512", image=512, gelu="tanh", gigabytes=3.53),
    "siglip2-so400m-14-224": _size(
        _SO14, "ViT-SO400M-14-SigLIP2", image=224, gelu="exact", gigabytes=4.54
    ),
    "siglip2-so400m-14-378": _size(
        _SO14,
        "ViT-SO400M-14-SigLIP2-378",
        image=378,
        gelu="exact",
        gigabytes=4.54,
        same_weights=(384,),
    ),
    "siglip2-so400m-16-256": _size(
        _SO16, "ViT-SO400M-16-SigLIP2-256", image=256, gelu="tanh", gigabytes=4.54
    ),
    "siglip2-so400m-16-384": _size(
        _SO16, "ViT-SO400M-16-SigLIP2-384", image=384, gelu="tanh", gigabytes=4.54
    ),
    "siglip2-so400m-16-512": _size(
        _SO16, "ViT-SO400M-16-SigLIP2-512", image=512, gelu="tanh", gigabytes=4.55
    ),
    "siglip2-gopt-16-256": _size(
        _G16, "ViT-gopt-16-SigLIP2-256", image=256, gelu="tanh", gigabytes=7.49
    ),
    "siglip2-gopt-16-384": _size(
        _G16, "ViT-gopt-16-SigLIP2-384", image=384, gelu="tanh", gigabytes=7.49
    ),
}
"""By the name in recipes."""


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:
    """Whichever of `SIZES` the settings name. RecipeError, WeightsError."""
    size = SIZES[settings.encoder]
    num_blocks = choose_block(settings, depth=size.depth, own=OWN_LAYER)
    resize = choose_resize(settings, own=OWN_RESIZE, apollo=APOLLO_RESIZE)
    weights = find_files(settings) if settings.weights else None
    gelu = size.gelu if weights is None else _published_gelu(weights, size, settings.encoder)
    return EncoderSpec(
        name=settings.encoder,
        width=size.image,
        height=size.image,
        grid=size.grid,
        dim=size.width,
        architecture=(
            f"{size.open_clip}: {size.depth} blocks of {size.width}, {size.heads} heads,"
            f" patch {size.patch}"
        ),
        preprocessing="/ 255, mean 0.5, std 0.5",
        resize=resize,
        layer=name_layer(num_blocks, depth=size.depth, norm=False),
        activation=f"gelu {settings.gelu or gelu}",
        precision=choose_precision(settings.precision, device=device),
        weights_sha256="" if weights is None else weights.sha256(),
        weights_hint=how_to_get(size.hub),
        libraries=("torch", "timm"),
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> Encoder:
    """The encoder; its `report` says what became of every key. WeightsError, DeviceError."""
    from encoders.siglip_model import load_siglip

    size = SIZES[settings.encoder]
    num_blocks = choose_block(settings, depth=size.depth, own=OWN_LAYER)
    weights = find_files(settings)
    return load_siglip(spec, size=size, weights=weights, num_blocks=num_blocks, runtime=runtime)


def find_files(settings: EncoderSettings) -> Weights:
    """Those that `settings.weights` means. WeightsError."""
    hub = SIZES[settings.encoder].hub
    return find_weights(settings.weights, encoder=settings.encoder, names=FILES, hub=hub)


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
