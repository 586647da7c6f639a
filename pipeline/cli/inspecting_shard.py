"""`pipeline inspect SHARD.tar`: the members of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from pipeline.cli.show import count_text, print_facts, print_json, print_table, size_text
from schemas.errors import CacheDamaged, UsageError

if TYPE_CHECKING:
    from pipeline.places import Place


def inspect_shard(path: Place, *, most_rows: int | None, as_json: bool) -> None:
    """Print the members of a shard; of `most_rows` samples, or of all. UsageError, CacheDamaged."""
    from pipeline.places import open_file, size_of

    samples: dict[str, list[dict[str, Any]]] = {}
    try:
        num_bytes = size_of(path)
        with open_file(path) as file:
            for name, member in _read_members(file, where=str(path)):
                samples.setdefault(name, []).append(member)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise CacheDamaged(f"{path}: cannot be read: {error.strerror or error}") from error
    if as_json:
        listed = [{"key": key, "members": members} for key, members in samples.items()]
        print_json({"shard": str(path), "bytes": num_bytes, "samples": listed})
        return
    print_facts(
        [
            ("shard", str(path)),
            ("samples", f"{len(samples):,}"),
            ("bytes", size_text(num_bytes)),
        ]
    )
    click.echo()
    keys = list(samples)[:most_rows]
    rows = []
    for key in keys:
        for number, member in enumerate(samples[key]):
            rows.append(("" if number else key, *member_cells(member)))
    print_table(("key", "member", "shape", "dtype", "bytes"), rows)
    say_rest(len(samples) - len(keys), "sample")


def _read_members(shard: IO[bytes], *, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import tarfile

    try:
        with tarfile.open(fileobj=shard, mode="r:") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                if file is None:
                    continue
                key, _, name = entry.name.partition(".")
                head = file.read(256) if name.endswith(".npy") else b""
                yield key, describe_member(name, head, entry.size)
    except tarfile.TarError as error:
        raise CacheDamaged(f"{where}: not a shard: {error}") from error


def describe_member(name: str, head: bytes, num_bytes: int) -> dict[str, Any]:
    """Name, dtype, shape and bytes of a member by its first 256 bytes. CacheDamaged."""
    import io

    import numpy as np

    shape: list[int] | None = None
    dtype: str | None = None
    if name.endswith(".npy"):
        stream = io.BytesIO(head)
        try:
            np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise CacheDamaged(f"member {name}: {error}") from error
        shape, dtype = list(header[0]), str(header[2])
    return {"name": name, "dtype": dtype, "shape": shape, "bytes": num_bytes}


def member_cells(member: dict[str, Any]) -> tuple[Any, ...]:
    """What a table shows of a member."""
    shape = "" if member["shape"] is None else shape_text(tuple(member["shape"]))
    return member["name"], shape, member["dtype"] or "", member["bytes"]


def shape_text(shape: tuple[int, ...]) -> str:
    """Such as 4 x 7 x 7 x 1280."""
    return " x ".join(str(size) for size in shape)


def say_rest(count: int, noun: str) -> None:
    """How many rows are not shown."""
    if count > 0:
        click.echo(f"and {count_text(count, noun)} more (--all)")
