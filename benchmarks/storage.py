"""Ways of storing features: bytes of an hour of video, what they lose, how fast they are read.

    python -m benchmarks.storage [--quick] [--corpus FOLDER]

Bytes are those that a plan estimates for the streams of the recipe `apollo`. Errors are of features
of real encoders on generated clips and, where there is a corpus, real ones: beside the same grid in
float32, and for pooled ones also beside the native grid, each native cell compared with the mean of
the stored cells that cover it. Prints tables and writes bench-results/storage.json.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clips import TINY, Recording, make_recording
from benchmarks.decode_memory import whole_file
from benchmarks.encode_steps import usable_settings
from benchmarks.storage_reading import measure_reading
from benchmarks.timing import LoadWatch, clip_folder, write_report
from encoders import EncoderSpec, encoder_spec, list_encoders, load_encoder
from pipeline.decoding import ClipFrames, Decoding
from pipeline.planning import estimate_clip_bytes
from pipeline.pool import DecoderPool
from schemas.compact import INT8_MAX, area_weights, pool_by_area, store_features
from schemas.recipe import Recipe
from schemas.resize import PictureSpec

RESULTS = Path("bench-results") / "storage.json"
CORPUS = ("bigbuckbunny.mp4", "chaplin.mp4", "cockatoo.mp4", "llamafactory_1.mp4")
ENCODERS = ("efficientnet-lite0", "internvideo2-s14")
STRESS = "internvideo2-s14, stress"
STRESSED, STRESS_FACTOR = 6, 30.0
"""Channels that are that much larger, as some are in trained transformers."""

Features = npt.NDArray[np.float32]
"""(T, H, W, D)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How features are stored."""

    name: str
    dtype: str
    grids: tuple[tuple[str, tuple[int, int]], ...] = ()
    """(stream of apollo, grid); a stream that is not named keeps its own."""
    shrink: float = 1.0
    """The grid of measured features beside the encoder's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    recording: Recording
    corpus: tuple[str, ...]
    """Real videos, where there are such."""
    most_clips: int
    """Of each video."""
    batch_clips: int
    """That are read; more than a processor's caches hold."""
    rounds: int
    """The first is dropped."""


_PLAIN = Recording(codec="h264", height=360, seconds=12, gop=250, num_b=3)
SCOPES = {
    "full": Scope(recording=_PLAIN, corpus=CORPUS, most_clips=4, batch_clips=30, rounds=9),
    "quick": Scope(recording=_PLAIN, corpus=CORPUS[:1], most_clips=1, batch_clips=30, rounds=3),
    "tiny": Scope(recording=TINY, corpus=(), most_clips=1, batch_clips=1, rounds=2),
}


def _both(side: int) -> tuple[tuple[str, tuple[int, int]], ...]:
    return (("internvideo2", (side, side)), ("siglip", (side, side)))


