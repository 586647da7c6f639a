"""ModelSpec: the model of a run, everything behind the cache; `model` in a TrainConfig."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from schemas.errors import ConfigError

MAX_WIDTH = 100_000


def check(name: str, value: object, rule: str, *, holds: bool) -> None:
    """ConfigError: the rule does not hold for the value of a field."""
    if not holds:
        raise ConfigError(f"{name} = {value} must be {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSpec:
    """From features to the language model's tokens. docs/training.md has Apollo's as an example."""

    kind: Literal["perceiver", "conv_pool", "mlp_pool"] = "perceiver"
    tokens_per_frame: float = 16.0
    """Times frames_per_clip, rounded: the tokens of a clip. 8 to 32 is Apollo's useful range."""
    compression: float = 1.0
    """Multiplies the tokens of a clip: 0.5 halves them."""
    depth: int = 2
    dim: int = 0
    """Width of the resampler; 0: that of the language model."""
    heads: int = 8
    kv_heads: int = 0
    """Heads of keys and values; 0: as many as `heads`."""
    head_dim: int = 0
    """0: dim / heads."""
    ff_mult: int = 4
    positions: Literal["fourier", "none"] = "fourier"
    """fourier: cells know their place and frames their seconds since the clip's start."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_frame", "compression"):
            number = getattr(self, name)
            good = number > 0 and math.isfinite(number)
            check(f"model.connector.{name}", number, "> 0", holds=good)
        for name in ("depth", "heads", "ff_mult"):
            number = getattr(self, name)
            good = 1 <= number <= MAX_WIDTH
            check(f"model.connector.{name}", number, f"in [1, {MAX_WIDTH:,}]", holds=good)
        for name in ("dim", "kv_heads", "head_dim"):
            number = getattr(self, name)
            good = 0 <= number <= MAX_WIDTH
            check(f"model.connector.{name}", number, f"in [0, {MAX_WIDTH:,}]", holds=good)

    def tokens_per_clip(self, frames_per_clip: int) -> int:
        """Tokens of one clip, at least 1."""
        return max(1, round(self.tokens_per_frame * frames_per_clip * self.compression))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpec:
    """How the language model is told when a clip is."""

    mode: Literal["clip_text", "frame_text", "segment_names", "separators", "none"] = "clip_text"
    """clip_text: `text` before each clip. frame_text: the same, a frame a clip. segment_names:
    "[1]", "[2]", ... separators: nothing but `joint` between clips. none: nothing at all."""
    text: str = "{start:.1f}-{end:.1f} seconds: "
    joint: str = "\n"
    """Between clips."""
    regression_weight: float = 0.0
    """Of the loss of a head that says start and end; 0: no head."""

    def __post_init__(self) -> None:
        try:
            self.text.format(start=0.0, end=1.0)
        except (LookupError, ValueError, TypeError, AttributeError, MemoryError) as error:
            raise ConfigError(
                f"model.time.text = {self.text!r} cannot be filled in with start and end: {error}"
            ) from error
        weight = self.regression_weight
        good = weight >= 0 and math.isfinite(weight)
        check("model.time.regression_weight", weight, ">= 0", holds=good)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConnectorSpec:
    """The sound of clips; only where the cache has it."""

    norm: bool = True
    mask_p: float = 0.2
    """How often an item's sound is taken away in training, so that none is no surprise."""

    def __post_init__(self) -> None:
        check("model.audio.mask_p", self.mask_p, "in [0, 1)", holds=0 <= self.mask_p < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSpec:
    """Which clips are left out before the language model sees them; each keeps its time."""

    kind: Literal["none", "prune", "similar"] = "none"
    """prune: a learnt scorer keeps a share of an item's clips. similar: of a window of clips those
    that resemble one kept before are left out. With view.frames_per_clip = 1 a clip is a frame."""
    keep: float = 0.5
    """prune: the share that is kept."""
    threshold: float = 0.83
    """similar: cosine above which a clip counts as a repetition."""
    window: int = 16
    """similar: clips."""

    def __post_init__(self) -> None:
        check("model.reduce.keep", self.keep, "in (0, 1]", holds=0 < self.keep <= 1)
        check(
            "model.reduce.threshold", self.threshold, "in [-1, 1]", holds=-1 <= self.threshold <= 1
        )
        check("model.reduce.window", self.window, ">= 2", holds=self.window >= 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Adapters of the language model, by peft."""

    r: int = 64
    alpha: int = 128
    dropout: float = 0.0
    targets: str = "all-linear"
    """As of peft: all-linear, or names separated by commas."""

    def __post_init__(self) -> None:
        for name in ("r", "alpha"):
            number = getattr(self, name)
            good = 1 <= number <= MAX_WIDTH
            check(f"model.lora.{name}", number, f"in [1, {MAX_WIDTH:,}]", holds=good)
        check("model.lora.dropout", self.dropout, "in [0, 1)", holds=0 <= self.dropout < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model: everything behind the cache."""

    lm: str
    """A causal language model of transformers: a folder, a name of the hub, a .gguf file,
    `smollm2-135m` from a Python package, or `tiny`, a random one with a byte tokenizer, for trials.
    """
    init: str = ""
    """A folder of `trainer export` whose connector, and language model if it was trained, one
    starts from; it may be of another cache with streams of the same shape."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the computation; float32 on a CPU, bfloat16 on GPUs."""
    template: Literal["auto", "chatml", "llama3", "tags", "plain"] = "auto"
    system: str = ""
    """Said first in every conversation that does not say it itself."""
    connector: ConnectorSpec = field(default_factory=ConnectorSpec)
    time: TimeSpec = field(default_factory=TimeSpec)
    audio: AudioConnectorSpec | None = None
    """None: sound in the cache is left alone."""
    reduce: ReduceSpec = field(default_factory=ReduceSpec)
    lora: LoraSpec | None = None
