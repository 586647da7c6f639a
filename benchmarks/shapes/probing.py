"""What encoders carry of a scene: a linear and a nonlinear reader of their features.

    python -m benchmarks.shapes.probing [--events 3000] [--speeds 12,24] [--encoders NAME,...]

Features are of the four frames at 2 fps from which on an object is visible, straight from its
scene. Readers are given the mean over cells and frames, or all cells and frames side by side; a
third one is given products of how much each cell differs from what it usually shows, with its
neighbours' a frame later. Every fourth event is held out. Chance is 0.25 for color and direction.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.shapes.scene import COLORS, DIRECTIONS, FPS, SIZE, make_scene, render_frames
from encoders import load_encoder

ENCODERS = ("random-image", "random-video", "random-relu", "motion-energy")
SAMPLE_FPS, NUM_FRAMES = 2, 4
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
Array = npt.NDArray[np.float32]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--speeds", help="pixels a second, LOW,HIGH; else as in the task")
    parser.add_argument("--encoders", default=",".join(ENCODERS))
    options = parser.parse_args(arguments)
    speeds = tuple(map(float, options.speeds.split(","))) if options.speeds else None
    frames, colors, directions = make_events(options.events, speeds=speeds)
    readers = ("mean", "mean, MLP", "cells", "cells, MLP", "products")
    print(f"{'':16}{'color':>10}" + "".join(f"{reader:>12}" for reader in ("", *readers)))
    for name in options.encoders.split(","):
        features = encode(name, frames)
        mean, cells = features.mean(axis=(1, 2)), features.reshape(len(features), -1)
        scores = [
            read_linearly(mean, colors),
            read_linearly(mean, directions),
            read_by_mlp(mean, directions),
            read_linearly(cells, directions),
            read_by_mlp(cells, directions),
            read_linearly(neighbour_products(name, features), directions),
        ]
        texts = [f"{score:.2f}" for score in scores]
        print(f"{name:16}{texts[0]:>10}{'direction':>12}" + "".join(f"{t:>12}" for t in texts[1:]))


def make_events(
    num: int, *, speeds: Sequence[float] | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(num, NUM_FRAMES, SIZE, SIZE, 3) uint8, and (num,) of COLORS and of DIRECTIONS."""
    step = FPS // SAMPLE_FPS
    frames, colors, directions = [], [], []
    for index in range(num):
        scene = make_scene(1, index)
        event = scene.events[index % 2]
        if speeds is not None:
            rng = np.random.default_rng([4, index])
            event = replace(event, speed=float(rng.uniform(*speeds)))
        scene = replace(scene, events=(event, event))
        first = round(event.start_seconds * FPS)
        last = first + NUM_FRAMES * step
        frames.append(render_frames(scene)[first:last:step])
        colors.append(list(COLORS).index(event.color))
        directions.append(list(DIRECTIONS).index(event.direction))
    return np.stack(frames), np.array(colors), np.array(directions)


def encode(name: str, frames_BTHWC: npt.NDArray[np.uint8]) -> Array:
    """(B, T, cells, D) of an encoder that needs no weights."""
    import torch

    encoder = load_encoder(name)
    spec = encoder.spec
    B, T = frames_BTHWC.shape[:2]
    pictures = torch.from_numpy(frames_BTHWC).flatten(0, 1).permute(0, 3, 1, 2)
    if spec.width != SIZE:
        pictures = torch.nn.functional.interpolate(
            pictures, (spec.height, spec.width), mode="bicubic", antialias=True
        )
    resized = pictures.permute(0, 2, 3, 1).reshape(B, T, spec.height, spec.width, 3)
    features: Array = encoder.encode(np.ascontiguousarray(resized.numpy()))
    return features.reshape(B, T, -1, spec.dim)


def neighbour_products(name: str, features_BTCD: Array) -> Array:
    """(B, 2): motion to the right and down, of how far each cell is from its median."""
    B, T = features_BTCD.shape[:2]
    h, w = load_encoder(name).spec.grid
    usual = np.median(features_BTCD, axis=(0, 1), keepdims=True)
    strange = np.linalg.norm(features_BTCD - usual, axis=-1).reshape(B, T, h, w)
    strange -= strange.mean(axis=(2, 3), keepdims=True)
    before, after = strange[:, :-1], strange[:, 1:]
    across = before[..., :-1] * after[..., 1:] - before[..., 1:] * after[..., :-1]
    down = before[..., :-1, :] * after[..., 1:, :] - before[..., 1:, :] * after[..., :-1, :]
    return np.stack([across.sum(axis=(1, 2, 3)), down.sum(axis=(1, 2, 3))], axis=1)


def read_linearly(features: Array, labels: npt.NDArray[np.int64]) -> float:
    """Accuracy on what is held out, of ridge regression with the best of PENALTIES."""
    features = _standardised(features)
    held_out = _held_out(len(labels))
    inputs, others = features[~held_out], features[held_out]
    targets = np.eye(labels.max() + 1, dtype=np.float32)[labels[~held_out]]
    products, sums = inputs.T @ inputs, inputs.T @ (targets - targets.mean(axis=0))
    best = 0.0
    for penalty in PENALTIES:
        weights = np.linalg.solve(products + penalty * np.eye(len(products)), sums)
        said = np.argmax(others @ weights + targets.mean(axis=0), axis=1)
        best = max(best, float((said == labels[held_out]).mean()))
    return best


def read_by_mlp(features: Array, labels: npt.NDArray[np.int64], *, num_epochs: int = 30) -> float:
    """Accuracy on what is held out, of one hidden layer; the best epoch."""
    import torch

    torch.manual_seed(0)
    held_out = _held_out(len(labels))
    x, y = torch.from_numpy(_standardised(features)), torch.from_numpy(labels)
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(128, int(y.max()) + 1),
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    train = torch.from_numpy(np.flatnonzero(~held_out))
    best = 0.0
    for _ in range(num_epochs):
        model.train()
        for batch in train[torch.randperm(len(train))].split(64):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
        model.eval()
        with torch.inference_mode():
            right = model(x[held_out]).argmax(dim=1) == y[held_out]
        best = max(best, float(right.float().mean()))
    return best


def _standardised(features: Array) -> Array:
    standardised: Array = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    return standardised


def _held_out(num: int) -> npt.NDArray[np.bool_]:
    return np.arange(num) % 4 == 0


if __name__ == "__main__":
    main()
