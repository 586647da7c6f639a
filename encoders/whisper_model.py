"""Whisper's encoder in torch: transformers' own module, strictly loaded; see `whisper`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from encoders.base import Runtime
from encoders.device_loop import DeviceLoop
from encoders.log_mel import log_mel
from encoders.sound import SoundSpec
from encoders.tensors import LoadReport, Tensors, load_strictly, read_tensors
from encoders.weights import Weights, find_weights
from encoders.whisper import FILES, SIZES, WhisperSize, hub_files
from schemas.errors import UsageError
from schemas.recipe import EncoderSettings

MAX_BATCH = 1
"""Chunks a forward: 1500 tokens are enough work, most videos have one or two chunks, and alone
they do not depend on others."""
IGNORED = ("decoder", "proj_out")


class WhisperEncoder:
    """A `SoundEncoder`."""

    def __init__(self, module: torch.nn.Module, *, spec: SoundSpec, runtime: Runtime) -> None:
        """`module` takes (N, M, 3000) float32 and gives (N, 1500, D)."""
        self.spec = spec
        self.report: LoadReport | None = None
        self._loop = DeviceLoop(
            module,
            name=spec.name,
            item="chunk",
            device=runtime.device,
            precision=spec.precision,
            max_batch=MAX_BATCH,
            compiled=runtime.compile,
            prepare=functools.partial(log_mel, num_mels=SIZES[spec.name].num_mels),
        )

    def encode(self, samples_NS: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """See `SoundEncoder.encode`. DeviceError: one chunk is too much for the device."""
        spec = self.spec
        tokens_NLD = self._loop.run(
            samples_NS, shape=(spec.num_windows * spec.tokens_per_window, spec.dim)
        )
        shape = (len(samples_NS), spec.num_windows, spec.tokens_per_window, spec.dim)
        return tokens_NLD.reshape(shape)


class _LastHiddenState(torch.nn.Module):
    """transformers' encoder without what it wraps its output in."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, mels_NMT: torch.Tensor) -> torch.Tensor:
        tokens_NLD: torch.Tensor = self.encoder(mels_NMT).last_hidden_state
        return tokens_NLD


def load_whisper(spec: SoundSpec, *, settings: EncoderSettings, runtime: Runtime) -> WhisperEncoder:
    """The encoder with its weights. WeightsError; UsageError: transformers is not installed."""
    where, hub = settings.weights, hub_files(spec.name)
    weights = find_weights(where, encoder=spec.name, names=FILES, hub=hub)
    module, report = _load(SIZES[spec.name], weights, source=where)
    encoder = WhisperEncoder(_LastHiddenState(module), spec=spec, runtime=runtime)
    encoder.report = report
    return encoder


def _load(
    size: WhisperSize, weights: Weights, *, source: str
) -> tuple[torch.nn.Module, LoadReport | None]:
    if weights.is_random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build_module(size), None
    with torch.device("meta"):
        module = build_module(size)
    tensors = encoder_keys(read_tensors(weights))
    return module, load_strictly(module, tensors, source=source, ignored=IGNORED)


def build_module(size: WhisperSize) -> torch.nn.Module:
    """The WhisperEncoder of transformers, with random weights. UsageError: it is not installed."""
    try:
        from transformers.models.whisper import configuration_whisper, modeling_whisper
    except ImportError as error:
        raise UsageError(
            "Whisper needs the package transformers", hint="pip install 'reelcache[transformers]'"
        ) from error
    config = configuration_whisper.WhisperConfig(
        d_model=size.dim,
        encoder_layers=size.num_layers,
        encoder_attention_heads=size.num_heads,
        encoder_ffn_dim=4 * size.dim,
        num_mel_bins=size.num_mels,
        max_source_positions=1500,
        attn_implementation="sdpa",
    )
    module: torch.nn.Module = modeling_whisper.WhisperEncoder(config)
    return module


def encoder_keys(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Keys of a whole model, of one without its head, or of the encoder, as the encoder's own."""
    return {
        key.removeprefix("model.").removeprefix("encoder."): value for key, value in tensors.items()
    }
