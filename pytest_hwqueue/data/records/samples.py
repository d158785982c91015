"""How samples are encoded in files.

A column keeps the differences of its neighbours or its numbers, whichever are smaller, each in as
many bytes as the largest needs, and byte by byte: all lowest bytes, then all second ones. So what
changes little is runs of zeros, which xz packs well. The line of JSON in front says how to read.

A sample becomes the number of its nearest point on a logarithmic grid; a series becomes the
differences of these numbers as variable-length integers, compressed. 1000 latencies take about 2
kB.
"""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, ValidationError

from pytest_hwqueue.data.errors import BadInput, RecordError, translated
from pytest_hwqueue.data.metrics.estimate import PlainData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Table = Mapping[str, NDArray[np.int64]]

_MOST_MEMORY = 1 << 27
_MOST_ROWS = 1 << 25
_WIDEST = 8


class _Column(PlainData):
    table: str
    name: str
    rows: int = Field(ge=0, le=_MOST_ROWS)
    width: int = Field(ge=0, le=_WIDEST)
    steps: bool


class _Head(PlainData):
    about: dict[str, Any]
    columns: list[_Column]


class PackedLimits(NamedTuple):
    """The most bytes of a file, packed and not; a small hostile file must not fill the memory."""

    packed: int
    unpacked: int


def pack(about: Mapping[str, Any], tables: Mapping[str, Table], limits: PackedLimits) -> bytes:
    """Return tables and what describes them as bytes; see `unpack`.

    Raises:
        RecordError: if they are more than `unpack` would read.

    """
    columns, parts = [], []
    for table, series in tables.items():
        for name, values in series.items():
            column, data = _packed(table, name, values)
            columns.append(column)
            parts.append(data)
    head = _Head(about=dict(about), columns=columns).model_dump(mode="json")
    data = b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *parts])
    if len(data) > limits.unpacked or any(column.rows > _MOST_ROWS for column in columns):
        raise RecordError(
            f"{len(data)} bytes are too many to be stored; {limits.unpacked} are the most"
        )
    packed = lzma.compress(data, check=lzma.CHECK_SHA256)
    if len(packed) > limits.packed:
        raise RecordError(f"{len(packed)} bytes; {limits.packed} are the most")
    return packed


def unpack(
    data: bytes, limits: PackedLimits
) -> tuple[dict[str, Any], dict[str, dict[str, NDArray[np.int64]]]]:
    """Return what describes the tables, and their columns by table and name, shape (rows,).

    Raises:
        RecordError: if they are damaged, or more than a file may hold.

    """
    with translated(RecordError, "it cannot be unpacked", lzma.LZMAError):
        unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        plain = unpacking.decompress(data, limits.unpacked + 1)
    if len(plain) > limits.unpacked:
        raise RecordError(f"it holds more than {limits.unpacked} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise RecordError("it is cut off, or something follows it")
    first, _, body = plain.partition(b"\n")
    with translated(RecordError, "its first line is damaged", ValidationError):
        head = _Head.model_validate_json(first)
    if sum(column.rows * column.width for column in head.columns) != len(body):
        raise RecordError("its columns are longer or shorter than its first line says")
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


GRID = 1.001
"""Ratio of neighbouring points. The worst relative error is half a step: sqrt(1.001) - 1."""


# The last point that a float can hold; the greatest floats lie up to 0.6 of a step above it.
_LAST = 1 + math.floor(math.log(sys.float_info.max) / math.log(GRID))

# 7 bits in each byte of a variable-length integer, as in Protocol Buffers; three bytes hold the
# difference of any two points.
_BITS = 7
_MORE = 1 << _BITS
_LONGEST = 3


def encode_samples(samples_ns: Sequence[float] | NDArray[np.float64]) -> str:
    """Return samples as text; see `decode_samples`.

    Args:
        samples_ns: shape (n,), whole nanoseconds, in the order measured; 0 is legal.

    Raises:
        ValueError: if a sample is not a whole, finite number of at least 0.

    """
    import numpy as np

    with translated(BadInput, "samples must be numbers", TypeError, OverflowError):
        values = np.asarray(samples_ns, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"samples must have one dimension, have {values.ndim}")
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0) | (values != np.floor(values)))
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(
            f"sample {first} of {values.size} is {values[first]} ns; samples are whole nanoseconds "
            "of at least 0"
        )
    # Point 0 is the sample 0, which has no logarithm; point 1 is 1 ns.
    points = np.zeros(values.size, dtype=np.int64)
    above = values > 0
    nearest = 1 + np.rint(np.log(values[above]) / math.log(GRID)).astype(np.int64)
    points[above] = np.minimum(nearest, _LAST)
    steps = np.diff(points, prepend=0)
    return base64.b64encode(zlib.compress(_pack(steps), 9)).decode("ascii")


def decode_samples(text: str, n: int) -> NDArray[np.float64]:
    """Return the samples in ns, shape (n,), in their order, off by less than 5.1e-4 of each.

    Args:
        text: from `encode_samples`.
        n: how many samples there are.

    Raises:
        ValueError: if the text holds anything but n samples.

    """
    import numpy as np

    points = np.cumsum(_unpack(_decompressed(text, n), n))
    if n and points.min() < 0:
        raise ValueError("the samples are damaged: one is below 0")
    if n and points.max() > _LAST:
        raise ValueError("the samples are damaged: one is greater than any number")
    values: NDArray[np.float64] = np.exp((points - 1) * math.log(GRID))
    values[points == 0] = 0.0
    return values


def _decompressed(text: str, n: int) -> bytes:
    with translated(BadInput, "the samples are damaged", binascii.Error, zlib.error, ValueError):
        compressed = base64.b64decode(text, validate=True)
        # No more than n samples can fill: a small text must not become a large array.
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(compressed, _LONGEST * n + 1)
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"the samples are damaged: they are not {n} and nothing else")
    return packed


def _pack(steps: NDArray[np.int64]) -> bytes:
    """Return integers as bytes: sign folded into the lowest bit, 7 bits a byte, lowest first."""
    import numpy as np

    folded = np.where(steps < 0, -2 * steps - 1, 2 * steps)
    places = _BITS * np.arange(_LONGEST)
    rest = folded[:, np.newaxis] >> places
    used = rest > 0
    used[:, 0] = True
    follows = np.zeros_like(used)
    follows[:, :-1] = used[:, 1:]
    groups = (rest % _MORE) + _MORE * follows
    return groups[used].astype(np.uint8).tobytes()


def _unpack(packed: bytes, n: int) -> NDArray[np.int64]:
    import numpy as np

    groups = np.frombuffer(packed, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(groups < _MORE)
    if ends.size != n or (n and ends[-1] != groups.size - 1) or (not n and groups.size):
        raise ValueError(f"the samples are damaged: they are {ends.size}, not {n}")
    if not n:
        return np.zeros(0, dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST:
        raise ValueError("the samples are damaged: a difference is too large")
    low = groups % _MORE
    folded = low[starts]
    for place in range(1, _LONGEST):
        longer = np.flatnonzero(lengths > place)
        folded[longer] += low[starts[longer] + place] << (_BITS * place)
    unfolded: NDArray[np.int64] = (folded >> 1) ^ -(folded & 1)
    return unfolded
