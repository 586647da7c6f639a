"""Export: from a checkpoint of a run to a model's folder, opened once before it counts."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from schemas.errors import ModelDamaged, ReelcacheError, UsageError
from trainer.config import PARTS, TrainConfig
from trainer.learning.checkpointing import list_checkpoints, load_checkpoint, read_state
from trainer.learning.distributed import Ranks
from trainer.learning.model_card import model_card
from trainer.learning.run_folder import written_into
from trainer.learning.run_state import RunState
from trainer.model.chat_template import chat_template_of
from trainer.model.language import add_lora, load_language_model, load_tokenizer
from trainer.model.model_config import CONFIG, ModelConfig
from trainer.model.model_folder import (
    ADAPTER,
    CONNECTOR,
    LM,
    begun_from,
    describe_files,
    digest_of,
    eos_ids_of,
    load_own,
    open_model,
    own_tensors,
    renderer_of,
)
from trainer.model.video_lm import VideoLM
from trainer.preprocessing import Preprocessing

DEFAULT_NAME = "model"
"""In the run's folder."""
MAX_NEW_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    model: str
    step: int
    stage: str
    fingerprint: str
    trained: tuple[str, ...]
    language_model: str
    """`lm/`, `adapter/`, or the name of the one that is not in the folder."""
    num_bytes: int


def export_run(
    run: Path,
    *,
    out: Path | None = None,
    step: int | None = None,
    merge: bool = False,
    copy_lm: bool = False,
) -> Exported:
    """Write the model of a run's newest checkpoint, or of a step's, to a new folder.

    `merge` writes the language model with its adapters in it; `copy_lm` writes it although it was
    not trained, so that the folder needs no other. UsageError: no such run, checkpoint or language
    model, or `out` is there already. ModelDamaged: the checkpoint cannot be read, or what was
    written cannot be read back. StorageError: the place is read-only or full.
    """
    checkpoint = _find_checkpoint(run, step=step)
    out = out or run / DEFAULT_NAME
    if out.exists():
        raise UsageError(f"{out} is there already", hint="delete it, or name another with -o")
    state = read_state(checkpoint)
    RunState.from_mapping(state, where=checkpoint)
    config, preprocessing = _read_settings(state, checkpoint)
    parts = _trained_parts(config, stage=state["stage"])
    model, base_digest = _load(checkpoint, config, preprocessing, parts=parts)
    where = begun_from(config.model)
    base = str(Path(where).resolve()) if Path(where).exists() else where
    tokenizer = load_tokenizer(config.model.lm)
    renderer = renderer_of(preprocessing, tokenizer)
    tokenizer.chat_template = chat_template_of(renderer.template, system=renderer.system)

    writing = out.with_name(f"{out.name}.writing")
    with written_into(out.parent, scratch=writing), _told_by_safetensors():
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        own = {name: one.contiguous() for name, one in own_tensors(model).items()}
        _save_own(own, writing / CONNECTOR)
        told = _save_language_model(
            model.lm, writing, config=config, parts=parts, base=base, merge=merge, copy_lm=copy_lm
        )
        del model
        tokenizer.save_pretrained(writing)
        _write_json(
            writing / "generation_config.json",
            {
                "do_sample": False,
                "max_new_tokens": MAX_NEW_TOKENS,
                "eos_token_id": sorted(eos_ids_of(renderer)),
                "pad_token_id": tokenizer.pad_token_id,
            },
        )
        described = ModelConfig(
            preprocessing=preprocessing,
            spec=config.model,
            base=base,
            base_digest="" if (writing / LM).is_dir() else base_digest,
            trained=parts,
            training=_summary(state, config),
            files=describe_files(writing),
            version=metadata.version("reelcache"),
        )
        _write_json(writing / CONFIG, described.to_mapping())
        (writing / "README.md").write_text(
            model_card(described, language_model=told), encoding="utf-8"
        )
        _read_back(writing, own)
        writing.rename(out)
    return Exported(
        model=str(out),
        step=state["step"],
        stage=state["stage"],
        fingerprint=preprocessing.fingerprint(),
        trained=parts,
        language_model=told,
        num_bytes=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
    )


