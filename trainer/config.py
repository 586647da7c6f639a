"""TrainConfig: a training run as a TOML file. Unknown fields are refused with a near miss."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from schemas.errors import ConfigError, RecipeError
from schemas.settings import nearest, read_settings, set_field, to_mapping

Format = Literal[
    "auto",
    "messages",
    "llava",
    "sharegpt",
    "mcq",
    "charades",
    "qvhighlights",
    "nextqa",
    "activitynetqa",
]
PARTS = ("connector", "lm")
"""What a stage may train. connector: resampler, projections, sound, reducer and time head; lm: the
language model, or its adapters where there is `model.lora`. Encoders are never among them."""
MAX_COUNT = 2**31 - 1
MAX_FRAMES = MAX_WIDTH = 100_000
MAX_WEIGHT = 1e6
_WEIGHT = "> 0 and at most 1e6"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Where a run writes, how often, and from what everything random is drawn."""

    out: str = "runs/train"
    seed: int = 0
    save_every: int = 500
    """Steps between checkpoints; 0: only at the end of each stage."""
    keep: int = 3
    """Checkpoints that are kept, the newest."""
    log_every: int = 10
    log: tuple[str, ...] = ("jsonl",)
    """jsonl, tensorboard, wandb."""

    def __post_init__(self) -> None:
        _check(0 <= self.seed < 2**63, "run.seed", self.seed, "in [0, 2^63)")
        _check(self.save_every >= 0, "run.save_every", self.save_every, ">= 0")
        _check(self.keep >= 1, "run.keep", self.keep, ">= 1")
        _check(self.log_every >= 1, "run.log_every", self.log_every, ">= 1")
        for name in self.log:
            if name not in ("jsonl", "tensorboard", "wandb"):
                raise ConfigError(f"run.log: {name!r} must be jsonl, tensorboard or wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Which cache is trained from."""

    path: str = ""
    """Empty: the one that the command names."""
    fingerprint: str = ""
    """Empty: whatever the cache has; else it must be this one, or begin with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """One file of annotations."""

    path: str
    format: Format = "auto"
    name: str = ""
    """How stages call it; empty: the file's name without its ending."""
    weight: float = 1.0
    """How often it comes in an epoch: 2 twice, 0.5 half of it, drawn anew each epoch."""
    on_missing: Literal["error", "skip"] = "error"
    """What becomes of rows whose video or span is not in the cache; skipped ones are counted."""

    def __post_init__(self) -> None:
        _check(0 < self.weight <= MAX_WEIGHT, "data.weight", self.weight, _WEIGHT)

    @property
    def label(self) -> str:
        """How stages and reports call it."""
        return self.name or Path(self.path).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """How much is learned from in one step."""

    tokens_per_pack: int = 4096
    """Tokens of one row, videos included: what bounds memory."""
    packs: int = 8
    """Rows of one step, over all ranks."""
    window_shards: int = 8
    """Items are shuffled among so many shards, which are read together."""
    readers: int = 2
    """Threads that read ahead; 0: read when needed."""
    on_long: Literal["error", "drop", "spread"] = "error"
    """Of items longer than a row. spread: take fewer clips, evenly, each whole and with its true
    times."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_pack", "packs", "window_shards"):
            value = getattr(self, name)
            _check(1 <= value <= MAX_COUNT, f"batch.{name}", value, "in [1, 2^31)")
        _check(self.readers >= 0, "batch.readers", self.readers, ">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSpec:
    """What the model sees of a cached video; part of the model's fingerprint."""

    streams: tuple[str, ...] = ()
    """Which of the cache's, in the recipe's order; empty: all."""
    policy: Literal["fps", "uniform"] = "fps"
    fps: float = 0.0
    """Frames a second; the cache's rate must be a whole multiple. 0: all of the cache's."""
    num_frames: int = 0
    """Of policy uniform: so many, evenly over the video or span."""
    frames_per_clip: int = 0
    """Frames that are resampled together. 0: as in the cache."""
    max_clips: int = 0
    """More are thinned out evenly, each clip whole. 0: no limit but the stage's."""
    time_base: Literal["video", "span"] = "video"
    """span: times count from the span's start."""
    input: Literal["video", "center", "text"] = "video"
    """center: the middle frame only. text: no picture and no sound, as a blind baseline."""

    def __post_init__(self) -> None:
        _check(self.fps >= 0 and math.isfinite(self.fps), "view.fps", self.fps, ">= 0")
        for name in ("num_frames", "frames_per_clip"):
            value = getattr(self, name)
            _check(0 <= value <= MAX_FRAMES, f"view.{name}", value, f"in [0, {MAX_FRAMES:,}]")
        _check(self.max_clips >= 0, "view.max_clips", self.max_clips, ">= 0")
        if (self.policy == "uniform") != (self.num_frames > 0):
            raise ConfigError(
                f"view.num_frames = {self.num_frames} must be > 0 with policy uniform, else 0"
            )


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
            value = getattr(self, name)
            good = value > 0 and math.isfinite(value)
            _check(good, f"connector.{name}", value, "> 0")
        for name in ("depth", "heads", "ff_mult"):
            value = getattr(self, name)
            _check(1 <= value <= MAX_WIDTH, f"connector.{name}", value, f"in [1, {MAX_WIDTH:,}]")
        for name in ("dim", "kv_heads", "head_dim"):
            value = getattr(self, name)
            _check(0 <= value <= MAX_WIDTH, f"connector.{name}", value, f"in [0, {MAX_WIDTH:,}]")

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
        _check(good, "model.time.regression_weight", weight, ">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConnectorSpec:
    """The sound of clips; only where the cache has it."""

    norm: bool = True
    mask_p: float = 0.2
    """How often an item's sound is taken away in training, so that none is no surprise."""

    def __post_init__(self) -> None:
        _check(0 <= self.mask_p < 1, "model.audio.mask_p", self.mask_p, "in [0, 1)")


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
        _check(0 < self.keep <= 1, "model.reduce.keep", self.keep, "in (0, 1]")
        _check(-1 <= self.threshold <= 1, "model.reduce.threshold", self.threshold, "in [-1, 1]")
        _check(self.window >= 2, "model.reduce.window", self.window, ">= 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Adapters of the language model, by peft."""

    r: int = 64
    alpha: int = 128
    dropout: float = 0.0
    targets: str = "all-linear"
    """As of peft: all-linear, or names separated by commas."""

    def __post_init__(self) -> None:
        _check(1 <= self.r <= MAX_WIDTH, "model.lora.r", self.r, f"in [1, {MAX_WIDTH:,}]")
        _check(0 <= self.dropout < 1, "model.lora.dropout", self.dropout, "in [0, 1)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """A stretch of training: what is trained, how fast, on what."""

    name: str
    train: tuple[str, ...]
    """Of PARTS."""
    lr: dict[str, float]
    """Part -> its peak rate."""
    steps: int = 0
    epochs: int = 0
    """Either steps or epochs."""
    data: dict[str, float] = field(default_factory=dict)
    """Name of a data file -> its weight in this stage; empty: all, as weighted there."""
    max_clips: int = 0
    """Clips of an item, spread evenly; 0: no limit."""

    def __post_init__(self) -> None:
        for part in self.train:
            if part not in PARTS:
                raise ConfigError(
                    f"stages.{self.name}.train: {part!r} cannot be trained{nearest(part, PARTS)}",
                    hint="encoders are frozen in a cache: encode again with tuned weights",
                )
        if not self.train or set(self.lr) != set(self.train):
            raise ConfigError(
                f"stages.{self.name}.lr must have a rate for each of train: {list(self.train)}"
            )
        for part, rate in self.lr.items():
            good = rate > 0 and math.isfinite(rate)
            _check(good, f"stages.{self.name}.lr.{part}", rate, "> 0")
        if (self.steps > 0) == (self.epochs > 0) or min(self.steps, self.epochs) < 0:
            raise ConfigError(f"stages.{self.name} must have either steps or epochs > 0")
        _check(self.max_clips >= 0, f"stages.{self.name}.max_clips", self.max_clips, ">= 0")
        for label, weight in self.data.items():
            good = 0 < weight <= MAX_WEIGHT
            _check(good, f"stages.{self.name}.data.{label}", weight, _WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """AdamW and its schedule, in each stage anew."""

    warmup: float = 0.03
    """Share of a stage's steps, or steps where >= 1."""
    schedule: Literal["cosine", "constant"] = "cosine"
    final: float = 0.0
    """Of the peak rate, at the end."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """Norm of all gradients together; 0: no clipping."""
    betas: tuple[float, ...] = (0.9, 0.95)

    def __post_init__(self) -> None:
        for name in ("warmup", "weight_decay"):
            value = getattr(self, name)
            good = value >= 0 and math.isfinite(value)
            _check(good, f"optim.{name}", value, ">= 0")
        _check(0 <= self.final <= 1, "optim.final", self.final, "in [0, 1]")
        _check(self.clip >= 0, "optim.clip", self.clip, ">= 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optim.betas = {list(self.betas)} must be two numbers in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """How a run is spread over ranks."""

    fsdp: Literal["auto", "on", "off"] = "auto"
    """auto: where there is more than one rank."""
    activation_checkpointing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A run: `TrainConfig.load("train.toml")`."""

    data: tuple[DataSpec, ...]
    model: ModelSpec
    stages: tuple[StageSpec, ...]
    run: RunSpec = field(default_factory=RunSpec)
    cache: CacheSpec = field(default_factory=CacheSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    view: ViewSpec = field(default_factory=ViewSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    parallel: ParallelSpec = field(default_factory=ParallelSpec)

    def __post_init__(self) -> None:
        for name, there in (("data", self.data), ("stages", self.stages)):
            if not there:
                raise ConfigError(f"{name}: at least one is needed, as in [[{name}]]")
        least = self.model.connector.tokens_per_clip(1)
        if least > self.batch.tokens_per_pack:
            raise ConfigError(
                f"model.connector: a clip has {least:.9g} tokens or more, and a row"
                f" batch.tokens_per_pack = {self.batch.tokens_per_pack:,}"
            )
        labels = [data.label for data in self.data]
        stages = [stage.name for stage in self.stages]
        for what, names in (("data", labels), ("stages", stages)):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ConfigError(f"{what}: two are named {twice.pop()!r}")
        for stage in self.stages:
            for name in stage.data:
                if name not in labels:
                    raise ConfigError(
                        f"stages.{stage.name}.data.{name}: no such data{nearest(name, labels)}"
                    )

    @classmethod
    def load(
        cls, name_or_path: str, *, overrides: Iterable[str] = (), data: Iterable[str] = ()
    ) -> TrainConfig:
        """Read a shipped config by name or a TOML file by path, with "field=value" overrides.

        Paths of data in a file are relative to it; `data` are more of them, relative to where one
        is. ConfigError: it cannot be read, or a field is unknown, missing or out of range.
        """
        mapping = _read_toml(name_or_path)
        folder = Path() if name_or_path in list_configs() else Path(name_or_path).parent
        rows = mapping.get("data", [])
        if isinstance(rows, list):
            mapping["data"] = [_in_folder(row, folder) for row in rows]
            mapping["data"] += [{"path": path} for path in data]
        return cls.from_mapping(mapping, overrides=overrides)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], *, overrides: Iterable[str] = ()
    ) -> TrainConfig:
        """The inverse of `to_mapping`, with "field=value" overrides. ConfigError as of `load`."""
        try:
            for assignment in overrides:
                mapping = set_field(mapping, assignment)
            return read_settings(cls, mapping)
        except RecipeError as error:
            raise ConfigError(error.message, hint=error.hint) from error

    def to_mapping(self) -> dict[str, Any]:
        """All fields, defaults included, as JSON-ready values."""
        return to_mapping(self)


def list_configs() -> list[str]:
    """Names of the shipped configs."""
    folder = resources.files("trainer") / "configs"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _read_toml(name_or_path: str) -> dict[str, Any]:
    shipped = list_configs()
    is_name = "/" not in name_or_path and not name_or_path.endswith(".toml")
    if is_name and name_or_path not in shipped:
        raise ConfigError(
            f"no config named {name_or_path!r}{nearest(name_or_path, shipped)}",
            hint="name a shipped one, or give the path of a TOML file; docs/training.md",
        )
    try:
        if is_name:
            return tomllib.loads(
                (resources.files("trainer") / "configs" / f"{name_or_path}.toml").read_text()
            )
        return tomllib.loads(Path(name_or_path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"config {name_or_path}: cannot be read: {reason}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"config {name_or_path}: not valid TOML: {error}") from error


def _in_folder(row: Any, folder: Path) -> Any:
    path = row.get("path") if isinstance(row, dict) else None
    if not isinstance(path, str) or "://" in path:
        return row  # what is wrong with it is said when it is read
    return {**row, "path": str(folder / path)}


def _check(good: bool, name: str, value: object, rule: str) -> None:  # noqa: FBT001
    if not good:
        raise ConfigError(f"{name} = {value} must be {rule}")
