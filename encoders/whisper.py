"""Whisper's encoder: names, sizes and what it is, without torch; `whisper_model` computes.

Thirty seconds are encoded together and cut into windows of a second, 50 tokens each. Source of the
sizes: Radford et al. 2022 (arXiv 2212.04356), table 1, and the published configurations.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoders.base import Runtime, refuse_choices
from encoders.devices import choose_precision
from encoders.operations import Operations, transformer_operations
from encoders.sound import SoundEncoder, SoundSpec
from encoders.weights import HubFiles, find_weights, how_to_get, weights_sha256
from schemas.recipe import EncoderSettings

RATE = 16_000
CHUNK_SECONDS = 30
TOKENS_PER_SECOND = 50
FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperSize:
    """One of the published sizes; the encoder's part of it."""

    dim: int
    num_layers: int
    num_heads: int
    num_mels: int = 80
    file_bytes: int
    """Of the published file, decoder included; about."""


SIZES = {
    "whisper-tiny": WhisperSize(dim=384, num_layers=4, num_heads=6, file_bytes=151_000_000),
    "whisper-base": WhisperSize(dim=512, num_layers=6, num_heads=8, file_bytes=290_000_000),
    "whisper-small": WhisperSize(dim=768, num_layers=12, num_heads=12, file_bytes=967_000_000),
    "whisper-medium": WhisperSize(dim=1024, num_layers=24, num_heads=16, file_bytes=3_060_000_000),
    "whisper-large-v3": WhisperSize(
        dim=1280, num_layers=32, num_heads=20, num_mels=128, file_bytes=3_090_000_000
    ),
}


def hub_files(name: str) -> HubFiles:
    """Where the weights are published."""
    return HubFiles(
        repo=f"openai/{name}",
        files=FILES,
        size_bytes=SIZES[name].file_bytes,
        licence="Apache-2.0",
    )


def spec(settings: EncoderSettings, *, device: str) -> SoundSpec:
    """30 s of 16 kHz to 30 windows of 50 tokens, after the last norm. WeightsError, RecipeError."""
    refuse_choices(settings, but=("weights", "precision"))
    name = settings.encoder
    size, hub = SIZES[name], hub_files(name)
    return SoundSpec(
        name=name,
        rate=RATE,
        num_windows=CHUNK_SECONDS,
        tokens_per_window=TOKENS_PER_SECOND,
        dim=size.dim,
        architecture=f"Whisper encoder, {size.num_layers} layers, {size.num_heads} heads",
        preprocessing=f"log-mel of 30 s, {size.num_mels} mels, fft 400, hop 160, 8 decades",
        layer="last, normalised",
        activation="exact",
        precision=choose_precision(settings.precision, device=device),
        weights_sha256=weights_sha256(settings.weights, encoder=name, names=FILES, hub=hub),
        weights_hint=how_to_get(hub),
        libraries=("torch", "transformers"),
        operations=_operations(size),
    )


def _operations(size: WhisperSize) -> Operations:
    # Two convolutions of width 3: one over all 3000 frames of mels, one over every second.
    num_tokens = CHUNK_SECONDS * TOKENS_PER_SECOND
    convolutions = 2 * 3 * size.dim * (2 * num_tokens * size.num_mels + num_tokens * size.dim)
    blocks = transformer_operations(
        num_blocks=size.num_layers,
        width=size.dim,
        mlp_width=4 * size.dim,
        patches_per_frame=num_tokens,
        patch_values=0,
    )
    return Operations(fixed=convolutions + blocks.each)


def load(spec: SoundSpec, *, settings: EncoderSettings, runtime: Runtime) -> SoundEncoder:
    """The encoder, ready. WeightsError; UsageError: transformers is not installed."""
    from encoders.whisper_model import load_whisper

    name, where = spec.name, settings.weights
    size = SIZES[name]
    return load_whisper(
        spec,
        weights=find_weights(where, encoder=name, names=FILES, hub=hub_files(name)),
        source=where,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        num_mels=size.num_mels,
        runtime=runtime,
    )
