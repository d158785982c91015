"""Columns of whole numbers and what describes them, in one small compressed file.

A column keeps the differences of its neighbours or its numbers, whichever are smaller, each in as
many bytes as the largest needs, and byte by byte: all lowest bytes, then all second ones. So what
changes little is runs of zeros, which xz packs well. The line of JSON in front says how to read.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from pytest_hwqueue.metrics.plain_data import PlainData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = Mapping[str, NDArray[np.int64]]

MOST_BYTES = 1 << 30
"""Of a file when it is unpacked; a small hostile file must not fill the memory."""

_MOST_MEMORY = 1 << 27
_MOST_ROWS = 1 << 25
_WIDEST = 8


class BadColumns(ValueError):
    """Bytes that are no columns, or more than are read."""


class _Column(PlainData):
    table: str
    name: str
    rows: int = Field(ge=0, le=_MOST_ROWS)
    width: int = Field(ge=0, le=_WIDEST)
    steps: bool


class _Head(PlainData):
    about: dict[str, Any]
    columns: list[_Column]


def pack(about: Mapping[str, Any], tables: Mapping[str, Table]) -> bytes:
    """Return tables and what describes them as bytes; see `unpack`.

    Raises:
        BadColumns: if they are more than `unpack` would read.

    """
    columns, parts = [], []
    for table, series in tables.items():
        for name, values in series.items():
            column, data = _packed(table, name, values)
            columns.append(column)
            parts.append(data)
    head = _Head(about=dict(about), columns=columns).model_dump(mode="json")
    data = b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *parts])
    if len(data) > MOST_BYTES or any(column.rows > _MOST_ROWS for column in columns):
        raise BadColumns(f"{len(data)} bytes are too many to be stored; {MOST_BYTES} are the most")
    return lzma.compress(data, check=lzma.CHECK_SHA256)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, dict[str, NDArray[np.int64]]]]:
    """Return what describes the tables, and their columns by table and name, shape (rows,).

    Raises:
        BadColumns: if they are damaged, or more than a file may hold.

    """
    try:
        unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        plain = unpacking.decompress(data, MOST_BYTES + 1)
    except lzma.LZMAError as error:
        raise BadColumns(f"it cannot be unpacked: {error}") from error
    if len(plain) > MOST_BYTES:
        raise BadColumns(f"it holds more than {MOST_BYTES} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise BadColumns("it is cut off, or something follows it")
    first, _, body = plain.partition(b"\n")
    try:
        head = _Head.model_validate_json(first)
    except ValidationError as error:
        raise BadColumns(f"its first line is damaged: {error.errors()[0]['msg']}") from error
    if sum(column.rows * column.width for column in head.columns) != len(body):
        raise BadColumns("its columns are longer or shorter than its first line says")
    tables: dict[str, dict[str, NDArray[np.int64]]] = {}
    at = 0
    for column in head.columns:
        size = column.rows * column.width
        tables.setdefault(column.table, {})[column.name] = _unpacked(column, body[at : at + size])
        at += size
    return head.about, tables


def _packed(table: str, name: str, values: NDArray[np.int64]) -> tuple[_Column, bytes]:
    import numpy as np

    numbers = np.asarray(values, dtype=np.int64)
    # The sign in the lowest bit: a number a little below 0 is small too.
    plain, steps = (_folded(each) for each in (numbers, np.diff(numbers, prepend=0)))
    by_steps = bool(steps.astype(np.float64).sum() < plain.astype(np.float64).sum())
    chosen = steps if by_steps else plain
    width = (int(chosen.max(initial=0)).bit_length() + 7) // 8
    planes = chosen.astype("<u8").view(np.uint8).reshape(-1, _WIDEST)[:, :width]
    column = _Column(table=table, name=name, rows=numbers.size, width=width, steps=by_steps)
    return column, planes.T.tobytes()


def _unpacked(column: _Column, data: bytes) -> NDArray[np.int64]:
    import numpy as np

    planes = np.zeros((column.rows, _WIDEST), dtype=np.uint8)
    stored = np.frombuffer(data, dtype=np.uint8).reshape(column.width, column.rows)
    planes[:, : column.width] = stored.T
    folded = planes.view("<u8").reshape(-1)
    numbers = (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(np.int64)
    # Of damaged numbers the sum may leave 64 bits: it wraps, as the differences did.
    return np.cumsum(numbers) if column.steps else numbers


def _folded(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    import numpy as np

    return ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
