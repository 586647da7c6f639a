"""A language model that has learned nothing yet, as a folder of transformers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VOCABULARY = 370
SPECIALS = ("<pad>", "<eos>", "<video>", "<q>", "<a>")


def write_lm(folder: Path, texts: Iterable[str], *, seed: int) -> None:
    """Tokenizer and model: byte-level BPE learned from the texts, and a small random Qwen2.

    With the usual range of initial weights, 0.02, attention of so narrow a model stays near
    uniform; 0.1 is about 1 / sqrt(width).
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    # Digits one by one, as Qwen's: times are read and written place by place.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        extra_special_tokens=list(SPECIALS[2:]),
        clean_up_tokenization_spaces=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(fast),
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=160,
                tie_word_embeddings=True,
                initializer_range=0.1,
                max_position_embeddings=4096,
                bos_token_id=None,
                eos_token_id=fast.eos_token_id,
                pad_token_id=fast.pad_token_id,
            )
        )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
