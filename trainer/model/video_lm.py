"""VideoLM: cached features and text to the next token.

    features --Connector--> tokens of clips --> slots of the row --> language model
                              ^ left out by a reducer, with their text

A row holds several items. transformers tells them apart by position ids alone, and only where it is
given no attention mask and no cache, which `forward` sees to: with any of them items would see each
other, without a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.data.batch import Batch
from trainer.data.blank_clip import with_blank_clip
from trainer.data.cache_shape import CacheShape
from trainer.model.connector import Connector
from trainer.model.reducing import build_reducer, drop_clips
from trainer.model.time_head import TimeHead, time_loss
from trainer.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Sums over a row, to be divided by what the whole step has of each."""

    tokens: Tensor
    """Cross-entropy over the supervised tokens, summed, float32."""
    times: Tensor | None = None
    """Of the time head, summed over its items."""
    kept_C: Tensor | None = None
    """(C,) bool: clips that the reducer kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A row of one item on its way into the language model."""

    embeds_LH: Tensor
    """(L', H)"""
    old_L: Tensor | None
    """(L',) int64: which tokens of the row these are; None: all, as nothing was left out."""
    kept_C: Tensor | None
    """(C,) bool: clips that the reducer kept; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """An answer."""

    ids: list[int]
    """Without what ended it."""
    span_2: Tensor | None
    """Start and end by the time head, over the duration of what is seen; None without one."""
    is_complete: bool
    """False: it was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedded:
    """A row as it goes into the language model."""

    embeds_LH: Tensor
    position_ids_L: Tensor
    predict_S: Tensor
    head_positions_R: Tensor | None
    kept_C: Tensor | None
    old_L: Tensor | None
    """Which tokens of the row are left; None: all."""


