"""Files beside the shards that let wids and Megatron-Energon open a cache unmodified.

wids.json: wids 0.1.11. .nv-meta and *.tar.idx: Megatron-Energon 7.4.1, as `energon prepare` writes
them. webdataset and Hugging Face datasets need nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from pipeline.layout import CacheLayout
from pipeline.places import Place, list_sizes, read_bytes
from pipeline.storage import delete, publish_bytes
from schemas.sidecar import SampleEntry, Sidecar

ENERGON_SPLITS = ("train", "val", "test")
"""Energon and its tools ask for these by default; a split with no shard is an empty list."""


def write_neighbour_files(sidecars: Sequence[Sidecar], layout: CacheLayout) -> None:
    """Write wids.json, .nv-meta/ and a .tar.idx for each shard that has a tar.

    index.sqlite and index.uuid are not written: random access and joins by key need them, reading
    does not, and `energon prepare --tar-index-only CACHE` adds them. Here they are deleted once
    the shards are no longer those that they describe.
    """
    shards = [sidecar for sidecar in sidecars if sidecar.samples]
    shard_counts = {f"shards/{shard.name}.tar": len(shard.samples) for shard in shards}
    splits: dict[str, list[str]] = {split: [] for split in ENERGON_SPLITS}
    for shard in shards:
        splits.setdefault(shard.split, []).append(f"shards/{shard.name}.tar")
    # The indexes of the tars were written with them, but for a cache of an earlier version.
    there = list_sizes(layout.shards)
    files: dict[Place, bytes] = {}
    for shard in shards:
        path = layout.tar_index(shard.name)
        if there.get(path.name) != 8 * (len(shard.samples) + 1):
            files[path] = tar_index(shard.samples)
    files[layout.wids] = _json(_wids(shards))
    # JSON is YAML.
    files[layout.energon / "split.yaml"] = _json({"exclude": [], "split_parts": splits})
    if "dataset.yaml" not in list_sizes(layout.energon):  # the file that Energon's users edit
        crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        files[layout.energon / "dataset.yaml"] = _json(crude)
    files[layout.energon / ".info.json"] = _json(
        {"energon_version": "7.4.1", "shard_counts": shard_counts}
    )
    _delete_stale_index(layout, shard_counts)
    for path, data in files.items():
        publish_bytes(data, path, scratch=layout.scratch)


def exact_files(sidecars: Sequence[Sidecar], layout: CacheLayout) -> dict[Place, bytes]:
    """wids.json and the .tar.idx: those that neither a user nor `energon prepare` writes anew."""
    shards = [sidecar for sidecar in sidecars if sidecar.samples]
    files = {layout.tar_index(shard.name): tar_index(shard.samples) for shard in shards}
    return files | {layout.wids: _json(_wids(shards))}


def energon_files(layout: CacheLayout) -> list[Place]:
    """What Energon reads besides."""
    return [layout.energon / name for name in (".info.json", "split.yaml", "dataset.yaml")]


def _delete_stale_index(layout: CacheLayout, shard_counts: dict[str, int]) -> None:
    # index.sqlite counts shards by their place in .info.json, and a join that Energon has cached
    # is found by index.uuid: with other shards both would give wrong samples without a word.
    try:
        described = json.loads(read_bytes(layout.energon / ".info.json"))["shard_counts"]
    except (OSError, ValueError, KeyError, TypeError):
        described = None
    if described != shard_counts:
        for name in ("index.sqlite", "index.uuid"):
            delete(layout.energon / name)


def _wids(shards: Sequence[Sidecar]) -> dict[str, object]:
    return {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": "reelcache",
        "shardlist": [
            {
                # Relative to wids.json.
                "url": f"shards/{shard.name}.tar",
                "nsamples": len(shard.samples),
                "filesize": shard.tar_bytes,
            }
            for shard in shards
        ],
    }


def tar_index(samples: Sequence[SampleEntry]) -> bytes:
    """The bytes of a .tar.idx: where each sample begins, and where the last one ends."""
    offsets = [entry.offset for entry in samples] + [samples[-1].offset + samples[-1].num_bytes]
    return np.array(offsets, dtype="<u8").tobytes()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
