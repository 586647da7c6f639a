"""ModelConfig: config.json of a model's folder, what the model is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from schemas.errors import ModelDamaged, ReelcacheError, UsageError
from schemas.settings import read_settings, to_mapping
from trainer.model_spec import MAX_WIDTH, ModelSpec
from trainer.preprocessing import Preprocessing

MODEL_TYPE = "reelcache"
FORMAT_VERSION = 1
CONFIG = "config.json"
_NOT_SUCH = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, ReelcacheError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """config.json."""

    preprocessing: Preprocessing
    spec: ModelSpec
    base: str
    """The language model that was trained from."""
    base_digest: str
    """Of its weights, see `digest_of`; empty where lm/ makes it needless."""
    trained: tuple[str, ...]
    """Parts that were trained, of `config.PARTS`."""
    training: Mapping[str, Any]
    """Run, step, stages, data: for people."""
    files: Mapping[str, Mapping[str, Any]]
    """Path in the folder -> bytes and sha256 of files of weights."""
    version: str
    """Of reelcache, that wrote it."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "model_type": MODEL_TYPE,
            "format_version": FORMAT_VERSION,
            "reelcache_version": self.version,
            "fingerprint": self.preprocessing.fingerprint(),
            "cache_fingerprint": self.preprocessing.cache_fingerprint(),
            "base_model_name_or_path": self.base,
            "base_digest": self.base_digest,
            "trained": list(self.trained),
            "model": to_mapping(self.spec),
            "preprocessing": self.preprocessing.to_mapping(),
            "training": dict(self.training),
            "files": {name: dict(one) for name, one in self.files.items()},
        }

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """That of a folder. UsageError: it is no model. ModelDamaged: it cannot be read."""
        path = folder / CONFIG
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"{folder} is not a model: there is no {CONFIG}",
                hint="export one from a run with: trainer export RUN",
            ) from error
        except (OSError, ValueError) as error:
            raise ModelDamaged(f"{path}: cannot be read: {error}") from error
        if not isinstance(told, dict) or told.get("model_type") != MODEL_TYPE:
            raise UsageError(
                f"{folder} is not a model of reelcache: its model_type is"
                f" {told.get('model_type') if isinstance(told, dict) else told!r}",
                hint="export one from a run with: trainer export RUN",
            )
        if told.get("format_version") != FORMAT_VERSION:
            raise ModelDamaged(
                f"{path}: format_version {told.get('format_version')!r} is not {FORMAT_VERSION},"
                " which this version of reelcache reads",
                hint=f"use reelcache {told.get('reelcache_version')}, which wrote it",
            )
        try:
            config = cls(
                preprocessing=Preprocessing.from_mapping(told["preprocessing"], where=str(path)),
                spec=read_settings(ModelSpec, told["model"]),
                base=str(told["base_model_name_or_path"]),
                base_digest=str(told["base_digest"]),
                trained=tuple(told["trained"]),
                training=dict(told["training"]),
                files={name: dict(one) for name, one in told["files"].items()},
                version=str(told["reelcache_version"]),
            )
            found = config.preprocessing.fingerprint()
        except ModelDamaged:
            raise
        except _NOT_SUCH as error:
            raise ModelDamaged(f"{path}: not what an export writes: {error!r}") from error
        if told.get("fingerprint") != found:
            raise ModelDamaged(
                f"{path}: its fingerprint is {str(told.get('fingerprint'))[:8]} and that of its"
                f" preprocessing {found[:8]}: it was changed, or another version wrote it",
                hint="export the model again",
            )
        try:
            config._check()
        except _NOT_SUCH as error:
            raise ModelDamaged(f"{path}: not what an export writes: {error!r}") from error
        return config

    def _check(self) -> None:
        """ValueError: fields that would be met only later, or that lead out of the folder."""
        sizes = [
            size
            for one in self.preprocessing.shape.streams.values()
            for size in (one.num_grids, one.height, one.width, one.dim)
        ]
        if not all(type(size) is int and 0 < size <= MAX_WIDTH for size in sizes):
            raise ValueError("the shape of a stream is no list of whole numbers")
        made = self.spec.connector.tokens_per_clip(self.preprocessing.frames_per_clip)
        if made != self.preprocessing.tokens_per_clip:
            raise ValueError(
                f"its connector makes {made} tokens of a clip, its preprocessing says"
                f" {self.preprocessing.tokens_per_clip}"
            )
        for name, told in self.files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{name!r} is no file in the folder")
            if type(told["bytes"]) is not int or not isinstance(told["sha256"], str):
                raise ValueError(f"what it says of {name} is neither bytes nor sha256")
