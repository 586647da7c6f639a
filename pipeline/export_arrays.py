"""Export as plain arrays: safetensors, a file a shard; npy, a file a stream; and an index."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.exporting import Array, Selection, describe
from pipeline.places import Place, scratch_for
from pipeline.storage import publish, publish_bytes, storage_errors, temporary_file

INDEX = "index.parquet"
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8", "bool": "BOOL"}
"""Names of safetensors."""


def write_safetensors(
    selection: Selection, root: Place, *, progress: Callable[[int], None]
) -> list[str]:
    """SHARD.safetensors with tensors KEY.NAME, and index.parquet; names as of `Write`.

    Format of safetensors 0.4 and later: 8 bytes of length, a JSON header, data. Tensors are in
    order of their dtypes' sizes, largest first, so that each is aligned.
    """
    scratch, names = scratch_for(root), []
    keys = selection.table.column("key").to_pylist()
    files = np.empty(len(keys), dtype=object)
    for shard, numbers in selection.shards():
        name = f"{shard}.safetensors"
        files[numbers] = name
        places, header = _lay_out(selection, [keys[number] for number in numbers])
        with temporary_file(scratch, name=name) as temporary:
            with storage_errors(root), temporary.open("wb", buffering=0) as file:
                _write_at(file, memoryview(len(header).to_bytes(8, "little") + header), 0)
                begin = 8 + len(header)
                for sample, arrays in selection.clips(numbers):
                    for one in selection.arrays:
                        data = np.ascontiguousarray(arrays[one.name]).data.cast("B")
                        _write_at(file, data, begin + places[f"{sample.key}.{one.name}"])
                    progress(1)
            publish(temporary, root / name)
        names.append(name)
    _write_index(selection.table.append_column("file", pa.array(files.tolist())), selection, root)
    return [*names, INDEX]


def write_npy(selection: Selection, root: Place, *, progress: Callable[[int], None]) -> list[str]:
    """NAME.npy of (N, ...) for each array, and index.parquet with N rows; names as of `Write`."""
    scratch, num_clips = scratch_for(root), len(selection.rows)
    names = [f"{one.name}.npy" for one in selection.arrays]
    with contextlib.ExitStack() as stack:
        paths: dict[str, Path] = {}
        with storage_errors(root), contextlib.ExitStack() as opened:
            files = {}
            for one, name in zip(selection.arrays, names, strict=True):
                paths[name] = stack.enter_context(temporary_file(scratch, name=name))
                file = files[one.name] = opened.enter_context(paths[name].open("wb"))
                np.lib.format.write_array_header_1_0(
                    file,
                    {
                        "descr": np.lib.format.dtype_to_descr(one.dtype),
                        "fortran_order": False,
                        "shape": (num_clips, *one.shape),
                    },
                )
            for _, arrays in selection.clips(np.arange(num_clips)):
                for name, file in files.items():
                    file.write(np.ascontiguousarray(arrays[name]).data.cast("B"))
                progress(1)
        for name, path in paths.items():
            publish(path, root / name)
    _write_index(selection.table, selection, root)
    return [*names, INDEX]


def _lay_out(selection: Selection, keys: list[str]) -> tuple[dict[str, int], bytes]:
    """Tensor -> its offset in the data, and the header."""
    header: dict[str, object] = {"__metadata__": dict(describe(selection))}
    places: dict[str, int] = {}
    offset = 0
    for one in sorted(selection.arrays, key=lambda one: (-one.dtype.itemsize, one.name)):
        for key in keys:
            places[f"{key}.{one.name}"] = offset
            header[f"{key}.{one.name}"] = _entry(one, offset)
            offset += one.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    return places, text + b" " * (-len(text) % 8)


def _entry(array: Array, offset: int) -> dict[str, object]:
    return {
        "dtype": _DTYPES[array.dtype.name],
        "shape": list(array.shape),
        "data_offsets": [offset, offset + array.num_bytes],
    }


def _write_at(file: io.FileIO, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


def _write_index(table: pa.Table, selection: Selection, root: Place) -> None:
    buffer = io.BytesIO()
    told = table.replace_schema_metadata(dict(describe(selection)))
    pq.write_table(told, buffer, compression="zstd")
    publish_bytes(buffer.getvalue(), root / INDEX, scratch=scratch_for(root))