@contextlib.contextmanager
def _told_by_safetensors() -> Iterator[None]:
    """What the system said to safetensors, as an OSError again."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _find_checkpoint(run: Path, *, step: int | None) -> Path:
    found = list_checkpoints(run)
    if not found:
        what = "has no complete checkpoint" if run.is_dir() else "is no folder of a run"
        raise UsageError(f"{run} {what}", hint="start a run with: trainer train CACHE --config T")
    if step is None:
        return found[-1]
    steps = {int(path.name.rpartition("-")[2]): path for path in found}
    if step not in steps:
        raise UsageError(
            f"{run} has no checkpoint of step {step:,}; it has {', '.join(map(str, steps))}"
        )
    return steps[step]


def _read_settings(state: Mapping[str, Any], checkpoint: Path) -> tuple[TrainConfig, Preprocessing]:
    try:
        config = TrainConfig.from_mapping(state["config"])
        read = Preprocessing.from_mapping(state["preprocessing"], where=str(checkpoint))
        if state["stage"] not in [stage.name for stage in config.stages]:
            raise ValueError(f"its stage {state['stage']!r} is none of its config's")
        return config, read
    except (LookupError, TypeError, ValueError, UsageError) as error:
        raise ModelDamaged(f"{checkpoint}: its state cannot be read: {error}") from error


def _trained_parts(config: TrainConfig, *, stage: str) -> tuple[str, ...]:
    """Of the stages up to that one."""
    last = [one.name for one in config.stages].index(stage)
    trained = {part for one in config.stages[: last + 1] for part in one.train}
    return tuple(part for part in PARTS if part in trained)


def _load(
    checkpoint: Path, config: TrainConfig, preprocessing: Preprocessing, *, parts: tuple[str, ...]
) -> tuple[VideoLM, str]:
    """The model of a checkpoint, and the digest of the language model before it was trained."""
    spec = config.model
    language_model = load_language_model(
        begun_from(spec),
        dtype=torch.float32 if "lm" in parts and not spec.lora else getattr(torch, spec.dtype),
    )
    digest = digest_of(language_model)
    if "lm" in parts and spec.lora is not None:
        language_model = add_lora(language_model, spec.lora)
    model = VideoLM(
        spec,
        language_model=language_model,
        shape=preprocessing.shape,
        frames_per_clip=preprocessing.frames_per_clip,
    )
    if spec.init:
        load_own(model, Path(spec.init) / CONNECTOR)
    by_part = model.parts()
    wanted = {id(parameter) for part in parts for parameter in by_part[part]}
    trained = {name for name, one in model.named_parameters() if id(one) in wanted}
    load_checkpoint(checkpoint, model=model, optimizer=None, trained=trained, ranks=Ranks())
    return model, digest


def _save_own(own: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(dict(own), path, metadata={"format": "pt"})


def _save_language_model(
    language_model: Any,
    folder: Path,
    *,
    config: TrainConfig,
    parts: tuple[str, ...],
    base: str,
    merge: bool,
    copy_lm: bool,
) -> str:
    """Write lm/ or adapter/ or both or neither; says which one."""
    spec, is_trained = config.model, "lm" in parts
    has_adapter = is_trained and spec.lora is not None
    if has_adapter and merge:
        language_model = language_model.merge_and_unload()
        has_adapter = False
    elif has_adapter:
        for one in language_model.peft_config.values():
            one.base_model_name_or_path = base
        # "auto" would ask the hub whether the base has other embeddings; none are trained.
        language_model.save_pretrained(folder / ADAPTER, save_embedding_layers=False)
        if not copy_lm:
            return f"{ADAPTER}/ of {base}"
        language_model = language_model.unload()
    elif not is_trained and not copy_lm:
        return base
    language_model.to(getattr(torch, spec.dtype)).save_pretrained(folder / LM)
    return f"{LM}/ and {ADAPTER}/" if has_adapter else f"{LM}/"


def _summary(state: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    return {
        "step": state["step"],
        "stage": state["stage"],
        "seed": config.run.seed,
        "data": [data.label for data in config.data],
        "stages": [
            {
                "name": stage.name,
                "train": list(stage.train),
                "lr": dict(stage.lr),
                "steps": stage.steps,
                "epochs": stage.epochs,
            }
            for stage in config.stages
        ],
    }


def _read_back(folder: Path, own: Mapping[str, torch.Tensor]) -> None:
    try:
        model = open_model(folder)
    except ReelcacheError as error:
        raise ModelDamaged(f"what was written cannot be opened: {error.message}") from error
    found = own_tensors(model.lm)
    for name, tensor in own.items():
        if not torch.equal(found[name], tensor):
            raise ModelDamaged(f"{folder / CONNECTOR}: {name} is read back with other values")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
