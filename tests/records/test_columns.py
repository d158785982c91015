"""Columns of whole numbers come back as they were; damaged and hostile bytes are refused."""

from __future__ import annotations

import json
import lzma
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pytest_hwqueue.records import samples as columns
from pytest_hwqueue.records.samples import BadColumns, pack, unpack

NUMBERS = st.one_of(
    arrays(np.int64, st.integers(0, 50)),
    arrays(np.int64, st.integers(0, 50), elements=st.integers(-300, 300)),
)
TABLES = st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), NUMBERS))
ABOUT = st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text()))


@given(ABOUT, TABLES)
def test_columns_come_back_as_they_were(about: dict[str, Any], tables: Any) -> None:
    again, found = unpack(pack(about, tables))
    assert again == about
    # A table without columns holds nothing.
    expected = {name: table for name, table in tables.items() if table}
    assert found.keys() == expected.keys()
    for name, table in expected.items():
        assert found[name].keys() == table.keys()
        for column, values in table.items():
            np.testing.assert_array_equal(found[name][column], values)
            assert found[name][column].dtype == np.int64


def test_ascending_numbers_take_few_bytes() -> None:
    generator = np.random.default_rng(0)
    times = 10**15 + np.cumsum(generator.integers(40_000, 60_000, 20_000))
    # 20,000 equally likely steps are 14.3 bits each.
    assert len(pack({}, {"t": {"start": times}})) < 2.1 * 20_000


DATA = pack({"a": 1}, {"t": {"x": np.arange(1000) ** 2}})


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(at: int, by: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= by
    with pytest.raises(BadColumns):
        unpack(bytes(damaged))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut off"),
        (DATA[:-1], "cut off"),
        (DATA[: len(DATA) // 2], "cut off"),
        (DATA + b"more", "follows"),
        (b"no xz at all", "cannot be unpacked"),
        (lzma.compress(b"no JSON\n"), "first line"),
        (lzma.compress(b'{"about": {}, "columns": [], "other": 1}\n'), "first line"),
        (lzma.compress(b'{"about": {}, "columns": []}\nmore'), "longer or shorter"),
    ],
)
def test_what_is_no_file_of_columns_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadColumns, match=reason):
        unpack(data)


@pytest.mark.parametrize(
    ("rows", "width", "reason"),
    [
        (2**62, 8, "first line"),
        (2**25, 8, "longer or shorter"),
        (-1, 8, "first line"),
        (1, 9, "first line"),
        (1, -1, "first line"),
    ],
)
def test_a_small_file_must_not_become_large_columns(rows: int, width: int, reason: str) -> None:
    column = {"table": "t", "name": "x", "rows": rows, "width": width, "steps": False}
    head = json.dumps({"about": {}, "columns": [column]}).encode()
    with pytest.raises(BadColumns, match=reason):
        unpack(lzma.compress(head + b"\n" + b"\0" * 8))


def test_what_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = lzma.compress(b"\0" * 3_000_000)
    assert len(bomb) < 1000
    monkeypatch.setattr(columns, "MOST_BYTES", 1_000_000)
    with pytest.raises(BadColumns, match="more than 1000000 bytes"):
        unpack(bomb)
    with pytest.raises(BadColumns, match="too many to be stored"):
        pack({}, {"t": {"x": np.random.default_rng(0).integers(0, 2**60, 1_000_000)}})
