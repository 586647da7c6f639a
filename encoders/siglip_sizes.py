"""The published sizes of SigLIP and SigLIP 2; each row is checked against open_clip and timm."""

from __future__ import annotations

from dataclasses import dataclass

from encoders.vit import Vit
from encoders.weights import HubFiles

FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "pytorch_model.bin",
)
"""In a folder, in this order."""
TRANSFORMERS_MARK = "embeddings.patch_embedding."
"""In a tensor's name: the file has the layout of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Vit):
    """A published model."""

    open_clip: str
    """Its name there."""
    timm: str
    """Of its image tower."""
    gelu: str
    """As open_clip and timm run it; transformers says so in its config.json."""
    same_weights: tuple[int, ...] = ()
    """Other picture sizes under which the same weights are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    timm: str
    patch: int
    width: int
    depth: int
    heads: int
    mlp_width: int = 0


_B16 = _Family(timm="vit_base_patch16_siglip", patch=16, width=768, depth=12, heads=12)
_B32 = _Family(timm="vit_base_patch32_siglip", patch=32, width=768, depth=12, heads=12)
_L16 = _Family(timm="vit_large_patch16_siglip", patch=16, width=1024, depth=24, heads=16)
_SO14 = _Family(
    timm="vit_so400m_patch14_siglip", patch=14, width=1152, depth=27, heads=16, mlp_width=4304
)
_SO16 = _Family(
    timm="vit_so400m_patch16_siglip", patch=16, width=1152, depth=27, heads=16, mlp_width=4304
)
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
        mlp_width=family.mlp_width,
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
