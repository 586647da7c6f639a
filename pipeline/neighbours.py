"""Files beside the shards that let wids and Megatron-Energon open a cache unmodified.

wids.json: wids 0.1.11. .nv-meta and *.tar.idx: Megatron-Energon 7.4.1. webdataset and Hugging
Face datasets need nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from pipeline.layout import CacheLayout
from pipeline.storage import publish_bytes
from schemas.sidecar import Sidecar


def write_neighbour_files(sidecars: Sequence[Sidecar], layout: CacheLayout) -> None:
    """Write wids.json, .nv-meta/ and a .tar.idx for each shard that has a tar."""
    shards = [sidecar for sidecar in sidecars if sidecar.samples]
    files = {layout.wids: _json(_wids(shards))}
    files[layout.energon / ".info.json"] = _json(
        {
            "energon_version": "7.4.1",
            "shard_counts": {f"shards/{s.name}.tar": len(s.samples) for s in shards},
        }
    )
    splits: dict[str, list[str]] = {}
    for sidecar in shards:
        splits.setdefault(sidecar.split, []).append(f"shards/{sidecar.name}.tar")
    # JSON is YAML.
    files[layout.energon / "split.yaml"] = _json({"exclude": [], "split_parts": splits})
    files[layout.energon / "dataset.yaml"] = _json(
        {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    )
    for sidecar in shards:
        files[layout.tar_index(sidecar.name)] = _tar_index(sidecar)
    for path, data in files.items():
        publish_bytes(data, path, scratch=layout.scratch)


def _wids(shards: Sequence[Sidecar]) -> dict[str, object]:
    return {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "name": "reelcache",
        "shardlist": [
            {
                "url": f"shards/{sidecar.name}.tar",
                "nsamples": len(sidecar.samples),
                "filesize": sidecar.tar_bytes,
            }
            for sidecar in shards
        ],
    }


def _tar_index(sidecar: Sidecar) -> bytes:
    last = sidecar.samples[-1]
    offsets = [entry.offset for entry in sidecar.samples] + [last.offset + last.num_bytes]
    return np.array(offsets, dtype="<u8").tobytes()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
