"""Write files so that the final name appears only whole, wherever the cache lies."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.patience import patiently
from pipeline.places import Place, make_scratch, read_bytes
from pipeline.stores import appears_whole
from schemas.errors import CacheDamaged, StorageError

if TYPE_CHECKING:
    from upath import UPath

ROWS_AT_ONCE = 16_384
"""Of a table, as objects."""


@contextlib.contextmanager
def storage_errors(path: Place | str) -> Iterator[None]:
    """Turn errors of the operating system about the cache's place into one sentence."""
    try:
        yield
    except OSError as error:
        reason, hint = error.strerror or str(error), "may the credentials write there?"
        if isinstance(path, Path | str):
            reason = os.strerror(error.errno) if error.errno else reason
            hint = "free some space or choose another place;"
        raise StorageError(
            f"{path}: cannot be written: {reason}",
            hint=f"{hint} what is committed is kept, run again",
        ) from error


@contextlib.contextmanager
def temporary_file(scratch: Path, *, name: str) -> Iterator[Path]:
    """A path under `scratch` that is gone afterwards, published or not."""
    with storage_errors(scratch.parent):
        make_scratch(scratch)
    path = scratch / f"{name}.{uuid.uuid4().hex}"
    try:
        yield path
    finally:
        # What kept it from being written, such as a place that is read-only, is the error to tell.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def publish(temporary: Path, final: Place) -> None:
    """Make a whole file appear under its final name, at once. StorageError.

    Locally by a rename; in an object store by one upload to the final name, which is there only
    when it has ended; in other remote file systems by an upload beside it, and a rename.
    """
    with storage_errors(final):
        if isinstance(final, Path):
            _rename(temporary, final)
        elif appears_whole(final.fs):
            patiently(lambda: final.fs.put_file(str(temporary), final.path))
        else:
            _upload_and_move(temporary, final)


def _upload_and_move(temporary: Path, final: UPath) -> None:
    # One name for all tries, and for all runs: what a killed one has left is written over.
    beside = final.with_name(f".{final.name}.part")

    def upload() -> None:
        with contextlib.suppress(FileExistsError):
            final.fs.makedirs(final.parent.path, exist_ok=True)
        final.fs.put_file(str(temporary), beside.path)
        final.fs.mv(beside.path, final.path)

    patiently(upload)


def publish_bytes(data: bytes, final: Place, *, scratch: Path) -> None:
    """Write `data` under `final`, at once, unless it is there already. StorageError."""
    with contextlib.suppress(OSError):
        if read_bytes(final) == data:
            return
    if not isinstance(final, Path) and appears_whole(final.fs):
        with storage_errors(final):
            patiently(lambda: final.fs.pipe_file(final.path, data))
        return
    with temporary_file(scratch, name=final.name) as temporary:
        with storage_errors(final):
            temporary.write_bytes(data)
        publish(temporary, final)


def delete(place: Place) -> None:
    """Delete a file, if there is one. StorageError."""
    with storage_errors(place):
        place.unlink(missing_ok=True)


def _rename(temporary: Path, final: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def publish_rows(
    rows: Iterable[dict[str, object]], schema: pa.Schema, final: Place, *, scratch: Path
) -> None:
    """Write rows as one Parquet file under `final`, at once; the schema may carry metadata.

    A file that already holds them is left alone. StorageError.
    """
    remaining = iter(rows)
    batches = []
    while part := list(itertools.islice(remaining, ROWS_AT_ONCE)):
        batches.append(pa.RecordBatch.from_pylist(part, schema=schema))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_batches(batches, schema=schema), buffer, compression="zstd")
    publish_bytes(buffer.getvalue(), final, scratch=scratch)


def read_table(path: Place) -> pa.Table:
    """A table of the cache. CacheDamaged: the file cannot be read as one."""
    try:
        table = parse_table(read_bytes(path))
        table.validate(full=True)
        return table
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CacheDamaged(f"{path}: cannot be read: {error}") from error


def table_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table, of which few are in memory as objects at a time."""
    for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE):
        yield from batch.to_pylist()


def parse_table(data: bytes) -> pa.Table:
    """The table in the bytes of a Parquet file. pyarrow.ArrowException, OSError: not such a file.

    From bytes, since Arrow takes names such as "c::d" or "gs:c" for something else than files. On
    one thread: Arrow's pool, just started, may abort a process that ends at once.
    """
    with pq.ParquetFile(io.BytesIO(data), pre_buffer=False) as file:
        return file.read(use_threads=False)
