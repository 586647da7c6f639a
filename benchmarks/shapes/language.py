"""A language model that has learned nothing yet, as a folder of transformers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VOCABULARY = 370
"""At most; all bytes are in it, so that any text has tokens."""
SPECIALS = ("<pad>", "<eos>", "<video>", "<q>", "<a>")


def write_lm(folder: Path, texts: Iterable[str], *, seed: int) -> None:
    """Tokenizer and model: byte-level BPE learned from the texts, and a small random Qwen2.

    With the usual range of initial weights, 0.02, attention of so narrow a model stays near
    uniform; 0.1 is about 1 / sqrt(width).
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    # Qwen's own splitting: digits one by one, so that times are read and written place by place.
    pad, eos, *others = SPECIALS
    empty = Qwen2Tokenizer(
        vocab={pad: 0},
        merges=[],
        pad_token=pad,
        unk_token=pad,
        eos_token=eos,
        extra_special_tokens=others,
    )
    tokenizer = empty.train_new_from_iterator(texts, VOCABULARY, show_progress=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=160,
                tie_word_embeddings=True,
                initializer_range=0.1,
                max_position_embeddings=4096,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
