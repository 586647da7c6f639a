"""What is said: any Whisper model of transformers, from a folder that the user has.

Nothing is loaded before there is a sound to read. Half a minute is read at once, by greedy decoding
with the model's own times. Source of the rules of times: Radford et al. 2022 (arXiv 2212.04356),
section 2.3.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders.devices import choose_device
from encoders.importing import (
    hush_transformers,
    package_version,
    told_if_broken,
    without_torchvision,
)
from encoders.weights import find_weights
from schemas.errors import UsageError, WeightsError

RATE = 16_000
CHUNK_SECONDS = 30
"""That a model reads at once."""
TICK_SECONDS = 0.02
"""Of the times that it says."""
_PACKAGE = "transformers"
_FILES = ("model.safetensors", "pytorch_model.bin")
_TOLD = ("config.json", "generation_config.json", "tokenizer.json", "vocab.json", "merges.txt")
"""Other files of a folder that answers follow from."""
_NO_TIMES = "<|notimestamps|>"
"""The token before that of 0 seconds."""

_HINT = "name a folder with config, weights and tokenizer, such as of openai/whisper-small"

Said = tuple[float, float, str]
"""(start, end, text), seconds from the start of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    model: Any
    extractor: Any
    tokenizer: Any
    first_time: int
    """The token of 0 seconds."""


class Transcriber:
    """A Whisper model on a device, with its tokenizer."""

    def __init__(self, folder: str, *, device: str = "cpu", language: str = "") -> None:
        """`device` as of `choose_device`; `language` as of the tokenizer, such as `en`, or empty.

        Without a language the model tells. WeightsError: there is no such folder, or it lacks
        files. UsageError: transformers is not installed.
        """
        path = Path(folder).expanduser()
        if not (path / "config.json").is_file():
            what = "a folder without config.json" if path.is_dir() else "no such folder"
            raise WeightsError(f"{folder}: {what}: not a Whisper model of transformers", hint=_HINT)
        self._folder, self._path, self._device, self._language = folder, path, device, language
        self._files = find_weights(str(path), encoder="transcripts", names=_FILES, hub=None)
        self._version = package_version(_PACKAGE, what="transcripts are made by", extra=_PACKAGE)

    @cached_property
    def _loaded(self) -> _Loaded:
        import torch

        with without_torchvision(), told_if_broken(_PACKAGE, extra=_PACKAGE):
            from transformers import (
                WhisperFeatureExtractor,
                WhisperForConditionalGeneration,
                WhisperTokenizer,
            )

            hush_transformers()
            device = torch.device(choose_device(self._device))
            dtype = torch.float32 if device.type == "cpu" else torch.float16
            local = {"local_files_only": True}
            try:
                extractor: Any = WhisperFeatureExtractor.from_pretrained(self._path, **local)
                tokenizer: Any = WhisperTokenizer.from_pretrained(self._path, **local)
                model: Any = WhisperForConditionalGeneration.from_pretrained(
                    self._path, dtype=dtype, **local
                )
            except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
                first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise WeightsError(
                    f"{self._folder}: not a Whisper model of transformers: {first_line}",
                    hint=_HINT,
                ) from error
        vocabulary = tokenizer.get_vocab()
        if _NO_TIMES not in vocabulary:
            raise WeightsError(f"{self._folder}: its tokenizer has no times, no token {_NO_TIMES}")
        if self._language and f"<|{self._language}|>" not in vocabulary:
            raise UsageError(
                f"{self._folder}: the model knows no language {self._language!r}",
                hint="leave --language out, or name one by its code, such as en",
            )
        return _Loaded(
            model=model.to(device).eval(),
            extractor=extractor,
            tokenizer=tokenizer,
            first_time=vocabulary[_NO_TIMES] + 1,
        )

    @property
    def made_by(self) -> dict[str, Any]:
        """What its answers follow from, JSON-ready. WeightsError: the files cannot be read."""
        digest = hashlib.sha256(self._files.sha256().encode())
        for name in _TOLD:
            path = self._path / name
            if path.is_file():
                digest.update(name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return {
            "by": "whisper",
            "model_sha256": digest.hexdigest(),
            "transformers": self._version,
            "language": self._language,
        }

    def transcribe(self, sound: npt.NDArray[np.float32]) -> list[Said]:
        """What is said in at most 30 s of 16 kHz mono in [-1, 1], in order of time.

        WeightsError: the folder holds no Whisper of transformers. UsageError: the model knows no
        such language, or transformers is broken. DeviceError.
        """
        import torch

        loaded = self._loaded
        features = loaded.extractor(sound, sampling_rate=RATE, return_tensors="pt")
        options = {"language": self._language, "task": "transcribe"} if self._language else {}
        with torch.inference_mode():
            ids = loaded.model.generate(
                features.input_features.to(loaded.model.device, loaded.model.dtype),
                return_timestamps=True,
                force_unique_generate_call=True,  # else it goes on in the silence after the sound
                do_sample=False,
                num_beams=1,
                **options,
            )[0].tolist()
        return self._read(ids, end_seconds=len(sound) / RATE)

    def _read(self, ids: list[int], *, end_seconds: float) -> list[Said]:
        # Times come in pairs around text; the last one may lack its end.
        tokenizer, first_time = self._loaded.tokenizer, self._loaded.first_time
        special = set(tokenizer.all_special_ids)
        found: list[Said] = []
        start, words = 0.0, list[int]()

        def close(end: float) -> None:
            text = " ".join(tokenizer.decode(words, skip_special_tokens=True).split())
            if text and start < end:
                found.append((start, end, text))
            words.clear()

        for token in ids:
            if token >= first_time:
                seconds = min(round((token - first_time) * TICK_SECONDS, 2), end_seconds)
                close(seconds)
                start = seconds
            elif token not in special:
                words.append(token)
        close(end_seconds)
        return found
