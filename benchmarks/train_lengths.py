"""Lengths of items as they come in training, in tokens.

The learning task's are those of its rows, rendered as for a run. The others are drawn as such data
is said to be: how long texts and videos are differs from corpus to corpus, so these say how a
packing does on lengths of such a shape, no more.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.shapes.language import write_lm
from benchmarks.shapes.questions import caption_row, question_rows, texts_of, write_rows
from benchmarks.shapes.scene import DURATION_SECONDS, make_scene
from trainer.data.formats import read_annotations
from trainer.data.video_view import VideoView
from trainer.model.language import load_tokenizer, make_renderer
from trainer.model_spec import TimeSpec

Lengths = npt.NDArray[np.int64]

TOKENS_PER_CLIP = 64
TIME_TOKENS = 14
""""62.0-64.0 seconds: " and what stands between clips, by Qwen's tokenizer."""
FRAMES, CLIP_SECONDS = 4, 2.0


def learning_lengths(num_videos: int) -> Lengths:
    """Of all captions and questions about so many videos of the learning task."""
    scenes = [make_scene(0, index) for index in range(num_videos)]
    rows: list[dict[str, Any]] = [caption_row(scene) for scene in scenes]
    rows += [row for scene in scenes for row in question_rows(scene)]
    with tempfile.TemporaryDirectory() as temporary:
        write_rows(Path(temporary) / "rows.jsonl", rows)
        annotations = read_annotations(str(Path(temporary) / "rows.jsonl"))
        write_lm(Path(temporary) / "lm", texts_of(rows), seed=0)
        tokenizer = load_tokenizer(str(Path(temporary) / "lm"))
    assert json.dumps([one.id for one in annotations]) == json.dumps([row["id"] for row in rows])
    renderer = make_renderer(
        tokenizer,
        template="auto",
        time=TimeSpec(text="{start:.1f}-{end:.1f}:", joint=""),
        tokens_per_clip=6,
        audio_tokens_per_clip=4,
    )
    starts = np.arange(0.0, DURATION_SECONDS, CLIP_SECONDS)
    numbers = np.broadcast_to(np.arange(FRAMES), (len(starts), FRAMES))
    view = VideoView(
        video_id="",
        rows=np.broadcast_to(np.arange(len(starts))[:, None], numbers.shape),
        frames=numbers,
        start_seconds=starts,
        end_seconds=starts + CLIP_SECONDS,
    )
    return np.array([len(renderer.render(one, view=view)) for one in annotations])


def mixed_lengths(num_items: int, *, capacity: int, generator: np.random.Generator) -> Lengths:
    """Of conversations, half of them about videos.

    Texts have 50 to 8000 tokens, log-normal around 300, videos 1 to 128 clips, short ones more
    often. What is too long is shown fewer clips, or dropped.
    """
    texts = np.exp(generator.normal(np.log(300), 1.0, num_items)).clip(50, 8000).astype(np.int64)
    clips = np.exp(generator.uniform(0, np.log(129), num_items)).astype(np.int64)
    clips *= generator.random(num_items) < 0.5
    return _fitted(texts, clips, capacity)


def charades_lengths(num_items: int, *, capacity: int, generator: np.random.Generator) -> Lengths:
    """Short questions about videos of around 30 s."""
    texts = generator.integers(40, 90, num_items)
    seconds = generator.normal(30, 7, num_items).clip(4, 60)
    return _fitted(texts, np.ceil(seconds / CLIP_SECONDS).astype(np.int64), capacity)


def _fitted(texts: Lengths, clips: Lengths, capacity: int) -> Lengths:
    size = TOKENS_PER_CLIP + TIME_TOKENS
    room = (capacity - texts) // size
    kept = (texts <= capacity) & ((clips == 0) | (room >= 1))
    lengths: Lengths = (texts + size * np.minimum(clips, room))[kept]
    return lengths
