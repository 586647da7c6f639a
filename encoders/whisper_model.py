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
from encoders.weights import Weights
from schemas.errors import UsageError

MAX_BATCH = 1
"""Chunks a forward: 1500 tokens are enough work, most videos have one or two chunks, and alone
they do not depend on others."""
IGNORED = ("decoder", "proj_out")


class WhisperEncoder:
    """A `SoundEncoder`."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        spec: SoundSpec,
        num_mels: int,
        runtime: Runtime,
        report: LoadReport | None = None,
    ) -> None:
        """`module` takes (N, num_mels, 3000) float32 and gives (N, 1500, D)."""
        self.spec = spec
        self.report = report
        self._loop = DeviceLoop(
            module,
            name=spec.name,
            item="chunk",
            device=runtime.device,
            precision=spec.precision,
            max_batch=MAX_BATCH,
            compiled=runtime.compile,
            prepare=functools.partial(log_mel, num_mels=num_mels),
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


def load_whisper(
    spec: SoundSpec,
    *,
    weights: Weights,
    source: str,
    num_layers: int,
    num_heads: int,
    num_mels: int,
    runtime: Runtime,
) -> WhisperEncoder:
    """The encoder of a size with its weights. WeightsError names `source`; UsageError."""
    build = functools.partial(
        build_module, dim=spec.dim, num_layers=num_layers, num_heads=num_heads, num_mels=num_mels
    )
    report: LoadReport | None = None
    if weights.is_random:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = build()
    else:
        with torch.device("meta"):
            module = build()
        tensors = encoder_keys(read_tensors(weights))
        report = load_strictly(module, tensors, source=source, ignored=IGNORED)
    return WhisperEncoder(
        _LastHiddenState(module), spec=spec, num_mels=num_mels, runtime=runtime, report=report
    )


def build_module(*, dim: int, num_layers: int, num_heads: int, num_mels: int) -> torch.nn.Module:
    """The WhisperEncoder of transformers, with random weights. UsageError: it is not installed."""
    try:
        from transformers.models.whisper import configuration_whisper, modeling_whisper
    except ImportError as error:
        raise UsageError(
            "Whisper needs the package transformers", hint="pip install 'reelcache[transformers]'"
        ) from error
    config = configuration_whisper.WhisperConfig(
        d_model=dim,
        encoder_layers=num_layers,
        encoder_attention_heads=num_heads,
        encoder_ffn_dim=4 * dim,
        num_mel_bins=num_mels,
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
