"""A pack is its items side by side: none sees another, and the loss is over all of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.cache import FeatureCache, open_cache
from tests.trainer.small_runs import config_of, write_annotations, write_cache
from trainer.data.batch import Batch
from trainer.data.buffers import Buffers
from trainer.data.planning import EMPTY, Pack
from trainer.learning.distributed import ALONE
from trainer.learning.stepping import (
    Computing,
    StepClock,
    Totals,
    add_gradients,
    add_step_gradients,
)
from trainer.learning.training import TrainingRun
from trainer.model.video_lm import VideoLM

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingRun]:
    folder = tmp_path_factory.mktemp("run")
    cache: FeatureCache
    said: Path = write_annotations(folder / "said.jsonl")
    with open_cache(write_cache(folder / "cache")) as cache:
        yield TrainingRun(config_of(folder / "out", said), cache=cache)


def batch_of(run: TrainingRun, *items: int) -> Batch:
    return run.stages[0].data.batch(Pack(items=items, epoch=0), Buffers())


def video_items(run: TrainingRun, count: int) -> list[int]:
    items = run.prepared[0].items
    return [number for number, item in enumerate(items) if item.view is not None][:count]


def logits_of(model: VideoLM, batch: Batch, **changes: Any) -> torch.Tensor:
    """(L, V): as `VideoLM.forward` asks the language model, or otherwise."""
    row = model._embed(batch)
    options: dict[str, Any] = {"attention_mask": None, "use_cache": False} | changes
    with torch.no_grad():
        output = model.lm(
            inputs_embeds=row.embeds_LH[None], position_ids=row.position_ids_L[None], **options
        )
    return output.logits[0]


def difference(run: TrainingRun, **changes: Any) -> float:
    """Between the logits of two items in a row and of each alone."""
    first, second = video_items(run, 2)
    alone = [logits_of(run.model, batch_of(run, item)) for item in (first, second)]
    packed = batch_of(run, first, second)
    length = packed.num_tokens
    assert packed.position_ids_L.tolist() == [*range(len(alone[0])), *range(len(alone[1]))]
    if changes.get("attention_mask") is not None:
        changes["attention_mask"] = torch.ones(1, length, dtype=torch.int64)
    together = logits_of(run.model, packed, **changes)
    return float((together - torch.cat(alone)).abs().max())


def test_items_of_a_row_do_not_see_each_other(run):
    assert difference(run) <= 1e-5  # of logits up to ten


# transformers tells items apart only without these: the test above can fail.
@pytest.mark.parametrize("change", [{"attention_mask": True}, {"use_cache": True}])
def test_a_mask_or_a_cache_would_let_them(run, change):
    assert difference(run, **change) > 1e-3


@pytest.mark.parametrize("family", ["LlamaConfig", "Qwen3Config", "MistralConfig"])
def test_other_families_keep_items_apart_too(family, tmp_path):
    import transformers

    from trainer.model.language import load_tokenizer

    lm = tmp_path / "lm"
    load_tokenizer("tiny").save_pretrained(lm)
    config = getattr(transformers, family)(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.1,
        eos_token_id=1,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(lm)
    said = write_annotations(tmp_path / "said.jsonl")
    options = (f"model.lm={lm}", "stages.align.steps=1", "stages.tune.steps=1")
    with open_cache(write_cache(tmp_path / "cache")) as cache:
        other = TrainingRun(config_of(tmp_path / "out", said, *options), cache=cache)
        assert difference(other) <= 1e-5
        assert difference(other, attention_mask=True) > 1e-3
        assert other.train().step == 2


def test_the_model_asks_as_it_must(run, monkeypatch):
    asked: dict[str, Any] = {}
    forward = run.model.lm.forward

    def listen(**options: Any) -> Any:
        asked.update(options)
        return forward(**options)

    monkeypatch.setattr(run.model.lm, "forward", listen)
    run.model(batch_of(run, *video_items(run, 2)))
    assert asked["attention_mask"] is None and asked["use_cache"] is False
    assert (asked["position_ids"] == 0).sum() == 2


def gradients(run: TrainingRun, packs: list[Batch], *, num_targets: int) -> dict[str, torch.Tensor]:
    run.begin(run.stages[1])
    run.model.zero_grad(set_to_none=True)
    for batch in packs:
        add_gradients(
            run.model,
            batch,
            totals=Totals(num_targets=num_targets, num_spans=0, regression_weight=0.0),
            computing=Computing(ranks=run.ranks),
            clock=StepClock(CPU),
        )
    found = {n: p.grad for n, p in run.model.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in found.values())
    return {name: gradient.clone() for name, gradient in found.items() if gradient is not None}


def test_the_gradient_does_not_depend_on_how_items_are_packed(run):
    items = [*video_items(run, 3), 7, 11]
    num_targets = sum(run.prepared[0].num_targets[item] for item in items)
    splits = [
        [items],
        [[item] for item in items],
        [items[:1], items[1:4], items[4:], []],
    ]
    found = []
    for split in splits:
        packs = [batch_of(run, *group) for group in split]
        assert sum(batch.num_targets for batch in packs) == num_targets
        found.append(gradients(run, packs, num_targets=num_targets))
    for other in found[1:]:
        for name, gradient in found[0].items():
            assert torch.allclose(other[name], gradient, atol=1e-6, rtol=1e-4), name
    # A mean of means is something else, since the packs do not say equally much.
    means = [
        gradients(run, [batch_of(run, item)], num_targets=run.prepared[0].num_targets[item])
        for item in items
    ]
    name = "lm.model.embed_tokens.weight"
    mean = torch.stack([one[name] for one in means]).mean(0)
    assert not torch.allclose(mean, found[0][name], atol=1e-4)


def test_an_empty_pack_weighs_nothing_and_takes_part(run):
    batch = run.stages[0].data.batch(EMPTY, Buffers())
    assert (batch.num_targets, len(batch.clip_slots_CK)) == (0, 0)
    found = gradients(run, [batch], num_targets=1)
    assert all(not gradient.any() for gradient in found.values())
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_an_error_says_whose_it_is(run, monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(run.model.lm, "forward", fail)
    stage = run.stages[0]
    with (
        stage.batches(done=1, ranks=ALONE, readers=0) as batches,
        pytest.raises(RuntimeError, match="no memory") as caught,
    ):
        add_step_gradients(
            run.model, batches, computing=Computing(ranks=ALONE), clock=StepClock(CPU)
        )
    (note,) = caught.value.__notes__
    assert note.startswith("rank 0 of 1, step 2 of the stage, a pack of ")
