"""TensorReader: read a checkpoint of torch without running what it says.

torch keeps the list of a checkpoint's tensors as a pickle, which may name any function to be called
when it is read, and reads entries that are no tensors as pickles too. Whoever is handed a run of
someone else must not have to trust it.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

_HERE = "torch.distributed.checkpoint"
_KNOWN = {
    (f"{_HERE}.metadata", "Metadata"),
    (f"{_HERE}.metadata", "MetadataIndex"),
    (f"{_HERE}.metadata", "StorageMeta"),
    (f"{_HERE}.metadata", "TensorStorageMetadata"),
    (f"{_HERE}.metadata", "TensorProperties"),
    (f"{_HERE}.metadata", "ChunkStorageMetadata"),
    (f"{_HERE}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_HERE}.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}
"""All that is named where tensors are listed, besides dtypes. None of it does anything."""


class TensorReader(FileSystemReader):
    """Reads tensors and nothing else, from files that lie in the checkpoint's folder."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """The list of tensors. ValueError: it is damaged, or names anything else."""
        path = self._get_metadata_path(kwargs.get("rank"))
        with self.fs.create_stream(path, "rb") as file:
            try:
                metadata: Metadata = _Unpickler(file).load()
            except OSError:
                raise
            except Exception as error:  # bytes that are no pickle may fail in any way
                raise ValueError(f"its list of tensors cannot be read: {error}") from error
        _require_tensors(metadata)
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        is_dtype = module_name == "torch" and isinstance(
            getattr(torch, global_name, None), torch.dtype
        )
        if not is_dtype and (module_name, global_name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return super().find_class(module_name, global_name)


def _require_tensors(metadata: Any) -> None:
    try:
        entries = metadata.state_dict_metadata.values()
        files = {one.relative_path for one in metadata.storage_data.values()}
        known = all(type(one) is TensorStorageMetadata for one in entries)
    except AttributeError as error:
        raise ValueError(f"it has no list of tensors: {error}") from error
    if not known:
        raise ValueError("it holds something else than tensors")
    for name in files:
        if not isinstance(name, str) or "/" in name or "\\" in name:
            raise ValueError(f"it names a file that is not its own: {name!r}")
