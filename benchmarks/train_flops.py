"""FLOP of a training step by the model, for sizes that no CPU can run; 2 a multiply and add.

Forward and backward of a weight are 6 FLOP a token, of attention 3 times its forward; of the first
projection of features 4, since features need no gradient. What a checkpointed activation costs
again is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu_flops import clip_flops, num_blocks

LAYER = -1
"""Whose output is cached: the last block's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSize:
    """What is trained: a language model and Apollo's resampler of its width."""

    num_parameters: int
    """Of the language model; an embedding that is tied counts once, as it is multiplied once."""
    num_layers: int
    width: int
    feature_dim: int
    features_per_clip: int
    """Cells of all frames, which the resampler looks at."""
    attention_width: int
    """Of its queries; keys and values have a quarter of it."""


APOLLO = {
    "Apollo-1.5B": LearnerSize(
        num_parameters=1_543_714_304,
        num_layers=28,
        width=1536,
        feature_dim=2560,
        features_per_clip=4 * 27 * 27,
        attention_width=1536,
    ),
    "Apollo-3B": LearnerSize(
        num_parameters=3_085_938_688,
        num_layers=36,
        width=2048,
        feature_dim=2560,
        features_per_clip=4 * 27 * 27,
        attention_width=1536,
    ),
    "Apollo-7B": LearnerSize(
        num_parameters=7_070_619_136,  # the embedding that is only looked up is not among them
        num_layers=28,
        width=3584,
        feature_dim=2560,
        features_per_clip=4 * 27 * 27,
        attention_width=1536,
    ),
}
APOLLO_ENCODERS = ("siglip-so400m-14-384", "internvideo2-1b")


def step_flops(size: LearnerSize, *, num_clips: int, tokens_per_clip: int, num_text: int) -> float:
    """Of one item: its clips resampled, and the language model trained on all its tokens."""
    num_tokens = num_clips * tokens_per_clip + num_text
    attention = 6 * size.num_layers * num_tokens**2 * size.width  # half of it is masked
    weights = 6 * size.num_parameters * num_tokens
    cells, width = size.features_per_clip, size.width
    project = 4 * size.feature_dim * width * cells
    keys_values = 6 * width * 2 * (size.attention_width // 4) * (cells + tokens_per_clip)
    block = 6 * (2 * width * size.attention_width + 12 * width**2) * tokens_per_clip
    look = 12 * tokens_per_clip * (cells + tokens_per_clip) * size.attention_width
    return float(attention + weights + num_clips * (project + keys_values + block + look))


def encode_flops(encoders: tuple[str, ...], *, num_clips: int, frames_per_clip: int = 4) -> float:
    """Of the forwards of so many clips."""
    return float(
        num_clips
        * sum(
            clip_flops(name, num_blocks=num_blocks(name, layer=LAYER), num_frames=frames_per_clip)
            for name in encoders
        )
    )
