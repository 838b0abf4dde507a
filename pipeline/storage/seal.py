"""Checksums over all values of a table, stored in its Parquet file.

A digest depends on the names, types and values of the columns and on the file's identity, but not
on the memory layout of Parquet or Arrow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from zlib_ng.zlib_ng import crc32

from pipeline.storage.files import Storage
from tango_core.errors import InputError

SEAL = b"tango_seal"

# Errors raised when damaged Parquet files are parsed; zstd raises OSError.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError)


class DamagedFileError(InputError):
    """A file whose content has changed, or which was renamed, since it was written."""


@dataclass(frozen=True)
class SealedTable:
    """A table that was read and checked.

    Attributes:
        table: The table, without the file's metadata if it was sealed.
        run: Run to which the file belongs; `None` for a file without a seal.
    """

    table: pa.Table
    run: str | None


def digest_of(table: pa.Table, identity: Mapping[str, str]) -> str:
    """SHA-256 over the identity and over name, type and values of every column.

    For large binary columns, which make up most of a token cache, the CRC-32 of the bytes is
    hashed, because SHA-256 would take longer than reading them.
    """
    state = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode())
    for field, column in zip(table.schema, table.columns, strict=True):
        state.update(f"|{field.name}:{_name_of(field.type)}:{len(column)}|".encode())
        chunks = column.chunks
        _feed(state, chunks[0] if len(chunks) == 1 else column.combine_chunks())
    return state.hexdigest()


def _name_of(kind: pa.DataType) -> str:
    """Name of a type, independent of the differing field names of lists in Parquet and Arrow."""
    return f"list<{_name_of(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def _feed(state: hashlib._Hash, values: pa.Array | pa.ChunkedArray) -> None:
    """Hash the values of a column: the null mask, then the other values."""
    if len(values) == 0:
        return
    state.update(np.packbits(values.is_null().to_numpy(zero_copy_only=False)).tobytes())
    kind = values.type
    if values.null_count == len(values) or pa.types.is_null(kind):
        return
    if values.null_count:
        values = values.drop_null()
    if pa.types.is_list(kind):
        state.update(pc.list_value_length(values).to_numpy(zero_copy_only=False).tobytes())
        _feed(state, values.flatten())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        state.update(pc.binary_length(values).to_numpy(zero_copy_only=False).tobytes())
        state.update(_bytes_of(values.cast(pa.large_binary())))
    elif pa.types.is_large_binary(kind):
        state.update(pc.binary_length(values).to_numpy(zero_copy_only=False).tobytes())
        state.update(f"{crc32(_bytes_of(values)):08x}".encode())
    elif pa.types.is_timestamp(kind):
        state.update(values.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
    else:
        state.update(values.to_numpy(zero_copy_only=False).tobytes())


def _bytes_of(values: pa.LargeBinaryArray) -> memoryview:
    """The concatenated bytes of all values, without copying."""
    _, offsets, data = values.buffers()
    where = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(data if data is not None else b"")[where[0] : where[-1]]


def write_sealed(table: pa.Table, folder: Storage, name: str, run: str) -> None:
    """Write one Parquet file atomically, with a seal that names the run and the file."""
    table = table.replace_schema_metadata(None)
    seal = {"run": run, "file": name}
    seal["digest"] = digest_of(table, seal)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({SEAL: json.dumps(seal)}), sink, compression="zstd"
    )
    folder.write(name, memoryview(sink.getvalue()))


def sealed_run(schema: pa.Schema) -> str | None:
    """Run named in the seal of a file, without checking the digest; `None` without a seal.

    Raises:
        ValueError: If the seal cannot be parsed.
    """
    stored = (schema.metadata or {}).get(SEAL)
    return None if stored is None else str(json.loads(stored)["run"])


def read_sealed(folder: Storage, name: str, *, must: bool) -> SealedTable:
    """Read one Parquet file and check its seal.

    Args:
        folder: Directory of the file.
        name: Name of the file.
        must: Whether a missing seal is an error; release 0.1 wrote files without seals.

    Raises:
        DamagedFileError: If it cannot be parsed, its values differ from the sealed ones, or it was
            written under another name.
        FileNotFoundError: If it does not exist.
    """
    data = folder.read(name)
    try:
        table = pq.read_table(pa.BufferReader(data))
        stored = (table.schema.metadata or {}).get(SEAL)
        if stored is None:
            if must:
                raise InputError("it has no seal")
            table.validate(full=True)
            return SealedTable(table, None)
        seal = json.loads(stored)
        digest, table = seal.pop("digest"), table.replace_schema_metadata(None)
        table.validate(full=True)
        if digest != digest_of(table, seal):
            raise InputError("its values are not those that were written")
        if seal["file"] != name:
            raise InputError(f"it was written as {seal['file']} of the run {seal['run']}")
        return SealedTable(table, str(seal["run"]))
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedFileError(f"{folder.path(name)} is damaged ({reason})") from error