class VideoLM(nn.Module):
    """A connector, and a causal language model of transformers."""

    def __init__(
        self, spec: ModelSpec, *, language_model: Any, shape: CacheShape, frames_per_clip: int
    ) -> None:
        """`frames_per_clip` is the view's."""
        super().__init__()
        width = language_model.get_input_embeddings().weight.shape[1]
        self.connector = Connector(
            spec.connector,
            shape=shape,
            frames_per_clip=frames_per_clip,
            width=width,
            audio=spec.audio,
        )
        dim = sum(stream.dim for stream in shape.streams.values())
        self.reducer = build_reducer(spec.reduce, dim=dim)
        self.time_head = TimeHead(width) if spec.time.regression_weight else None
        self.lm = language_model
        self._shape = shape
        self._frames_per_clip = frames_per_clip

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Part of `config.PARTS` -> its parameters; of a language model with adapters, those."""
        lm = list(self.lm.named_parameters())
        adapters = [parameter for name, parameter in lm if "lora_" in name]
        own = [self.connector, self.reducer, self.time_head]
        return {
            "connector": [p for module in own if module is not None for p in module.parameters()],
            "lm": adapters or [parameter for _, parameter in lm],
        }

    def forward(self, batch: Batch) -> Losses:
        """The losses of one row."""
        row = self._embed(batch)
        position_ids = row.position_ids_L[None]
        # A row with nothing to learn still takes part, so that all ranks do the same.
        predict_S = row.predict_S if len(row.predict_S) else row.predict_S.new_zeros(1)
        output = self.lm(
            inputs_embeds=row.embeds_LH[None],
            position_ids=position_ids,
            attention_mask=None,
            use_cache=False,
            logits_to_keep=predict_S,
            output_hidden_states=self.time_head is not None,
        )
        logits_SV = output.logits[0].float()
        if len(row.predict_S):
            tokens = functional.cross_entropy(logits_SV, batch.targets_S, reduction="sum")
        else:
            tokens = logits_SV.sum() * 0.0
        return Losses(tokens=tokens, times=self._times(output, row, batch), kept_C=row.kept_C)

    def _times(self, output: Any, row: _Embedded, batch: Batch) -> Tensor | None:
        if self.time_head is None:
            return None
        hidden_LH = output.hidden_states[-1][0]
        positions, targets = row.head_positions_R, batch.head_targets_R2
        if positions is None or targets is None or not len(positions):
            loss: Tensor = self.time_head(hidden_LH[:1]).sum() * 0.0
            return loss
        losses_R: Tensor = time_loss(self.time_head(hidden_LH[positions]), targets)
        return losses_R.sum()

    def with_blank_clip(self, batch: Batch) -> Batch:
        """A row without any clip as if it had one, of nothing."""
        return with_blank_clip(batch, shape=self._shape, frames_per_clip=self._frames_per_clip)

    @torch.no_grad()
    def embed_prompt(self, batch: Batch) -> Prompt:
        """A row of one item as the language model is given it."""
        row = self._embed(batch)
        return Prompt(embeds_LH=row.embeds_LH, old_L=row.old_L, kept_C=row.kept_C)

    @torch.no_grad()
    def embed_text(self, ids: list[int]) -> Tensor:
        """(L, H): tokens of text alone."""
        embeddings = self.lm.get_input_embeddings()
        out: Tensor = embeddings(torch.tensor(ids, device=embeddings.weight.device))
        return out

    @torch.no_grad()
    def generate(
        self,
        embeds_LH: Tensor,
        *,
        cache: Any,
        max_new_tokens: int,
        eos_ids: Collection[int],
        say: Callable[[list[int]], None] | None = None,
    ) -> Generated:
        """The greedy answer to a prompt, at least one token of which is not in the cache yet.

        `cache` is a DynamicCache of transformers, with what comes before the prompt; afterwards it
        has the prompt too, and the answer up to its last token but one. `say` is told all of the
        answer that there is, after each token.
        """
        ids: list[int] = []
        span_2: Tensor | None = None
        embeds_1LH = embeds_LH[None]
        while True:
            first = cache.get_seq_length()
            positions = torch.arange(first, first + embeds_1LH.shape[1], device=embeds_LH.device)
            output = self.lm(
                inputs_embeds=embeds_1LH,
                position_ids=positions[None],
                use_cache=True,
                logits_to_keep=1,
                output_hidden_states=self.time_head is not None and not ids,
                **{self._cache_name: cache},
            )
            if self.time_head is not None and not ids:
                span_2 = self.time_head(output.hidden_states[-1][0, -1:])[0]
            best = int(output.logits[0, -1].argmax())
            if best in eos_ids:
                return Generated(ids=ids, span_2=span_2, is_complete=True)
            ids.append(best)
            if say is not None:
                say(ids)
            if len(ids) >= max_new_tokens:
                return Generated(ids=ids, span_2=span_2, is_complete=False)
            embeds_1LH = self.embed_text([best])[None]

    @property
    def _cache_name(self) -> str:
        # transformers calls it by its new name where a model knows that.
        whole = self.lm.get_base_model() if hasattr(self.lm, "get_base_model") else self.lm
        names = inspect.signature(whole.forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    def _embed(self, batch: Batch) -> _Embedded:
        embeds_LH = self.lm.get_input_embeddings()(batch.input_ids_L)
        num_clips = len(batch.clip_slots_CK)
        connected = self.connector(batch if num_clips else self.with_blank_clip(batch))
        video_CKH, audio_CAH = connected.video_CKH, connected.audio_CAH
        kept_C: Tensor | None = None
        if self.reducer is not None:
            items_C = batch.clip_item_C if num_clips else batch.clip_item_C.new_zeros(1)
            kept = self.reducer(connected.pooled_CD, items_C)
            gate_C11 = kept.gate_C[:, None, None].to(video_CKH.dtype)
            video_CKH = video_CKH * gate_C11
            kept_C = kept.mask_C if num_clips else None
        dtype = embeds_LH.dtype
        if not num_clips:
            # One clip of nothing, that weighs nothing: every parameter takes part in every row.
            embeds_LH = embeds_LH + 0.0 * video_CKH.sum().to(dtype)
            if audio_CAH is not None:
                embeds_LH = embeds_LH + 0.0 * audio_CAH.sum().to(dtype)
        else:
            slots = (batch.clip_slots_CK.flatten(),)
            embeds_LH = embeds_LH.index_put(slots, video_CKH.flatten(0, 1).to(dtype))
            if audio_CAH is not None:
                assert batch.audio_slots_CA is not None
                slots = (batch.audio_slots_CA.flatten(),)
                embeds_LH = embeds_LH.index_put(slots, audio_CAH.flatten(0, 1).to(dtype))
        if kept_C is None:
            return _Embedded(
                embeds_LH=embeds_LH,
                position_ids_L=batch.position_ids_L,
                predict_S=batch.predict_S,
                head_positions_R=batch.head_positions_R,
                kept_C=None,
                old_L=None,
            )
        short = drop_clips(
            embeds_LH,
            position_ids_L=batch.position_ids_L,
            clip_span_C2=batch.clip_span_C2,
            mask_C=kept_C,
        )
        head = batch.head_positions_R
        return _Embedded(
            embeds_LH=short.embeds_LH,
            position_ids_L=short.position_ids_L,
            predict_S=short.new_of_old_L[batch.predict_S],
            head_positions_R=None if head is None else short.new_of_old_L[head],
            kept_C=kept_C,
            old_L=(short.new_of_old_L >= 0).nonzero().squeeze(-1),
        )
