"""SigLIP's text space: the end of its image tower, and its text tower; needs torch.

The end is the blocks after the cached one, the final norm and the pooling by attention (Zhai et
al., Sigmoid Loss for Language Image Pre-Training, 2023). Blocks and pooling see a set of tokens:
positions were added before the first block. So they take a pooled grid as it is, and what they give
for it is what they would give if each of its cells were repeated.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import open_clip
import timm
import torch
from open_clip.model import _build_text_tower

from encoders.base import EncoderSpec, Runtime
from encoders.device_loop import DeviceLoop
from encoders.siglip_keys import head_to_timm, text_to_open_clip, to_timm
from encoders.siglip_model import ACTIVATIONS
from encoders.siglip_sizes import Size
from encoders.tensors import load_strictly, read_tensors
from encoders.weights import Weights
from schemas.errors import UsageError, WeightsError

BATCH = 4
"""Frames a forward: those of a clip. A batch is always filled up, and reading takes longer."""
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")
"""One of them is in a folder with a tokenizer."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_PADDING = "it has no token to pad with; take the folder that is published beside the weights"


class SiglipEnding:
    """See `text_space.Ending`."""

    def __init__(self, module: torch.nn.Module, *, spec: EncoderSpec, runtime: Runtime) -> None:
        self._dim = spec.dim
        self._loop = DeviceLoop(
            module,
            name=f"the end of {spec.name}",
            item="frame",
            device=runtime.device,
            precision=spec.precision,
            max_batch=runtime.max_batch or BATCH,
            compiled=runtime.compile,
            prepare=lambda tokens: tokens.to(torch.float32),
        )

    def finish(self, features_NhwD: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """See `text_space.Ending.finish`."""
        N, D = len(features_NhwD), self._dim
        return self._loop.run(features_NhwD.reshape(N, -1, D), shape=(D,))


class SiglipText:
    """See `text_space.TextEncoder`."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        name: str,
        tokenizer: Any,
        num_tokens: int,
        device: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens
        # A query is a sentence: exact, whatever the pictures were computed in.
        self._loop = DeviceLoop(
            module,
            name=f"the text tower of {name}",
            item="sentence",
            device=device,
            precision="float32",
            max_batch=1,
            compiled=False,
            prepare=lambda ids: ids,
        )
        self._dim = int(module.text.text_projection.out_features)  # type: ignore[union-attr,arg-type]

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `text_space.TextEncoder.encode`."""
        ids_NL = self._tokenizer(
            [canonical(text) for text in texts],
            max_length=self._num_tokens,
            padding="max_length",
            truncation=True,
            return_tensors="np",
        )["input_ids"]
        return self._loop.run(np.ascontiguousarray(ids_NL, dtype=np.int64), shape=(self._dim,))


def canonical(text: str) -> str:
    """Lower case, without punctuation, single spaces: what SigLIP learned from.

    big_vision's `canonicalize_text`, which open_clip also applies.
    """
    return " ".join(text.replace("_", " ").translate(_NO_PUNCTUATION).lower().split())


def load_siglip_ending(
    spec: EncoderSpec, *, size: Size, weights: Weights, num_blocks: int, runtime: Runtime
) -> SiglipEnding:
    """All after the first `num_blocks` blocks. WeightsError, DeviceError."""
    module = _Ending(size, num_blocks=num_blocks, activation=ACTIVATIONS[spec.activation])
    if not weights.is_random:
        found = read_tensors(weights)
        head = head_to_timm(found)
        if not head:
            raise _lacks(weights, "the pooling at the end of the image tower", spec)
        tensors, others = to_timm(found)
        needed = module.trunk.state_dict().keys()
        before = {key for key in tensors if not key.startswith("attn_pool.") and key not in needed}
        families = {".".join(key.split(".")[:2]) for key in before if key.startswith("blocks.")}
        load_strictly(
            module.trunk,
            {key: value for key, value in tensors.items() if not key.startswith("attn_pool.")}
            | head,
            source=str(weights.paths[0]),
            ignored=(*families, "patch_embed", "pos_embed", *others),
        )
    return SiglipEnding(module, spec=spec, runtime=runtime)


def load_siglip_text(
    spec: EncoderSpec,
    *,
    size: Size,
    weights: Weights,
    gelu: str,
    tokenizer: Path | None,
    runtime: Runtime,
) -> SiglipText:
    """The text tower; `gelu` empty: as open_clip runs it. Errors as of `text_space.load_text`."""
    config = open_clip.get_model_config(size.open_clip)
    choices = dict(config["text_cfg"])
    for name in ("hf_tokenizer_name", "tokenizer_kwargs"):
        choices.pop(name, None)
    if gelu:
        choices["act_kwargs"] = {"approximate": "tanh" if gelu == "tanh" else "none"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tower = _build_text_tower(config["embed_dim"], choices)
    if not weights.is_random:
        tensors = text_to_open_clip(read_tensors(weights))
        if not tensors:
            raise _lacks(weights, "the text tower", spec)
        load_strictly(tower, tensors, source=str(weights.paths[0]))
    if tokenizer is None and weights.paths:
        tokenizer = weights.paths[0].parent
    return SiglipText(
        _Text(tower),
        name=spec.name,
        tokenizer=read_tokenizer(tokenizer, encoder=spec.name),
        num_tokens=int(choices["context_length"]),
        device=runtime.device,
    )


def read_tokenizer(folder: Path | None, *, encoder: str) -> Any:
    """The tokenizer in a folder, as transformers reads it; nothing is downloaded.

    UsageError: there is none, it cannot be read, or transformers is not installed.
    """
    hint = f"give the folder of {encoder} as it is published: --tokenizer FOLDER"
    if folder is None or not any((folder / name).is_file() for name in TOKENIZER_FILES):
        names = ", ".join(TOKENIZER_FILES)
        where = "no folder with a tokenizer" if folder is None else f"{folder}: no tokenizer"
        raise UsageError(f"{where} ({names})", hint=hint)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            "the words of a query are read by the package transformers",
            hint="pip install 'reelcache[transformers]'",
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # of many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"{folder}: its tokenizer cannot be read: {lines[0]}", hint=hint
        ) from error
    if tokenizer.pad_token_id is None:
        raise UsageError(f"{folder}: not the tokenizer of {encoder}: {_NO_PADDING}", hint=hint)
    return tokenizer


class _Ending(torch.nn.Module):
    def __init__(self, size: Size, *, num_blocks: int, activation: str) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.trunk: Any = timm.create_model(size.timm, num_classes=0, act_layer=activation)
        blocks: Any = self.trunk.blocks
        # Under their own numbers, as the file has them.
        kept = {str(number): blocks[number] for number in range(num_blocks, len(blocks))}
        self.trunk.blocks = torch.nn.ModuleDict(kept)
        del self.trunk.patch_embed, self.trunk.pos_embed

    def forward(self, tokens_NLD: torch.Tensor) -> torch.Tensor:
        for block in self.trunk.blocks.values():
            tokens_NLD = block(tokens_NLD)
        vectors_ND = self.trunk.attn_pool(self.trunk.norm(tokens_NLD))
        return torch.nn.functional.normalize(vectors_ND.to(torch.float32), dim=-1)


class _Text(torch.nn.Module):
    def __init__(self, text: torch.nn.Module) -> None:
        super().__init__()
        self.text = text

    def forward(self, ids_NL: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.text(ids_NL), dim=-1)


def _lacks(weights: Weights, what: str, spec: EncoderSpec) -> WeightsError:
    return WeightsError(
        f"{weights.paths[0]}: holds the features' part of {spec.name} only, without {what}",
        hint="searching by text takes the whole published model: the file that features were made"
        " with decides which one",
    )
