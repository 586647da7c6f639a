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
from trainer.model_spec import ModelSpec, check

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
MAX_FRAMES = 100_000
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
        check("run.seed", self.seed, "in [0, 2^63)", holds=0 <= self.seed < 2**63)
        check("run.save_every", self.save_every, ">= 0", holds=self.save_every >= 0)
        check("run.keep", self.keep, ">= 1", holds=self.keep >= 1)
        check("run.log_every", self.log_every, ">= 1", holds=self.log_every >= 1)
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
    max_missing: float = 1.0
    """Of skip: the share of rows that may be."""

    def __post_init__(self) -> None:
        check("data.weight", self.weight, _WEIGHT, holds=0 < self.weight <= MAX_WEIGHT)
        good = 0 <= self.max_missing <= 1
        check("data.max_missing", self.max_missing, "in [0, 1]", holds=good)

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
            number = getattr(self, name)
            check(f"batch.{name}", number, "in [1, 2^31)", holds=1 <= number <= MAX_COUNT)
        check("batch.readers", self.readers, ">= 0", holds=self.readers >= 0)


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
    events: tuple[str, ...] = ()
    """Kinds of events of the cache that are read as text after the clips, the most important first;
    docs/events.md."""
    event_tokens: int = 512
    """Tokens that events of an item take, at most; of more, some are left out evenly."""

    def __post_init__(self) -> None:
        check("view.fps", self.fps, ">= 0", holds=self.fps >= 0 and math.isfinite(self.fps))
        for name, most in (
            ("num_frames", MAX_FRAMES),
            ("frames_per_clip", MAX_FRAMES),
            ("max_clips", MAX_COUNT),
            ("event_tokens", MAX_COUNT),
        ):
            number = getattr(self, name)
            check(f"view.{name}", number, f"in [0, {most:,}]", holds=0 <= number <= most)
        if (self.policy == "uniform") != (self.num_frames > 0):
            raise ConfigError(
                f"view.num_frames = {self.num_frames} must be > 0 with policy uniform, else 0"
            )
        if len(set(self.events)) < len(self.events):
            raise ConfigError(f"view.events = {list(self.events)} names a kind twice")

    def to_mapping(self) -> dict[str, Any]:
        """All fields as JSON-ready values; those of events only where there are some."""
        plain = to_mapping(self)
        return plain if self.events else {k: v for k, v in plain.items() if "event" not in k}


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
            check(f"stages.{self.name}.lr.{part}", rate, "> 0", holds=good)
        if (self.steps > 0) == (self.epochs > 0) or min(self.steps, self.epochs) < 0:
            raise ConfigError(f"stages.{self.name} must have either steps or epochs > 0")
        check(f"stages.{self.name}.max_clips", self.max_clips, ">= 0", holds=self.max_clips >= 0)
        for label, weight in self.data.items():
            good = 0 < weight <= MAX_WEIGHT
            check(f"stages.{self.name}.data.{label}", weight, _WEIGHT, holds=good)


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
        check("optim.final", self.final, "in [0, 1]", holds=0 <= self.final <= 1)
        check("optim.clip", self.clip, ">= 0", holds=self.clip >= 0)
        for name in ("warmup", "weight_decay"):
            number = getattr(self, name)
            good = number >= 0 and math.isfinite(number)
            check(f"optim.{name}", number, ">= 0", holds=good)
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
        frames = self.view.frames_per_clip
        if self.model.time.mode == "frame_text" and frames != 1:
            raise ConfigError(
                f"view.frames_per_clip = {frames} must be 1 with model.time.mode frame_text",
                hint="or say clip_text, which is the same text before each clip",
            )
        if self.view.events and self.model.time.mode not in ("clip_text", "frame_text"):
            raise ConfigError(
                f"view.events needs times in words, but model.time.mode is {self.model.time.mode}",
                hint="say clip_text or frame_text, or leave view.events out",
            )
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
        return to_mapping(self) | {"view": self.view.to_mapping()}


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
