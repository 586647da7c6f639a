"""FLOP of the encoders' forwards, 2 a multiplication and addition; and what cards can do."""

from __future__ import annotations

import time

from encoders import encoder_spec
from encoders.registry import encoder_module
from schemas.card import read_cards
from schemas.recipe import EncoderSettings


def clip_flops(encoder: str, *, num_blocks: int, num_frames: int) -> float:
    """Of one clip through so many blocks, as the encoder itself says."""
    layer = num_blocks - encoder_module(encoder).SIZES[encoder].depth - 1
    operations = encoder_spec(EncoderSettings(encoder=encoder, layer=layer)).operations
    assert operations is not None
    return operations.of_clip(num_frames)


def num_blocks(encoder: str, *, layer: int) -> int:
    """How many blocks run for a layer that is counted from the end. KeyError: it has no blocks."""
    sizes = getattr(encoder_module(encoder), "SIZES", {})
    depth: int = sizes[encoder].depth
    return depth + 1 + layer


def peak_flops(device: str, *, size: int = 8192) -> tuple[float, str]:
    """FLOP a second of bfloat16 products, and where that is from: the table, or a large product."""
    import torch

    if device != "cpu":
        name = torch.cuda.get_device_name(device)
        # Whole words: an L40 is no L4, and an H100 PCIe is no SXM but near enough to say so.
        peaks = {card.name.split()[0]: card.tflops for card in read_cards().cards}
        for word in name.replace("-", " ").split():
            if word in peaks:
                return peaks[word] * 1e12, f"{name}, by its name"
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
