"""Encoded samples: same order, same number, and never further off than half a step of the grid."""

from __future__ import annotations

import base64
import math
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.records.samples import GRID, decode_samples, encode_samples

LATENCIES = st.one_of(
    st.integers(0, 2**63 - 1), st.integers(0, 2000), st.integers(10**6, 10**8), st.just(0)
)


def relative_errors(samples: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
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


@given(st.lists(LATENCIES, min_size=1, max_size=50), st.randoms())
def test_order_is_kept(samples: list[int], random: np.random.Generator) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)
    one = decode_samples(encode_samples(samples), len(samples))
    other = decode_samples(encode_samples(shuffled), len(samples))
    value = dict(zip(samples, one.tolist(), strict=True))
    assert [value[sample] for sample in shuffled] == other.tolist()


@given(st.binary(max_size=20), st.integers(1, 20))
def test_any_bytes_are_so_many_samples_or_refused(packed: bytes, n: int) -> None:
    text = base64.b64encode(zlib.compress(packed)).decode()
    with suppress(ValueError):
        samples = decode_samples(text, n)
        assert len(samples) == n
        assert samples.min() >= 0


def test_thousand_latencies_take_about_two_kilobytes() -> None:
    generator = np.random.default_rng(1)
    latency_ns = np.rint(generator.lognormal(np.log(5e6), 0.05, 1000))
    assert len(encode_samples(latency_ns)) < 2300


def test_greatest_finite_number_and_the_least_follow_each_other() -> None:
    samples = [1.7e308, 0, 1.7e308, 1]
    decoded = decode_samples(encode_samples(samples), 4)
    assert decoded[1] == 0
    assert decoded[3] == 1
    assert abs(decoded[0] / 1.7e308 - 1) < 5.1e-4
    assert decoded[0] == decoded[2]


def test_greatest_float_stays_finite() -> None:
    decoded = decode_samples(encode_samples([sys.float_info.max]), 1)
    assert abs(decoded[0] / sys.float_info.max - 1) < 6e-4


@pytest.mark.parametrize(
    "samples",
    [[float("nan")], [1, float("inf")], [-1], [1, 2, -0.5], [0.5], [[1, 2]], ["x"], [10**400]],
)
def test_what_is_no_latency_is_refused(samples: Sequence[float]) -> None:
    with pytest.raises(ValueError, match=r"sample|numbers|convert"):
        encode_samples(samples)


def test_refusal_tells_which_sample() -> None:
    with pytest.raises(ValueError, match="sample 2 of 4 is nan ns"):
        encode_samples([1, 2, float("nan"), -1])


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize("n", [0, 1, 2, 4, 1000])
def test_another_number_of_samples_is_refused(n: int) -> None:
    text = encode_samples([5, 6, 7])
    with pytest.raises(ValueError, match="damaged"):
        decode_samples(text, n)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("", 1),
        ("not base64!", 1),
        (base64.b64encode(b"not zlib").decode(), 1),
        (encode_samples([5, 6, 7])[:-8], 3),
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
    assert np.isfinite(decoded).all()
    assert (decoded >= 0).all()
