"""Forecast: what a run would do, hold and take, without doing it and without any weights.

Operations are estimated from above, by 15 to 25 % of what torch counts in small models. With P
parameters, L tokens of a full pack, H width, V vocabulary, S supervised tokens:

    operations    forward 2 P a token, of the head a supervised token; attention 2 L H a token and
                  layer; backward twice that where weights are trained, once where the gradient only
                  passes through; recomputed layers once more (Kaplan, arXiv 2001.08361)
    activations   34 L H bytes a layer in 16 bits (Korthikanti, arXiv 2205.05198, without scores);
                  recomputed 2 L H a layer and one layer in full; logits 10 S V
    the rest      4 bytes a trained weight and as much for its gradient, 8 for its moments; copies
                  for computing: of all of them, or of embeddings and two layers if sharded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipeline.cache import FeatureCache
from schemas.card import read_cards
from trainer.config import TrainConfig
from trainer.data.buffers import Buffers
from trainer.data.planning import EMPTY
from trainer.learning.forecast import Card, Forecast, Memory, StageForecast
from trainer.learning.learner import Learner
from trainer.learning.preparing import prepare_stages
from trainer.learning.sharding import is_sharded, layers_of
from trainer.learning.stages import Stage, make_stages
from trainer.learning.summary import compression_line
from trainer.model.language import add_lora, describe_language_model
from trainer.model.video_lm import VideoLM


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Of a model: what operations and memory follow from."""

    layers: int
    width: int
    vocab: int
    lm_weights: int
    """Of the layers' matrices, without adapters."""
    connector_operations: float
    """Forward, a clip."""


def forecast(config: TrainConfig, *, cache: FeatureCache, ranks: int = 1) -> Forecast:
    """Join, measure and pack as a run would, with a model that has shapes only.

    Errors as of a run's data and language model.
    """
    learner = Learner.of(config, cache=cache)
    prepared = prepare_stages(config, cache=cache, renderer=learner.renderer)
    stages = make_stages(config, prepared, cache=cache, learner=learner)
    model = _model_of_shapes(config, learner)
    sizes = _sizes_of(model, stages[0])
    counts = {name: _count(parameters) for name, parameters in model.parts().items()}
    told = tuple(_forecast_stage(config, stage, sizes=sizes, learner=learner) for stage in stages)
    memory = _memory(config, stages, model, sizes=sizes, learner=learner, ranks=ranks)
    table = read_cards()
    operations = sum(stage.operations for stage in told)
    cards = tuple(
        Card(
            name=card.name,
            tflops=card.tflops,
            memory_gb=card.memory_gb,
            hours=operations / (card.tflops * 1e12 * table.training_utilisation * ranks) / 3600,
            fits=memory.on_device < 0.92 * card.memory_gb * 1e9,
        )
        for card in table.cards
    )
    lines = dict.fromkeys(line for one in prepared for line in one.lines)
    return Forecast(
        ranks=ranks,
        parameters={**counts, "all": _count(list(model.parameters()))},
        stages=told,
        cells_per_token=learner.preprocessing.cells_per_token(),
        memory=memory,
        cards=cards,
        utilisation=table.training_utilisation,
        cards_date=table.date,
        data={stage.spec.name: stage.data.prepared.report for stage in stages},
        lines=(*lines, compression_line(learner.preprocessing)),
    )


