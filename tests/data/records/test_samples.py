"""Samples and columns come back within their error; damaged and hostile bytes are refused."""

from __future__ import annotations

import base64
import json
import lzma
import math
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.records.samples import (
    GRID,
    PackedLimits,
    decode_samples,
    encode_samples,
    pack,
    unpack,
)

LIMITS = PackedLimits(packed=1_000_000, unpacked=1_000_000)

LIMITS = PackedLimits(packed=1_000_000, unpacked=1_000_000)
LATENCIES = st.one_of(
    st.integers(0, 2**63 - 1), st.integers(0, 2000), st.integers(10**6, 10**8), st.just(0)
)


def relative_errors(samples: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = np.asarray(samples, dtype=np.float64)
    decoded = decode_samples(encode_samples(samples), len(samples))
    assert decoded.shape == values.shape
    assert ((decoded == 0) == (values == 0)).all()
    above = values > 0
    return np.abs(decoded[above] / values[above] - 1)


@given(st.lists(LATENCIES, max_size=300))
def test_samples_come_back_in_order_within_the_error(samples: list[int]) -> None:
    assert (relative_errors(samples) < 5.1e-4).all()


def test_error_over_the_whole_grid_is_half_a_step() -> None:
    samples = np.unique(np.geomspace(1, 2**62, 400_000).round()).astype(np.int64).tolist()
    worst = relative_errors(samples).max()
    half_a_step = math.sqrt(GRID) - 1
    assert 0.99 * half_a_step < worst < 1.001 * half_a_step < 5.1e-4
    # The greatest and the least follow each other; the greatest float stays finite.
    assert relative_errors([1.7e308, 0, 1.7e308, 1]).max() < 5.1e-4
    assert relative_errors([sys.float_info.max]).max() < 6e-4


def test_they_take_few_bytes() -> None:
    generator = np.random.default_rng(1)
    latency_ns = np.rint(generator.lognormal(np.log(5e6), 0.05, 1000))
    assert len(encode_samples(latency_ns)) < 2300
    times = 10**15 + np.cumsum(generator.integers(40_000, 60_000, 20_000))
    # 20,000 equally likely steps are 14.3 bits each.
    assert len(pack({}, {"t": {"start": times}}, LIMITS)) < 2.1 * 20_000


@pytest.mark.parametrize(
    "samples",
    [[1, float("inf")], [-1], [1, 2, -0.5], [0.5], [[1, 2]], ["x"], [10**400]],
)
def test_what_is_no_latency_is_refused(samples: Sequence[float]) -> None:
    with pytest.raises(ValueError, match=r"sample|numbers|convert"):
        encode_samples(samples)
    with pytest.raises(ValueError, match="sample 2 of 4 is nan ns"):
        encode_samples([1, 2, float("nan"), -1])


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


THREE = encode_samples([5, 6, 7])


@pytest.mark.parametrize(
    ("text", "n"),
    [
        *[(THREE, n) for n in (0, 1, 2, 4, 1000)],
        (THREE[:-8], 3),
        ("", 1),
        ("not base64!", 1),
        (base64.b64encode(b"not zlib").decode(), 1),
        (packed(b"\x80\x80\x80\x01"), 1),  # longer than any difference
        (packed(b"\x80"), 1),  # ends inside a number
        (packed(b"\x01"), 1),  # below 0
        (packed(b"\x80\x80W"), 1),  # above the greatest float
        (packed(b"\x00" * 10_000_000), 3),  # a bomb
        (base64.b64encode(zlib.compress(b"\x00") + b"more").decode(), 1),
    ],
)
def test_damaged_text_is_refused(text: str, n: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode_samples(text, n)


@given(st.binary(max_size=40), st.integers(0, 30))
def test_any_bytes_give_samples_or_are_refused(content: bytes, n: int) -> None:
    try:
        decoded = decode_samples(packed(content), n)
    except ValueError:
        return
    assert decoded.shape == (n,)
    assert (np.isfinite(decoded) & (decoded >= 0)).all()


# ------------------------------------------------------------------ columns of whole numbers
NUMBERS = arrays(np.int64, st.integers(0, 50)) | arrays(
    np.int64, st.integers(0, 50), elements=st.integers(-300, 300)
)
TABLES = st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), NUMBERS))
ABOUT = st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text()))


@settings(max_examples=25)
@given(ABOUT, TABLES)
def test_columns_come_back_as_they_were(about: dict[str, Any], tables: Any) -> None:
    again, found = unpack(pack(about, tables, LIMITS), LIMITS)
    assert again == about
    # A table without columns holds nothing.
    np.testing.assert_equal(found, {name: table for name, table in tables.items() if table})
    assert all(each.dtype == np.int64 for table in found.values() for each in table.values())


DATA = pack({"a": 1}, {"t": {"x": np.arange(1000) ** 2}}, LIMITS)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(at: int, by: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= by
    with pytest.raises(RecordError):
        unpack(bytes(damaged), LIMITS)


def one_column(rows: int, width: int) -> bytes:
    column = {"table": "t", "name": "x", "rows": rows, "width": width, "steps": False}
    head = json.dumps({"about": {}, "columns": [column]}).encode()
    return lzma.compress(head + b"\n" + b"\0" * 8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (DATA[:-1], "cut off"),
        (DATA[: len(DATA) // 2], "cut off"),
        (DATA + b"more", "follows"),
        (b"no xz at all", "cannot be unpacked"),
        (lzma.compress(b"no JSON\n"), "first line is damaged"),
        (lzma.compress(b'{"about": {}, "columns": [], "other": 1}\n'), "first line is damaged"),
        (lzma.compress(b'{"about": {}, "columns": []}\nmore'), "longer or shorter"),
        # A small file must not become large columns.
        (one_column(2**62, 8), "first line is damaged"),
        (one_column(2**25, 8), "longer or shorter"),
        (one_column(-1, 8), "first line is damaged"),
        (one_column(1, 9), "first line is damaged"),
        (one_column(1, -1), "first line is damaged"),
    ],
)
def test_what_is_no_file_of_columns_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        unpack(data, LIMITS)


def test_what_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(RecordError, match="more than 1000000 bytes"):
        unpack(lzma.compress(b"\0" * 3_000_000), LIMITS)
    values = np.random.default_rng(0).integers(0, 2**60, 1_000_000)
    with pytest.raises(RecordError, match="too many to be stored"):
        pack({}, {"t": {"x": values}}, LIMITS)
    with pytest.raises(RecordError, match="900 are the most"):
        pack({}, {"t": {"x": values[:1000]}}, LIMITS._replace(packed=900))