THIRDS = (("internvideo2", (8, 8)), ("siglip", (9, 9)))
CHOICES = (
    Choice(name="float16, native grids", dtype="float16"),
    Choice(name="float16, 9x9 and 8x8", dtype="float16", grids=THIRDS, shrink=0.5),
    Choice(name="float16, 8x8", dtype="float16", grids=_both(8), shrink=0.5),
    Choice(name="float16, 4x4", dtype="float16", grids=_both(4), shrink=0.25),
    Choice(name="int8, native grids", dtype="int8"),
    Choice(name="int8, 8x8", dtype="int8", grids=_both(8), shrink=0.5),
)
"""What a recipe can say. `int8, 8x8` is the recipe apollo-compact."""
PER_TOKEN = "int8, a scale a token"
"""Not to be had: why it is not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="scope", default="full")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="scope", help="a test")
    parser.add_argument("--folder", type=Path, help="where generated clips stay")
    corpus = os.environ.get("CORPUS_DIR")
    parser.add_argument("--corpus", type=Path, default=corpus, help="folder of real videos")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    scope, watch = SCOPES[options.scope], LoadWatch()
    sizes = hour_bytes()
    show_sizes(sizes)
    errors: list[dict[str, Any]] = []
    with clip_folder(options.folder) as folder:
        files = _files(scope, folder, corpus=options.corpus)
        for encoder in ENCODERS:
            settings = usable_settings(encoder) if encoder in list_encoders() else None
            if settings is None:
                print(f"\n{encoder}: is not installed, so nothing is measured on it")
                continue
            features = _encode(encoder, files, most=scope.most_clips)
            errors += measure_errors(encoder, features)
            if STRESS.startswith(encoder):
                errors += measure_errors(STRESS, [_stressed(one) for one in features])
    show_errors(errors)
    reading = measure_reading(num_clips=scope.batch_clips, rounds=scope.rounds)
    show_reading(reading)
    report = {
        "name": "storage",
        "num_cores": watch.num_cores,
        "wall_ratios_reliable": watch.look(),
        "load_average": watch.load,
        "sizes": sizes,
        "errors": errors,
        "reading": reading,
    }
    write_report(report, options.json)


def apollo_as(choice: Choice) -> tuple[Recipe, dict[str, EncoderSpec]]:
    """The recipe with this storage, and stream -> spec."""
    apollo, grids = Recipe.load("apollo"), dict(choice.grids)
    streams = {
        name: replace(stream, grid=grids.get(name, ()), dtype=choice.dtype)  # type: ignore[arg-type]
        for name, stream in apollo.streams.items()
    }
    recipe = replace(apollo, streams=streams)
    return recipe, {name: encoder_spec(stream) for name, stream in streams.items()}


def hour_bytes() -> list[dict[str, Any]]:
    """Gigabytes of an hour of video for each choice, and of how many bytes of float16 one is."""
    rows = []
    for choice in CHOICES:
        recipe, specs = apollo_as(choice)
        clip = estimate_clip_bytes(recipe, {name: spec.stamp() for name, spec in specs.items()})
        frames = recipe.sampling.frames_per_clip
        rows.append(
            asdict(choice)
            | {"clip_bytes": clip}
            | {f"gigabytes_at_{fps}_fps": 3600 * fps / frames * clip / 1e9 for fps in (1, 2)}
        )
    native = rows[0]["clip_bytes"]
    return [row | {"part": row["clip_bytes"] / native} for row in rows]


def measure_errors(encoder: str, features: Sequence[Features]) -> list[dict[str, Any]]:
    """A row for each choice that makes a difference for one encoder, over all clips."""
    rows, seen = [], set()
    for choice in CHOICES:
        grid = tuple(max(1, round(size * choice.shrink)) for size in features[0].shape[1:3])
        if (choice.dtype, grid) in seen:
            continue
        seen.add((choice.dtype, grid))
        rows.append(_row(encoder, choice.dtype, grid, features, per_token=False))
        if choice.dtype == "int8":
            rows.append(_row(encoder, PER_TOKEN, grid, features, per_token=True))
    return rows


def _row(
    encoder: str, how: str, grid: tuple[int, int], features: Sequence[Features], *, per_token: bool
) -> dict[str, Any]:
    pooled = [pool_by_area(one, grid=grid) for one in features]
    if per_token:
        stored = [_per_token(one) for one in pooled]
    else:
        stored = [store_features(one, grid=(), dtype=how).decode() for one in pooled]
    own = features[0].shape[1:3]
    spread = [_spread(one, own) for one in stored] if grid != own else stored
    dim = features[0].shape[-1]
    error, lost = difference(pooled, stored), difference(features, spread)
    # Of channels that are much like the others: large ones hide what a scale a token does.
    powers = np.sqrt(np.mean([np.square(one.reshape(-1, dim)).mean(axis=0) for one in pooled], 0))
    ordinary = np.asarray(error["channels"])[powers <= 5 * np.median(powers)]
    return {
        "encoder": encoder,
        "how": how,
        "grid": list(grid),
        "num_clips": len(features),
        "one_minus_cosine": error["one_minus_cosine"],
        "channel_error_median": float(np.median(error["channels"])),
        "channel_error_max": float(np.max(error["channels"])),
        "ordinary_error_median": float(np.median(ordinary)),
        "one_minus_cosine_to_native": lost["one_minus_cosine"],
    }


def difference(expected: Sequence[Features], found: Sequence[Features]) -> dict[str, Any]:
    """1 - cosine of a token, the mean; and of each channel the RMS of the error over its own."""
    dim = expected[0].shape[-1]
    a_ND = np.concatenate([one.reshape(-1, dim) for one in expected]).astype(np.float64)
    b_ND = np.concatenate([one.reshape(-1, dim) for one in found]).astype(np.float64)
    norms = np.linalg.norm(a_ND, axis=1) * np.linalg.norm(b_ND, axis=1)
    cosines = (a_ND * b_ND).sum(axis=1)[norms > 0] / norms[norms > 0]
    squares = np.square(a_ND).sum(axis=0)
    errors = np.sqrt(np.square(a_ND - b_ND).sum(axis=0)[squares > 0] / squares[squares > 0])
    channels = np.zeros(dim)
    channels[squares > 0] = errors
    return {"one_minus_cosine": float(1 - cosines.mean()), "channels": channels}


def _per_token(features_THWD: Features) -> Features:
    scale = np.abs(features_THWD).max(axis=-1, keepdims=True) / np.float32(INT8_MAX)
    steps = np.rint(features_THWD / np.where(scale > 0, scale, 1))
    return (steps.astype(np.int8) * scale).astype(np.float32)


def _spread(pooled_ThwD: Features, own: tuple[int, ...]) -> Features:
    """(T, h, w, D) -> (T, H, W, D): each cell is the mean of what covers it, by area."""
    rows_hH, columns_wW = (
        area_weights(size, small) for size, small in zip(own, pooled_ThwD.shape[1:3], strict=True)
    )
    rows_hH, columns_wW = rows_hH / rows_hH.sum(axis=0), columns_wW / columns_wW.sum(axis=0)
    spread: Features = np.einsum(
        "hH,wW,thwd->tHWd", rows_hH, columns_wW, pooled_ThwD, optimize=True
    ).astype(np.float32)
    return spread


def _stressed(features_THWD: Features) -> Features:
    larger = features_THWD.copy()
    channels = np.random.default_rng(0).choice(larger.shape[-1], STRESSED, replace=False)
    larger[..., channels] *= STRESS_FACTOR
    return larger


def _files(scope: Scope, folder: Path, *, corpus: Path | None) -> list[Path]:
    real = [corpus / name for name in scope.corpus] if corpus else []
    generated = make_recording(scope.recording, folder)
    return [generated, *(path for path in real if path.exists())]


def _encode(encoder: str, files: Sequence[Path], *, most: int) -> list[Features]:
    """Of the first clips of each file."""
    settings = usable_settings(encoder)
    assert settings is not None
    loaded = load_encoder(settings)
    spec = loaded.spec
    picture = PictureSpec(width=spec.width, height=spec.height, resize=spec.resize)
    return [
        loaded.encode(clip.frames["video"][None])[0]
        for path in files
        for clip in _clips(path, picture=picture, most=most)
    ]


def _clips(path: Path, *, picture: PictureSpec, most: int) -> Iterator[ClipFrames]:
    recipe = Recipe.load("tiny", overrides=["preview.enabled=false"])
    piece = replace(whole_file(path, seconds=2.0 * most), num_clips=most, is_last=False)
    with DecoderPool(recipe.limits) as pool:
        decoding = Decoding(
            piece,
            path=str(path),
            recipe=recipe,
            pictures={"video": picture},
            processes=pool.processes,
        )
        yield from (clip for clip in decoding.clips() if isinstance(clip, ClipFrames))


def show_sizes(rows: Sequence[dict[str, Any]]) -> None:
    print("InternVideo2-1B and SigLIP-SO400M-384, GB an hour of video")
    print(f"{'':26}{'1 fps':>8}{'2 fps':>8}{'part':>8}{'bytes a clip':>14}")
    for row in rows:
        print(
            f"{row['name']:26}{row['gigabytes_at_1_fps']:8.2f}{row['gigabytes_at_2_fps']:8.2f}"
            f"{row['part']:8.3f}{row['clip_bytes']:14,}"
        )


def show_errors(rows: Sequence[dict[str, Any]]) -> None:
    print(
        "\nErrors of what is stored, beside the same grid in float32; last, beside the native grid"
    )
    print(
        f"{'encoder':26}{'stored as':24}{'grid':>7}{'1-cos':>10}"
        f"{'channel: median':>17}{'ordinary':>10}{'max':>9}{'1-cos native':>14}"
    )
    for row in rows:
        grid = "x".join(map(str, row["grid"]))
        print(
            f"{row['encoder']:26}{row['how']:24}{grid:>7}{row['one_minus_cosine']:10.1e}"
            f"{row['channel_error_median']:17.3%}{row['ordinary_error_median']:10.3%}"
            f"{row['channel_error_max']:9.3%}{row['one_minus_cosine_to_native']:14.1e}"
        )


def show_reading(rows: Sequence[dict[str, Any]]) -> None:
    print("\nInto the slots of a batch, GB of float16 a CPU second; at least 1.0 of int8")
    for row in rows:
        print(f"{row['stored']:14}{row['grid']:8}{row['way']:38}{row['gigabytes']:6.2f}")


if __name__ == "__main__":
    main()