def _forecast_stage(
    config: TrainConfig, stage: Stage, *, sizes: _Sizes, learner: Learner
) -> StageForecast:
    data, batch = stage.data, config.batch
    packs = data.packs.epoch(0)
    items = np.array([item for pack in packs for item in pack.items])
    lengths = data.prepared.planned.lengths[items].astype(np.float64)
    targets = np.array(data.prepared.num_targets)[items]
    views = [data.prepared.items[item].view for item in items.tolist()]
    num_clips = sum(len(view) for view in views if view is not None)
    num_packs = data.num_steps * batch.packs
    epochs = num_packs / len(packs) if stage.spec.steps else float(stage.spec.epochs)
    in_layers = 2 * sizes.lm_weights * lengths.sum()
    in_layers += 2 * sizes.layers * sizes.width * (lengths**2).sum()
    in_head = 2 * sizes.vocab * sizes.width * targets.sum()
    lm_trains = "lm" in stage.spec.train and config.model.lora is None
    passes = 3 if lm_trains else 2
    in_lm = (in_layers + in_head) * passes
    if config.parallel.activation_checkpointing:
        in_lm += in_layers
    connector_passes = 3 if "connector" in stage.spec.train else 1
    operations = in_lm + sizes.connector_operations * num_clips * connector_passes
    return StageForecast(
        name=stage.spec.name,
        trains=stage.spec.train,
        items=len(data.prepared.items),
        packs_per_epoch=len(packs),
        fill=float(lengths.sum()) / (len(packs) * batch.tokens_per_pack),
        steps=data.num_steps,
        epochs=epochs,
        tokens=round(float(lengths.sum()) * epochs),
        clips_per_epoch=num_clips,
        bytes_per_epoch=num_clips * learner.shape.bytes_per_clip,
        operations=float(operations) * epochs,
    )


def _memory(
    config: TrainConfig,
    stages: Sequence[Stage],
    model: VideoLM,
    *,
    sizes: _Sizes,
    learner: Learner,
    ranks: int,
) -> Memory:
    parts = model.parts()
    share = ranks if is_sharded(config.parallel, world=ranks) else 1
    trained = max(sum(_count(parts[name]) for name in one.spec.train) for one in stages)
    ever = {name for one in stages for name in one.spec.train}
    held = sum(_count(parts[name]) for name in ever)
    frozen = _count(list(model.parameters())) - held
    small = 2 if config.model.dtype == "bfloat16" else 4
    # Autocast keeps a copy of what is held in float32.
    gathered = small * held if small == 2 else 0
    if share > 1:
        layers = [list(layer.parameters()) for layer in layers_of(model.lm)]
        in_layers = sum(_count(one) for one in layers)
        rest = _count(list(model.parameters())) - in_layers - _count(parts["connector"])
        gathered = 2 * small * (rest + 2 * max(_count(one) for one in layers))
    # Gradients of several packs are summed before ranks share them.
    gradient_share = share if config.batch.packs == ranks else 1
    L = config.batch.tokens_per_pack
    whole_layer = 34 * L * sizes.width * small // 2
    activations = sizes.layers * whole_layer
    if config.parallel.activation_checkpointing:
        activations = sizes.layers * L * sizes.width * small + whole_layer
    most_targets = max(
        sum(stage.data.prepared.num_targets[item] for item in pack.items)
        for stage in stages
        for pack in stage.data.packs.epoch(0)
    )
    most_clips = max(1, L // max(1, learner.renderer.tokens_per_clip))
    return Memory(
        weights=(4 * held + small * frozen) // share + gathered,
        gradients=4 * trained // gradient_share,
        moments=8 * trained // share,
        activations=activations + 10 * most_targets * sizes.vocab,
        read_ahead=(config.batch.readers + 1) * most_clips * learner.shape.bytes_per_clip,
    )


def _model_of_shapes(config: TrainConfig, learner: Learner) -> VideoLM:
    spec = config.model
    language_model = describe_language_model(spec.lm)
    with torch.device("meta"):
        if spec.lora is not None:
            language_model = add_lora(language_model, spec.lora)
        return VideoLM(
            spec,
            language_model=language_model,
            shape=learner.shape,
            frames_per_clip=learner.frames_per_clip,
        )


def _sizes_of(model: VideoLM, stage: Stage) -> _Sizes:
    layers = layers_of(model.lm)
    matrices = [
        p for layer in layers for name, p in layer.named_parameters() if "lora_" not in name
    ]
    embeddings = model.lm.get_input_embeddings().weight
    blank = model.with_blank_clip(stage.data.batch(EMPTY, Buffers()))
    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        model.connector(blank.to("meta"))
    return _Sizes(
        layers=len(layers),
        width=embeddings.shape[1],
        vocab=embeddings.shape[0],
        lm_weights=_count(matrices),
        connector_operations=float(counter.get_total_flops()),
    )


def _count(parameters: Sequence[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
