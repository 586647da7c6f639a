"""FLOP of the encoders' forwards, 2 a multiplication and addition; and what cards can do."""

from __future__ import annotations

import time

from encoders.internvideo2 import SIZES as INTERNVIDEO2
from encoders.siglip_sizes import SIZES as SIGLIP

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L4": 121.0}
"""Dense bfloat16, by a word of the card's name; of SXM cards, from the vendor's pages."""
_SO400M_MLP = 4304
_COLOURS = 3


def vit_flops(
    *, num_blocks: int, num_tokens: int, width: int, mlp_width: int, num_patches: int, patch: int
) -> int:
    """Of one forward: products of the blocks, attention, and the embedding of the patches."""
    block = (4 * width**2 + 2 * width * mlp_width) * num_tokens + 2 * num_tokens**2 * width
    return 2 * (num_blocks * block + _COLOURS * patch**2 * width * num_patches)


def clip_flops(encoder: str, *, num_blocks: int, num_frames: int) -> int:
    """Of one clip. KeyError: an encoder whose shape is not known here."""
    if encoder in INTERNVIDEO2:
        video = INTERNVIDEO2[encoder]
        num_patches = 256 * num_frames
        return vit_flops(
            num_blocks=num_blocks,
            num_tokens=num_patches + 1,
            width=video.width,
            mlp_width=video.mlp_width,
            num_patches=num_patches,
            patch=14,
        )
    image = SIGLIP[encoder]
    num_patches = image.grid[0] * image.grid[1]
    frame = vit_flops(
        num_blocks=num_blocks,
        num_tokens=num_patches,
        width=image.width,
        mlp_width=_SO400M_MLP if "so400m" in encoder else 4 * image.width,
        num_patches=num_patches,
        patch=image.patch,
    )
    return num_frames * frame


def num_blocks(encoder: str, *, layer: int) -> int:
    """How many blocks run for a layer that is counted from the end. KeyError as of `clip_flops`."""
    sizes = INTERNVIDEO2 if encoder in INTERNVIDEO2 else SIGLIP
    return sizes[encoder].depth + 1 + layer


def peak_flops(device: str, *, size: int = 8192) -> tuple[float, str]:
    """FLOP a second of bfloat16 products, and where that is from: the table, or a large product."""
    import torch

    if device != "cpu":
        name = torch.cuda.get_device_name(device)
        # Whole words: an L40 is no L4, and an H100 PCIe is no SXM but near enough to say so.
        for word in name.replace("-", " ").split():
            if word in PEAK_TFLOPS:
                return PEAK_TFLOPS[word] * 1e12, f"{name}, by its name"
    a = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    best = 0.0
    for _ in range(10):
        synchronize(device)
        began = time.perf_counter()
        torch.mm(a, a)
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best, f"a product of {size} x {size}"


def synchronize(device: str) -> None:
    """Wait for all that was asked of the device."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)
