"""Learner: a config and a cache become what learns: tokenizer, renderer, model, on its device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.cache import FeatureCache
from schemas.errors import ConfigError, FingerprintMismatch, UsageError
from trainer.config import TrainConfig
from trainer.data.cache_shape import CacheShape
from trainer.data.rendering import Renderer
from trainer.data.template import choose_template
from trainer.learning.distributed import Ranks
from trainer.learning.sharding import is_sharded, shard
from trainer.model.language import add_lora, load_language_model, load_tokenizer
from trainer.model.model_config import ModelConfig
from trainer.model.model_folder import ADAPTER, CONNECTOR, begun_from, load_own, renderer_of
from trainer.model.video_lm import VideoLM
from trainer.preprocessing import Preprocessing


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What learns, before its first step."""

    shape: CacheShape
    frames_per_clip: int
    """Of the view."""
    renderer: Renderer
    preprocessing: Preprocessing

    @classmethod
    def of(cls, config: TrainConfig, *, cache: FeatureCache) -> Learner:
        """All but the model. UsageError: no such language model. FingerprintMismatch."""
        wanted = config.cache.fingerprint
        if not cache.fingerprint.startswith(wanted):
            raise FingerprintMismatch(
                f"cache.fingerprint = {wanted}, but {cache.layout.root} has {cache.fingerprint}",
                hint="name the cache that is meant, or leave cache.fingerprint out",
            )
        shape = CacheShape.of(cache, streams=config.view.streams)
        if config.model.audio is not None and shape.audio is None:
            raise ConfigError(
                "model.audio is set, but the cache has no sound",
                hint="leave model.audio out, or build the cache with [audio] in its recipe",
            )
        tokenizer = load_tokenizer(config.model.lm)
        knows = tokenizer.get_vocab().__contains__
        template = choose_template(config.model.template, knows=knows)
        preprocessing = Preprocessing.of(config, cache=cache, template=template.name)
        return cls(
            shape=shape,
            frames_per_clip=preprocessing.frames_per_clip,
            renderer=renderer_of(preprocessing, tokenizer),
            preprocessing=preprocessing,
        )

    def make_model(self, config: TrainConfig, *, ranks: Ranks) -> VideoLM:
        """The model in training mode on this rank's device; the same on all ranks.

        What is trained in any stage is held in float32, all else in `model.dtype`. ModelDamaged:
        what `model.init` names is no such model, or its connector has other shapes.
        """
        spec = config.model
        torch.manual_seed(config.run.seed)
        model = VideoLM(
            spec,
            language_model=_language_model(config),
            shape=self.shape,
            frames_per_clip=self.frames_per_clip,
        )
        if spec.init:
            load_own(model, Path(spec.init) / CONNECTOR)
        if config.parallel.activation_checkpointing:
            # Reentrant checkpoints would lose the gradients of what is frozen but for adapters.
            model.lm.activation_checkpointing_enable(
                activation_checkpointing_kwargs={"use_reentrant": False}
            )
        if is_sharded(config.parallel, world=ranks.world):
            shard(model, ranks=ranks, dtype=getattr(torch, spec.dtype))
        else:
            model.to(ranks.device)
        return model.train()


def _language_model(config: TrainConfig) -> Any:
    spec, folder = config.model, Path(config.model.init)
    if spec.init:
        ModelConfig.read(folder)
        if (folder / ADAPTER).is_dir():
            raise UsageError(
                f"model.init = {spec.init!r} has adapters",
                hint="export it with --merge, and start from that",
            )
    trains = spec.lora is None and any("lm" in stage.train for stage in config.stages)
    held = torch.float32 if trains else getattr(torch, spec.dtype)
    model = load_language_model(begun_from(spec), dtype=held)
    return model if spec.lora is None else add_lora(model, spec.lora)
