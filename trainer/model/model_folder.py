"""A model as a folder, in the style of Hugging Face: what `trainer export` writes and others open.

    config.json              what the model is: preprocessing, fingerprints, files and their digests
    connector.safetensors    connector, reducer and time head
    lm/                      a whole language model, where it was trained, merged or copied
    adapter/                 adapters of peft, where the language model has them
    tokenizer.json, ...      with the chat template; generation_config.json, README.md

Without lm/ the language model is the one that config.json names.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from encoders.importing import without_torchvision
from schemas.errors import FingerprintMismatch, ModelDamaged, UsageError
from trainer.data.clip_reader import audio_tokens_per_clip
from trainer.data.rendering import Renderer
from trainer.model.language import (
    load_language_model,
    load_tokenizer,
    make_renderer,
    with_adapter,
)
from trainer.model.model_config import ModelConfig
from trainer.model.video_lm import VideoLM
from trainer.model_spec import ModelSpec
from trainer.preprocessing import Preprocessing

CONNECTOR, LM, ADAPTER = "connector.safetensors", "lm", "adapter"
OWN = ("connector.", "reducer.", "time_head.")
"""Parameters that lie in CONNECTOR; the others are the language model's."""
HASHED_BYTES = 256_000_000
"""Of larger files only the size is compared when a model is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskableModel:
    """A model that is loaded, with all that it takes to ask it."""

    config: ModelConfig
    lm: VideoLM
    tokenizer: Any
    renderer: Renderer
    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    device: torch.device

    @property
    def preprocessing(self) -> Preprocessing:
        return self.config.preprocessing


def open_model(folder: Path, *, device: str = "cpu", lm: str | None = None) -> AskableModel:
    """Load an exported model; `lm` is where its language model lies now, if it has moved.

    UsageError: no such model, or its language model is not found. ModelDamaged: files are missing,
    cut short or others than were written. FingerprintMismatch: another language model.
    """
    config = ModelConfig.read(folder)
    _check_files(folder, config)
    with _damaged(folder):
        tokenizer = load_tokenizer(str(folder), offline=True, config=_no_config())
    model = build_model(config, folder=folder, lm=lm)
    load_own(model, folder / CONNECTOR)
    model.to(device).eval().requires_grad_(requires_grad=False)
    renderer = renderer_of(config.preprocessing, tokenizer)
    return AskableModel(
        config=config,
        lm=model,
        tokenizer=tokenizer,
        renderer=renderer,
        eos_ids=eos_ids_of(renderer),
        device=torch.device(device),
    )


def build_model(config: ModelConfig, *, folder: Path, lm: str | None = None) -> VideoLM:
    """The model of a folder, without what is in CONNECTOR. Errors as of `open_model`."""
    dtype = getattr(torch, config.spec.dtype)
    if (folder / LM).is_dir():
        with _damaged(folder / LM):
            language_model = load_language_model(str(folder / LM), dtype=dtype, offline=True)
    else:
        where = lm or config.base
        try:
            language_model = load_language_model(where, dtype=dtype)
        except UsageError as error:
            raise UsageError(
                f"{folder}: its language model {where!r} cannot be loaded: {error.message}",
                hint="say where it is with --lm; or export again with --copy-lm or --merge",
            ) from error
        if digest_of(language_model) != config.base_digest:
            raise FingerprintMismatch(
                f"{where} is not the language model that {folder} was trained with",
                hint="say where that one is with --lm",
            )
    if (folder / ADAPTER).is_dir():
        with _damaged(folder / ADAPTER):
            language_model = with_adapter(language_model, folder / ADAPTER)
    return VideoLM(
        config.spec,
        language_model=language_model,
        shape=config.preprocessing.shape,
        frames_per_clip=config.preprocessing.frames_per_clip,
    )


def begun_from(spec: ModelSpec) -> str:
    """The language model that a run begins from: that of `init` where it has one, else `lm`."""
    copy = Path(spec.init) / LM
    return str(copy) if spec.init and copy.is_dir() else spec.lm


def load_own(model: VideoLM, path: Path) -> None:
    """Put CONNECTOR into a model. ModelDamaged: its tensors are others than the model's."""
    from safetensors.torch import load_file

    with _damaged(path):
        tensors = load_file(path)
    own = own_tensors(model)
    problems = [f"{name} is missing" for name in sorted(own.keys() - tensors.keys())]
    problems += [f"{name} is not the model's" for name in sorted(tensors.keys() - own.keys())]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(own[name].shape)}"
        for name in sorted(own.keys() & tensors.keys())
        if own[name].shape != tensors[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ModelDamaged(f"{path}: {'; '.join(problems[:3])}{more}")
    model.load_state_dict(tensors, strict=False)


def own_tensors(model: VideoLM) -> dict[str, Tensor]:
    """What belongs into CONNECTOR."""
    return {name: one for name, one in model.state_dict().items() if name.startswith(OWN)}


def renderer_of(preprocessing: Preprocessing, tokenizer: Any) -> Renderer:
    """The renderer of a model, whoever asks it."""
    view = preprocessing.view
    return make_renderer(
        tokenizer,
        template=preprocessing.template,
        time=preprocessing.time,
        tokens_per_clip=preprocessing.tokens_per_clip,
        audio_tokens_per_clip=audio_tokens_per_clip(view, preprocessing.shape)
        if preprocessing.with_audio
        else 0,
        system=preprocessing.system,
        event_kinds=view.events,
        event_tokens=view.event_tokens,
    )


def eos_ids_of(renderer: Renderer) -> frozenset[int]:
    """The end of text, and what ends a turn."""
    stop = renderer.tokenize(renderer.template.stop)
    return frozenset({renderer.end_id, *(stop if len(stop) == 1 else ())})


def digest_of(language_model: Any) -> str:
    """16 hex digits over the names and shapes of all weights, and up to 64 values of each.

    Not a proof of equality: it tells another model, or another training of the same one.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(language_model.state_dict().items()):
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // 64)][:64].float().cpu().numpy()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(some.tobytes())
    return digest.hexdigest()[:16]


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Bytes and sha256 of the files of weights."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        found[name] = {"bytes": path.stat().st_size, "sha256": sha256}
    return found


def _no_config() -> Any:
    # transformers would remark that it knows no such model_type.
    with without_torchvision():
        from transformers import PreTrainedConfig
    return PreTrainedConfig()


def _check_files(folder: Path, config: ModelConfig) -> None:
    for name, told in config.files.items():
        path = folder / name
        if not path.is_file():
            raise ModelDamaged(f"{path} is missing", hint="copy or export the model again")
        num_bytes = path.stat().st_size
        if num_bytes != told["bytes"]:
            raise ModelDamaged(
                f"{path} has {num_bytes:,} bytes, {told['bytes']:,} were written",
                hint="copy or export the model again",
            )
        if num_bytes <= HASHED_BYTES:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 != told["sha256"]:
                raise ModelDamaged(
                    f"{path} holds other bytes than were written",
                    hint="copy or export the model again",
                )


@contextlib.contextmanager
def _damaged(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, UsageError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelDamaged(f"{path}: cannot be loaded: {first_line}") from error
