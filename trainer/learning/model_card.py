"""model_card: what a model is, for people who find its folder."""

from __future__ import annotations

from trainer.model.model_config import ModelConfig


def model_card(config: ModelConfig, *, language_model: str) -> str:
    """README.md of a model; `language_model` says which weights of it are in the folder."""
    preprocessing, training = config.preprocessing, config.training
    shape, view = preprocessing.shape, preprocessing.view
    fps = view.fps or shape.fps
    stages = "\n".join(
        f"* {stage['name']}: {', '.join(stage['train'])},"
        f" {stage['steps'] or stage['epochs']} {'steps' if stage['steps'] else 'epochs'}"
        for stage in training["stages"]
    )
    named = [f"{name} ({stamp['name']})" for name, stamp in preprocessing.stamps.items()]
    encoders = ", ".join(named)
    frames = f"{fps:g} frames a second"
    if view.policy == "uniform":
        frames = f"{view.num_frames} frames, evenly spread"
    return f"""---
library_name: reelcache
base_model: {config.base}
---

# A video language model

It answers questions about a video from features of its frames. Trained with reelcache
{config.version}, from the language model {config.base}; weights here: {language_model}.

## Ask it

    trainer generate THIS_FOLDER video.mp4 "What happens?"
    trainer generate THIS_FOLDER --features CACHE VIDEO_ID "What happens?"

## What it sees

* frames: {frames}, clips of {preprocessing.frames_per_clip},
  {preprocessing.tokens_per_clip} tokens a clip
* encoders: {encoders}
* sound: {"yes" if preprocessing.with_audio else "no"}
* template: {preprocessing.template}; at most {preprocessing.max_tokens} tokens a question
* fingerprint: {preprocessing.fingerprint()}, of caches: {preprocessing.cache_fingerprint()}

## How it was trained

Data: {", ".join(training["data"])}. Step {training["step"]:,}, seed {training["seed"]}.

{stages}

## Limits

Encoders were frozen. Answers are as good as the data above; times are no finer than a clip says.
Only caches of the fingerprint above can be asked, and videos through the same encoders.
"""
