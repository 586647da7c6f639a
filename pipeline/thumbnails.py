"""Thumbnails: what a video's frames look like, in grey and very small, from the previews of clips.

Two pictures are compared by their lowest spatial frequencies, each weighted by the root of its
frequency: much of any two pictures is alike in the coarse, bright sky over dark ground. Another
codec or size and a logo hardly change them. Bars are cut off first.

Shapes: N clips, T frames.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.pooling import read_kept
from pipeline.storage import publish_bytes
from schemas.sample import encode_npy

SIDE = 32
"""Pixels of a thumbnail, which is square whatever the shape of the video."""
FREQUENCIES = 16
"""Across and down, the mean included."""
DIM = FREQUENCIES**2
BAR_LUMA, BAR_SHARE = 32, 0.1
"""A row is of a bar if in no frame more than this share of it is as bright as that, of 255."""
HALF_BAR = 0.9
"""Brightness beside that of the next row with which the row at a bar is half of it."""
LEAST_SIDE = 8
"""Pixels that have to remain within bars."""
LEAST_CONTRAST = 6.0
"""Standard deviation of a picture, of 255; with less it shows nothing."""
MEMBER = "preview.jpg"
_MOST_PIXELS = 2**25
"""Of a preview; a larger one is none of ours."""

Pictures = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """The thumbnails of one shard."""

    rows: npt.NDArray[np.int64]
    """(N,): which rows of the index."""
    pictures: Pictures
    """(N, T, SIDE, SIDE): luma; black where a clip's preview cannot be read."""


def read_thumbnails(
    cache: FeatureCache, *, on_samples: Callable[[int], None] = lambda _: None
) -> Iterator[Thumbnails]:
    """Shard by shard; made once and kept beside the cache, as frame vectors are.

    The recipe must have previews. CacheDamaged. StorageError: the cache's place cannot be written.
    """
    num_frames = cache.recipe.sampling.frames_per_clip
    for shard, rows in cache.extents.rows_by_shard().items():
        path = cache.layout.vectors_of("preview", shard)
        shape = len(rows), num_frames, SIDE, SIDE
        pictures: Pictures | None = read_kept(path, shape=shape, dtype=np.uint8)
        if pictures is None:
            pictures = np.zeros(shape, dtype=np.uint8)
            for number, data in enumerate(_previews(cache, rows, shard=shard)):
                pictures[number] = shrink(data, num_frames=num_frames)
            publish_bytes(b"".join(encode_npy(pictures)), path, scratch=cache.layout.scratch)
        yield Thumbnails(rows=rows, pictures=pictures)
        on_samples(len(rows))


def shrink(preview: bytes | memoryview, *, num_frames: int) -> Pictures:
    """(T, SIDE, SIDE) of a strip of frames side by side; black if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(preview), formats=["JPEG"]) as image:
            if image.width * image.height > _MOST_PIXELS or image.width % num_frames:
                raise ValueError("not a strip of that many frames")
            small = image.convert("L").resize((num_frames * SIDE, SIDE), Image.Resampling.BOX)
            return np.asarray(small).reshape(SIDE, num_frames, SIDE).transpose(1, 0, 2)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return np.zeros((num_frames, SIDE, SIDE), dtype=np.uint8)


def picture_vectors(pictures: Pictures) -> Vectors:
    """(T, DIM) of length 1 of one video's (T, SIDE, SIDE); of length 0 where nothing is shown.

    A cosine of two is how alike they look, in [-1, 1]; pictures of different recordings have
    about 0. Cosine transform (DCT-II) of what lies within the bars.
    """
    inside = _without_bars(pictures).astype(np.float32)
    down, across = (_cosines(size) for size in inside.shape[1:])
    weights = np.sqrt(np.hypot(*np.mgrid[:FREQUENCIES, :FREQUENCIES])).astype(np.float32)
    vectors = ((down @ inside @ across.T) * weights).reshape(len(pictures), DIM)
    shown = inside.std(axis=(1, 2)) >= LEAST_CONTRAST
    lengths = np.linalg.norm(vectors, axis=1)
    found: Vectors = vectors * (shown / np.where(shown, lengths, 1))[:, None]
    return found.astype(np.float32)


def mirror(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The (..., DIM) vectors of the pictures with left and right exchanged."""
    signs = np.tile((-1.0) ** np.arange(FREQUENCIES), FREQUENCIES)
    return (vectors * signs).astype(vectors.dtype)


def _without_bars(pictures: Pictures) -> Pictures:
    brightest = pictures.max(axis=0, initial=0)
    spans = []
    for axis in (1, 0):
        lit = (brightest > BAR_LUMA).mean(axis=axis) > BAR_SHARE
        luma = brightest.mean(axis=axis)
        (kept,) = np.nonzero(lit)
        if len(kept) == 0 or kept[-1] - 1 - kept[0] < LEAST_SIDE:
            return pictures
        first, last = int(kept[0]), int(kept[-1])
        # A bar may end within a row; its edge would be the strongest line of all.
        first += first > 0 and luma[first] < HALF_BAR * luma[first + 1]
        last -= last < SIDE - 1 and luma[last] < HALF_BAR * luma[last - 1]
        spans.append(slice(first, last + 1))
    return pictures[:, spans[0], spans[1]]


def _cosines(size: int) -> Vectors:
    """(FREQUENCIES, size), orthonormal; rows of zeros where there are more than pixels."""
    frequency, place = np.mgrid[: min(size, FREQUENCIES), :size]
    known = np.cos(np.pi * (2 * place + 1) * frequency / (2 * size)) * np.sqrt(2 / size)
    cosines = np.zeros((FREQUENCIES, size), dtype=np.float32)
    cosines[: len(known)] = known
    return cosines


def _previews(
    cache: FeatureCache, rows: npt.NDArray[np.int64], *, shard: str
) -> Iterator[memoryview]:
    offsets, sizes = (found[:, 0].tolist() for found in cache.extents.find(rows, names=[MEMBER]))
    for offset, size in zip(offsets, sizes, strict=True):
        data = memoryview(bytearray(size))
        if size and cache.tars.read_into(shard, [data], offset=offset) != size:
            raise cache.damaged(f"{cache.layout.tar(shard)} ends inside a sample")
        yield data
