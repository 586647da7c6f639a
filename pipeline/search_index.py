"""SearchIndex: a vector for each clip of a cache, to find the nearest of.

    CACHE/search/siglip.json                what is in it; it names the file and its digest
    CACHE/search/siglip-3fa9c1d2.faiss      the vectors

It is no part of what cache.json vouches for: it may be deleted, and made anew, at any time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.cache import FeatureCache
from pipeline.clip_vectors import Vectors
from pipeline.layout import CacheLayout
from pipeline.places import Place, list_sizes, local_copy, read_bytes
from pipeline.storage import delete, publish, publish_bytes, storage_errors, temporary_file
from pipeline.vector_index import KINDS, Kind, Numbers, VectorIndex
from schemas.errors import CacheDamaged, FingerprintMismatch, UsageError
from schemas.json_text import parse_json

FORMAT = 1
"""Of the JSON; another one is made anew."""
Space = Literal["features", "text"]
METRIC = "inner product of vectors of length 1"
_FILE = re.compile(r"[a-z0-9]{1,16}(-text)?-[0-9a-f]{8}\.faiss")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchIndexInfo:
    """What a search index says of itself."""

    fingerprint: str
    """Of its cache."""
    stream: str
    space: Space
    """features: means of the stream's features. text: where the encoder's text tower puts
    sentences, too."""
    kind: Kind
    asked_kind: str
    """Empty: by size."""
    effort: int
    """See `VectorIndex`."""
    dim: int
    shards: tuple[tuple[str, int], ...]
    """(name, clips), in the order of the vectors."""
    centre: str
    """What was taken from the vectors: base64 of (D,) little-endian float32."""
    num_built: int
    """Vectors when it was last made anew: those of the centre, the cells and the recall."""
    recall_at_10: float
    recall_queries: int
    """Own vectors whose ten nearest others were compared with those of looking everywhere."""
    faiss_version: str
    file: str
    file_bytes: int
    file_sha256: str
    metric: str = METRIC
    format: int = FORMAT

    @property
    def num_vectors(self) -> int:
        return sum(num for _, num in self.shards)

    @property
    def name(self) -> str:
        return index_name(self.stream, self.space)

    def centre_vector(self) -> Vectors:
        """(D,) float32."""
        return np.frombuffer(base64.b64decode(self.centre), dtype="<f4").astype(np.float32)

    def to_json(self) -> str:
        """Indented and sorted."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: bytes, *, where: str) -> SearchIndexInfo:
        """The inverse of `to_json`. CacheDamaged names `where`."""
        try:
            fields: dict[str, Any] = parse_json(text)
            fields["shards"] = tuple((str(name), int(num)) for name, num in fields["shards"])
            info = cls(**fields)
            plain: dict[type, tuple[str, ...]] = {
                int: ("effort", "dim", "num_built", "file_bytes", "format")
            }
            plain[str] = ("fingerprint", "stream", "asked_kind", "file_sha256", "faiss_version")
            for kind, names in plain.items():
                if not all(isinstance(getattr(info, name), kind) for name in names):
                    raise TypeError(f"one of {', '.join(names)} is not of the type {kind.__name__}")
            if info.format != FORMAT or info.kind not in KINDS:
                raise ValueError(f"format {info.format}, kind {info.kind!r}")
            if info.space not in ("features", "text") or not _FILE.fullmatch(info.file):
                raise ValueError(f"space {info.space!r}, file {info.file!r}")
            if min(num for _, num in info.shards or (("", 0),)) < 0 or info.effort < 0:
                raise ValueError("counts below 0")
            if info.centre_vector().shape != (info.dim,):
                raise ValueError(f"its centre has not {info.dim} numbers")
            return info
        except (ValueError, LookupError, TypeError, AttributeError, binascii.Error) as error:
            raise CacheDamaged(f"{where}: not a search index: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchIndex:
    """A search index in memory, and which rows of the cache's index its vectors are."""

    info: SearchIndexInfo
    vectors: VectorIndex
    rows: Numbers
    """(N,): number of a vector -> row of the cache's index; -1: the clip is no longer there."""


def centre_text(centre_D: Vectors) -> str:
    """The inverse of `SearchIndexInfo.centre_vector`."""
    return base64.b64encode(centre_D.astype("<f4").tobytes()).decode()


def index_name(stream: str, space: Space) -> str:
    """What the files are called, and what is kept of frames in that space."""
    return f"{stream}-text" if space == "text" else stream


def read_index_info(cache: FeatureCache, *, stream: str, space: Space) -> SearchIndexInfo | None:
    """What there is of a cache's search index; None: nothing.

    FingerprintMismatch: it is another cache's. CacheDamaged.
    """
    name = index_name(stream, space)
    place = cache.layout.search / f"{name}.json"
    again = remake(cache.layout, stream=stream, space=space)
    try:
        info = SearchIndexInfo.from_json(read_bytes(place), where=str(place))
    except FileNotFoundError:
        return None
    except CacheDamaged as error:
        error.hint = again
        raise
    except OSError as error:
        raise CacheDamaged(f"{place}: cannot be read: {error}", hint=again) from error
    if (info.fingerprint, info.name) != (cache.fingerprint, name):
        raise FingerprintMismatch(
            f"{place} is the search index of {info.name} of another cache, of the fingerprint"
            f" {info.fingerprint[:8]}; this one is {name} of {cache.fingerprint[:8]}",
            hint=again,
        )
    return info


def read_search_index(cache: FeatureCache, info: SearchIndexInfo) -> SearchIndex:
    """Into memory, where its file is what was written. CacheDamaged. UsageError: no faiss."""
    place, layout = cache.layout.search / info.file, cache.layout
    again = remake(layout, stream=info.stream, space=info.space)
    try:
        if not is_whole(layout, info):
            raise CacheDamaged(f"{place}: is not there whole", hint=again)
        with local_copy(place, scratch=layout.scratch) as path:
            if file_digest(path) != info.file_sha256:
                raise CacheDamaged(f"{place}: holds other bytes than were written", hint=again)
            vectors = VectorIndex.read(path, kind=info.kind, effort=info.effort)
    except OSError as error:
        raise CacheDamaged(f"{place}: cannot be read: {error}", hint=again) from error
    if (len(vectors), vectors.dim) != (info.num_vectors, info.dim):
        raise CacheDamaged(f"{place}: {len(vectors)} vectors of {vectors.dim}", hint=again)
    return SearchIndex(info=info, vectors=vectors, rows=rows_of_vectors(cache, info))


def is_whole(layout: CacheLayout, info: SearchIndexInfo) -> bool:
    """Whether its file is there, as long as it was written."""
    return list_sizes(layout.search).get(info.file) == info.file_bytes


def publish_search_index(
    vectors: VectorIndex, info: SearchIndexInfo, layout: CacheLayout
) -> SearchIndexInfo:
    """Write the file, then the JSON that names it, whole; then what was there before goes.

    The info gets the file's name, size and digest. StorageError.
    """
    with temporary_file(layout.scratch, name=f"{info.name}.faiss") as path:
        with storage_errors(layout.search / f"{info.name}.faiss"):
            vectors.write(path)
        digest = file_digest(path)
        info = SearchIndexInfo(
            **{name: getattr(info, name) for name in SearchIndexInfo.__dataclass_fields__}
            | {
                "file": f"{info.name}-{digest[:8]}.faiss",
                "file_bytes": path.stat().st_size,
                "file_sha256": digest,
            }
        )
        publish(path, layout.search / info.file)
    place = layout.search / f"{info.name}.json"
    publish_bytes(info.to_json().encode(), place, scratch=layout.scratch)
    for name in list_sizes(layout.search):
        old = name != info.file and name[: -len("-3fa9c1d2.faiss")] == info.name
        if old and _FILE.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                delete(layout.search / name)
    return info


def rows_of_vectors(cache: FeatureCache, info: SearchIndexInfo) -> Numbers:
    """(num_vectors,): which row of the cache's index each is of; -1 where its shard is gone."""
    rows_of = cache.extents.rows_by_shard()
    parts = [
        rows_of[name] if len(rows_of.get(name, ())) == num else np.full(num, -1, dtype=np.int64)
        for name, num in info.shards
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remake(layout: CacheLayout, *, stream: str, space: Space) -> str:
    """A hint: how to make an index from nothing."""
    how = " --space text" if space == "text" else ""
    root: Place = layout.root
    return f"make it anew: pipeline index {shlex.quote(str(root))} --stream {stream}{how} --rebuild"


def no_index(layout: CacheLayout, *, stream: str, space: Space) -> UsageError:
    """The error that there is none."""
    how = f" --space text --weights {stream}=FILE" if space == "text" else f" --stream {stream}"
    root = shlex.quote(str(layout.root))
    return UsageError(
        f"{layout.root} has no search index of {stream}"
        + (" in its text space" if space == "text" else ""),
        hint=f"make it, once: pipeline index {root}{how}",
    )
