"""A Whisper model of transformers with random weights and a tokenizer of bytes, in a folder."""

from __future__ import annotations

from pathlib import Path

from encoders.importing import without_torchvision

NUM_TIMES = 1501
"""<|0.00|> to <|30.00|>."""


def whisper_folder(folder: Path, *, seed: int = 0) -> Path:
    """It says nonsense, by the code that a trained one runs."""
    import torch

    with without_torchvision():
        from transformers import (
            GenerationConfig,
            WhisperConfig,
            WhisperFeatureExtractor,
            WhisperForConditionalGeneration,
            WhisperTokenizer,
        )
    letters = [chr(code) for code in range(33, 127)] + ["Ġ"]
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>"]
    special += ["<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|notimestamps|>"]
    times = [f"<|{tick * 0.02:.2f}|>" for tick in range(NUM_TIMES)]
    vocabulary = {token: number for number, token in enumerate([*letters, *special, *times])}
    tokenizer = WhisperTokenizer(
        vocab={one: vocabulary[one] for one in letters},
        merges=[],
        additional_special_tokens=special,
    )
    tokenizer.add_tokens(times)
    assert tokenizer.get_vocab() == vocabulary
    config = WhisperConfig(
        vocab_size=len(vocabulary),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_mel_bins=80,
        max_target_positions=64,
        pad_token_id=vocabulary["<|endoftext|>"],
        bos_token_id=vocabulary["<|endoftext|>"],
        eos_token_id=vocabulary["<|endoftext|>"],
        decoder_start_token_id=vocabulary["<|startoftranscript|>"],
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=vocabulary["<|startoftranscript|>"],
        eos_token_id=vocabulary["<|endoftext|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
        no_timestamps_token_id=vocabulary["<|notimestamps|>"],
        is_multilingual=True,
        lang_to_id={"<|en|>": vocabulary["<|en|>"], "<|de|>": vocabulary["<|de|>"]},
        task_to_id={
            "translate": vocabulary["<|translate|>"],
            "transcribe": vocabulary["<|transcribe|>"],
        },
        max_initial_timestamp_index=50,
        max_length=48,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    return folder
