"""Export as tables, a row a clip: Parquet, a file a shard, or one Lance data set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.exporting import Array, Selection, describe
from pipeline.places import Place, scratch_for
from pipeline.storage import publish, storage_errors, temporary_file
from schemas.errors import UsageError
from schemas.sample import encode_json

BATCH_BYTES = 32 << 20
"""Of arrays, in one batch of rows, which is a row group of a file."""
LANCE = "clips.lance"
_SHAPE = "shape"


def write_parquet(
    selection: Selection, root: Place, *, progress: Callable[[int], None]
) -> list[str]:
    """SHARD.parquet for each shard; names as of `Write`.

    An array is a list of fixed length, in C order; its shape is in the field's metadata.
    """
    schema = _schema(selection)
    arrays = {_column(selection, one) for one in selection.arrays}
    plain = [name for name in schema.names if name not in arrays | {"json", "preview"}]
    scratch, names = scratch_for(root), []
    for shard, numbers in selection.shards():
        name = f"{shard}.parquet"
        with temporary_file(scratch, name=name) as temporary:
            with (
                storage_errors(root),
                pq.ParquetWriter(
                    temporary,
                    schema,
                    compression=selection.options.compression,
                    use_dictionary=plain,
                    write_statistics=plain,
                ) as writer,
            ):
                for batch in _batches(selection, numbers, schema, progress=progress):
                    writer.write_batch(batch, row_group_size=batch.num_rows)
            publish(temporary, root / name)
        names.append(name)
    return names


def write_lance(selection: Selection, root: Place, *, progress: Callable[[int], None]) -> list[str]:
    """One data set, clips.lance, with the columns of `write_parquet`; names as of `Write`."""
    try:
        import lance
    except ImportError as error:
        raise UsageError(
            "Lance is written by the package pylance, which is not installed",
            hint="pip install 'reelcache[lance]'",
        ) from error
    if not isinstance(root, Path):
        raise UsageError(
            f"{root}: a Lance data set is written on a local disk only", hint="copy it there after"
        )
    schema = _schema(selection)
    errors: list[BaseException] = []

    def batches() -> Iterator[pa.RecordBatch]:
        # What is raised here comes out of the library as words of an error of its own.
        try:
            everything = np.arange(len(selection.rows))
            yield from _batches(selection, everything, schema, progress=progress)
        except BaseException as error:
            errors.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    temporary, final = scratch_for(root) / LANCE, root / LANCE
    with storage_errors(root):
        try:
            lance.write_dataset(reader, str(temporary), schema=schema, mode="create")
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        shutil.rmtree(final, ignore_errors=True)
        temporary.replace(final)
    return [LANCE]


def _schema(selection: Selection) -> pa.Schema:
    fields = list(selection.table.schema)
    for one in selection.arrays:
        size = int(np.prod(one.shape, dtype=np.int64))
        kind = pa.list_(pa.from_numpy_dtype(one.dtype), size)
        metadata = {_SHAPE: json.dumps(one.shape)}
        fields.append(pa.field(_column(selection, one), kind, metadata=metadata))
    fields.append(pa.field("json", pa.string()))
    if selection.has_preview:
        fields.append(pa.field("preview", pa.binary()))
    return pa.schema(fields, metadata=dict(describe(selection)))


def _column(selection: Selection, array: Array) -> str:
    # A stream may be called as a column of the index is.
    taken = array.name in selection.table.schema.names
    return f"{array.name}_features" if taken else array.name


def _batches(
    selection: Selection,
    numbers: npt.NDArray[np.int64],
    schema: pa.Schema,
    *,
    progress: Callable[[int], None],
) -> Iterator[pa.RecordBatch]:
    row_bytes = sum(one.num_bytes for one in selection.arrays)
    size = max(1, BATCH_BYTES // max(1, row_bytes))
    for start in range(0, len(numbers), size):
        part = numbers[start : start + size]
        told = selection.table.take(pa.array(part)).combine_chunks()
        columns: list[Any] = [column.combine_chunks() for column in told.columns]
        filled = {
            one.name: np.empty((len(part), *one.shape), one.dtype) for one in selection.arrays
        }
        texts: list[str] = []
        previews: list[bytes | None] = []
        for place, (sample, arrays) in enumerate(selection.clips(part)):
            for name, array in arrays.items():
                filled[name][place] = array
            texts.append(encode_json(sample.info).decode().rstrip("\n"))
            previews.append(sample.preview)
            progress(1)
        for one in selection.arrays:
            flat = pa.array(filled[one.name].reshape(-1))
            length = int(np.prod(one.shape, dtype=np.int64))
            columns.append(pa.FixedSizeListArray.from_arrays(flat, length))
        columns.append(pa.array(texts, pa.string()))
        if selection.has_preview:
            columns.append(pa.array(previews, pa.binary()))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
