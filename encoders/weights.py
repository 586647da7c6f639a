"""Find an encoder's weights and take their digest, without reading them into memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoders.fetching import fetch_weights, is_url
from schemas.errors import WeightsError

HUB, RANDOM = "hub", "random"
"""Instead of a path: download them; make them up from a seed."""
RECORD_ENDING = ".sha256.json"
SETTLED_SECONDS = 2.0
"""A file that was written a moment ago may be written again within one tick of its clock."""
MAX_SHOWN = 8
_REMEMBERED: dict[Path, dict[str, object]] = {}
"""Records that could not be written."""
_SHA256 = re.compile("[0-9a-f]{64}")
_PART_LIST = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFiles:
    """Where weights are published."""

    repo: str
    files: tuple[str, ...]
    """Any one of them will do; the first that is there is taken."""
    size_bytes: int
    """About, for people."""
    licence: str
    """Of the weights, for people."""
    gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Files of weights that were found."""

    paths: tuple[Path, ...]
    """One, or the parts of one model in the order of their names; empty: random."""

    @property
    def is_random(self) -> bool:
        return not self.paths

    def sha256(self) -> str:
        """Of the file; of the list of names and digests where there are several. WeightsError."""
        if self.is_random:
            return RANDOM
        digests = [file_sha256(path) for path in self.paths]
        if len(digests) == 1:
            return digests[0]
        lines = (f"{d}  {p.name}\n" for d, p in zip(digests, self.paths, strict=True))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def how_to_get(hub: HubFiles | None) -> str:
    """A hint for someone who has no weights."""
    ways = ["give --weights FILE or FOLDER"]
    if hub is not None and hub.gated:
        ways[0] += f" of {hub.repo} (gated; {hub.licence})"
    elif hub is not None:
        size = f"{hub.size_bytes / 1e9:.1f} GB"
        ways.append(f"--weights hub to download {size} from {hub.repo} ({hub.licence})")
    return ", ".join(ways) + ", or --weights random for a trial; see docs/encoders.md"


def weights_sha256(where: str, *, encoder: str, names: Sequence[str], hub: HubFiles | None) -> str:
    """The digest of what `find_weights` finds; empty where `where` is. WeightsError."""
    if not where:
        return ""
    return find_weights(where, encoder=encoder, names=names, hub=hub).sha256()


def find_weights(
    where: str, *, encoder: str, names: Sequence[str], hub: HubFiles | None
) -> Weights:
    """The files that `where` means: a file, a folder, a URL of a file, `hub` or `random`.

    In a folder the first of `names` is taken, or the parts that a list of parts names.
    WeightsError: nothing is named or found; the hub cannot be reached.
    """
    if where == RANDOM:
        return Weights(paths=())
    if where == HUB:
        return _download(encoder=encoder, hub=hub)
    if is_url(where):
        return Weights(paths=(fetch_weights(where, encoder=encoder),))
    try:
        return _find(Path(where).expanduser(), encoder=encoder, names=names, hub=hub)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of a user that there is not
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise WeightsError(f"weights of {encoder}: {where}: cannot be read: {why}") from error


def _find(path: Path, *, encoder: str, names: Sequence[str], hub: HubFiles | None) -> Weights:
    if path.is_file():
        return Weights(paths=(path,))
    if not path.is_dir():
        raise WeightsError(
            f"weights of {encoder}: no file or folder {str(path)!r}", hint=how_to_get(hub)
        )
    for name in names:
        if (path / name).is_file():
            return Weights(paths=(path / name,))
    if (path / _PART_LIST).is_file():
        return Weights(paths=_parts(path))
    entries = sorted(entry.name for entry in path.iterdir())
    more = f" and {len(entries) - MAX_SHOWN} more" if len(entries) > MAX_SHOWN else ""
    found = ", ".join(entries[:MAX_SHOWN]) + more or "nothing"
    raise WeightsError(
        f"weights of {encoder}: none of {', '.join(names)} in {path}; there is {found}",
        hint="name the file itself",
    )


def file_sha256(path: Path) -> str:
    """Of a file's content; remembered beside it for as long as its size and times are the same.

    Where nothing can be written beside it, each process remembers it for itself. WeightsError.
    """
    record = path.with_name(path.name + RECORD_ENDING)
    try:
        state = _state(path)
        known = _read_record(record) or _REMEMBERED.get(path.absolute())
        if known is not None and known.get("state") == state:
            return str(known["sha256"])
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if _state(path) != state:
            raise WeightsError(f"{path}: changed while it was read", hint="try again")
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    if time.time_ns() - state[1] > SETTLED_SECONDS * 1e9:
        facts: dict[str, object] = {"state": state, "sha256": digest}
        if not _write_record(record, facts):
            _REMEMBERED[path.absolute()] = facts
    return digest


def _state(path: Path) -> list[int]:
    # Whoever copies a file may set its mtime; nobody sets its ctime.
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def _read_record(path: Path) -> dict[str, object] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    digest = record.get("sha256") if isinstance(record, dict) else None
    return record if isinstance(digest, str) and _SHA256.fullmatch(digest) else None


def _write_record(path: Path, record: dict[str, object]) -> bool:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(json.dumps(record) + "\n")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True


def _parts(folder: Path) -> tuple[Path, ...]:
    index = folder / _PART_LIST
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index}: not a list of parts of weights") from error
    if not names:  # no path at all would mean random weights
        raise WeightsError(f"{index}: names no part")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(f"{index}: names {name!r}, which is not in the folder")
    return tuple(folder / name for name in names)


def _download(*, encoder: str, hub: HubFiles | None) -> Weights:
    if hub is None:
        raise WeightsError(f"{encoder}: there is nothing of it to download")
    try:
        return Weights(paths=(_fetch(hub),))
    except Exception as error:  # of many kinds, from several libraries
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        cause = error
    gated = f" It is gated: ask for access on the page of {hub.repo} first." if hub.gated else ""
    raise WeightsError(
        f"{encoder}: {hub.repo} could not be downloaded: {why}",
        hint=f"download it elsewhere and give --weights FILE.{gated}",
    ) from cause


def _fetch(hub: HubFiles) -> Path:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    # What matters is in the error; every try would tell it twice.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    for name in hub.files:  # what was downloaded before needs no network, and stays what it was
        with contextlib.suppress(LocalEntryNotFoundError):
            return Path(hf_hub_download(hub.repo, name, local_files_only=True))
    for name in hub.files[:-1]:
        try:
            return Path(hf_hub_download(hub.repo, name))
        except LocalEntryNotFoundError:
            raise  # no network: each further try would wait as long
        except EntryNotFoundError:
            continue
    return Path(hf_hub_download(hub.repo, hub.files[-1]))
