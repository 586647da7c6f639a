"""One vector a clip: the mean of its real frames' vectors, centred, of length 1.

Features of one encoder have a large mean in common, beside which all clips look alike: a cosine
says something once it is taken away. In a text space it stays, since sentences lie elsewhere.

Shapes: N clips, G grids a clip, T frames a clip, D channels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST_CENTRED = 16
"""Clips; the mean of fewer is more of what they show than of what encoders add."""

Vectors = npt.NDArray[np.float32]


def mean_of_frames(
    vectors_NGD: npt.NDArray[np.floating], num_frames_N: npt.NDArray[np.integer], *, T: int
) -> Vectors:
    """(N, D) float32: the mean over the grids that show a real frame, as of `num_frames_N`."""
    shown_NG = shown_grids(num_frames_N, G=vectors_NGD.shape[1], T=T)
    weights_NG = shown_NG / shown_NG.sum(axis=1, keepdims=True)
    means: Vectors = np.einsum(
        "ng,ngd->nd", weights_NG.astype(np.float32), vectors_NGD.astype(np.float32)
    )
    return means


def shown_grids(num_frames_N: npt.NDArray[np.integer], *, G: int, T: int) -> npt.NDArray[np.bool_]:
    """(N, G): which grids of a clip show a real frame; the first one always."""
    real_N = np.clip(-(-num_frames_N.astype(np.int64) * G // T), 1, G)
    shown_NG: npt.NDArray[np.bool_] = np.arange(G) < real_N[:, None]
    return shown_NG


def to_directions(vectors_ND: Vectors, *, centre_D: Vectors) -> Vectors:
    """(N, D) float32 of length 1 as seen from the centre; of length 0 where they lie in it."""
    directions_ND = vectors_ND.astype(np.float32)
    turn_to_directions(directions_ND, centre_D=centre_D)
    return directions_ND


def turn_to_directions(vectors_ND: Vectors, *, centre_D: Vectors) -> None:
    """`to_directions` in the memory of the vectors."""
    vectors_ND -= centre_D
    lengths_N = np.sqrt(np.einsum("nd,nd->n", vectors_ND, vectors_ND))
    vectors_ND /= np.where(lengths_N > 0, lengths_N, 1)[:, None]
