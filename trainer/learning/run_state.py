"""RunState: what a checkpoint says of its run, and whether another run may go on from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import FingerprintMismatch, ModelDamaged, UsageError
from schemas.recipe import differing_fields
from trainer.config import TrainConfig
from trainer.data.stage_data import Prepared
from trainer.learning.learner import Learner

FREE = re.compile(
    r"run\.(?!seed:)|batch\.readers:|parallel\.|optim\.|cache\.path:"
    r"|stages\[\w+\]\.lr\.|data\[\w+\]\.(path|name):"
)
"""Fields of the config that may change in the middle of a run: none of them says what a step is
made of, but rates, which one may have to lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """state.json."""

    step: int
    """Steps that are done, of all stages together."""
    stage: str
    """Of the last of them."""
    seed: int
    plan: dict[str, Any]
    """Stage -> what its order of items follows from; see `plan_of`."""
    fingerprint: str
    """Of the preprocessing."""
    preprocessing: dict[str, Any]
    seen: dict[str, Any]
    """What the model sees of a video: frames a second, compression, sound."""
    data: dict[str, Any]
    """Stage -> what became of its rows."""
    config: dict[str, Any]
    num_ranks: int

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        step: int,
        stage: str,
        prepared: Sequence[Prepared],
        learner: Learner,
        num_ranks: int,
    ) -> RunState:
        """That of a run at a step; `prepared` are the items of the config's stages."""
        preprocessing, audio = learner.preprocessing, config.model.audio
        names = [one.name for one in config.stages]
        return cls(
            step=step,
            stage=stage,
            seed=config.run.seed,
            plan={name: plan_of(one) for name, one in zip(names, prepared, strict=True)},
            fingerprint=preprocessing.fingerprint(),
            preprocessing=preprocessing.to_mapping(),
            seen={
                "policy": config.view.policy,
                "frames_per_second": config.view.fps or learner.shape.fps,
                "num_frames": config.view.num_frames,
                "frames_per_clip": learner.frames_per_clip,
                "tokens_per_clip": preprocessing.tokens_per_clip,
                "compression": config.model.connector.compression,
                "cells_per_token": preprocessing.cells_per_token(),
                "audio": None if audio is None else f"masked with p = {audio.mask_p}",
            },
            data={name: one.report for name, one in zip(names, prepared, strict=True)},
            config=config.to_mapping(),
            num_ranks=num_ranks,
        )

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, where: Path) -> RunState:
        """The inverse of `to_mapping`. ModelDamaged: not such a mapping."""
        try:
            state = cls(**mapping)
        except TypeError as error:
            raise ModelDamaged(f"{where}: its state cannot be read: {error}") from error
        whole, tables = (state.step, state.seed, state.num_ranks), (state.plan, state.config)
        if not (
            all(type(one) is int and one >= 0 for one in whole)
            and all(isinstance(one, dict) for one in (*tables, state.preprocessing))
            and isinstance(state.stage, str)
        ):
            raise ModelDamaged(f"{where}: its state has fields that are of another type")
        return state

    def require_same(self, now: RunState, *, where: Path) -> None:
        """That a run as it would be `now` is the one that was saved.

        FingerprintMismatch: preprocessing or data are others. UsageError: a field of the config is,
        that may not change. Both name what differs.
        """
        fields = differing_fields(self.config, now.config)
        fields = [field for field in fields if not FREE.match(field)]
        if fields:
            raise UsageError(
                f"{where} was trained with another config: {'; '.join(fields)}",
                hint="of a run that goes on only run (not seed), batch.readers, parallel, optim"
                " and rates may change: begin another run for the rest",
            )
        fields = differing_fields(self.preprocessing, now.preprocessing)
        if fields:
            raise FingerprintMismatch(
                f"{where} was trained otherwise: {'; '.join(fields)}",
                hint="go on with the cache that it was begun with",
            )
        fields = differing_fields(self.plan, now.plan)
        if fields:
            raise FingerprintMismatch(
                f"{where} was trained on other data: {'; '.join(fields)}",
                hint="go on with the annotations and the cache that it was begun with",
            )


def plan_of(prepared: Prepared) -> dict[str, Any]:
    """What the order of a stage's items follows from: their number, and hashes by what they are."""
    planned = prepared.planned
    ids = hashlib.sha256("\n".join(item.id for item in prepared.items).encode())
    return {
        "num_items": len(prepared.items),
        "ids": ids.hexdigest()[:16],
        "lengths": _hash(planned.lengths),
        "shards": _hash(planned.shards),
        "weights": _hash(planned.weights),
        "num_targets": _hash(np.array(prepared.num_targets, dtype=np.int64)),
    }


def _hash(values: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
