"""A cache of what is ordinary input and easily goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tests.clips import ClipShelf

ODD_NAME = 'it\'s a "d.o.t",\nünd more.mp4'
ODD_ID = 'ü/one "two"\n;'
RECIPE = Recipe.from_mapping(
    Recipe.load(
        "tiny",
        overrides=[
            "streams.image.dtype=int8",
            "streams.image.grid=[2, 2]",
            "shards.max_seconds=6",
        ],
    ).to_mapping()
    | {"audio": {"encoder": "log-mel"}}
)
SOURCES: list[dict[str, Any]] = [
    {"uri": ODD_NAME, "id": ODD_ID, "label": "first"},
    {"uri": "more/copy.mp4"},
    {"uri": "with_audio.mp4"},
    {"uri": "50.mp4", "start": 1, "end": 4},
    {"uri": "50.mp4", "start": 3.5},
    {"uri": "starts_at_10s.mp4", "id": "late"},
    {"uri": "truncated.mp4"},
    {"uri": "goes_back.ts"},
    {"uri": "broken.mp4", "id": "broken"},
]


def make_odd_cache(clips: ClipShelf, folder: Path) -> Path:
    """Videos and their list in `folder`, and the path of their cache."""
    import beam_runner
    from pipeline.sources import read_sources

    (folder / "more").mkdir()
    shutil.copy(clips["25.mp4"].path, folder / ODD_NAME)
    shutil.copy(clips["25.mp4"].path, folder / "more" / "copy.mp4")
    for name in ("with_audio.mp4", "50.mp4", "starts_at_10s.mp4", "truncated.mp4", "goes_back.ts"):
        shutil.copy(clips[name].path, folder / name)
    (folder / "broken.mp4").write_text("no video")
    lines = [json.dumps(source) for source in SOURCES]
    (folder / "list.jsonl").write_text("\n".join(lines))
    beam_runner.run(
        read_sources([str(folder / "list.jsonl")]).sources, RECIPE, cache_path=folder / "cache"
    )
    return folder / "cache"
