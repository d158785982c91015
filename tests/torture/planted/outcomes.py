"""Tests whose outcome is unusual. Each docstring begins with the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from pytest_hwqueue import Hwq


def step() -> int:
    return sum(range(100))


class Unprintable(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.fixture
def raises() -> None:
    raise OSError("no such device")


@pytest.fixture
def raises_afterwards() -> Iterator[None]:
    yield
    raise OSError("cannot be closed")


@pytest.fixture
def exits_afterwards() -> Iterator[None]:
    yield
    raise SystemExit(6)


@pytest.fixture
def yields_twice() -> Iterator[None]:
    yield
    yield


def test_set_up_raises(hwq: Hwq, raises: None) -> None:
    """error: no such device"""
    hwq.measure(step)


def test_teardown_raises(hwq: Hwq, raises_afterwards: None) -> None:
    """passed, error: cannot be closed"""
    hwq.measure(step)


def test_teardown_exits(hwq: Hwq, exits_afterwards: None) -> None:
    """passed, error: SystemExit: 6"""
    hwq.measure(step)


def test_fixture_yields_twice(hwq: Hwq, yields_twice: None) -> None:
    """passed, error: more than one 'yield'"""
    hwq.measure(step)


def test_fails_and_teardown_raises(hwq: Hwq, raises_afterwards: None) -> None:
    """failed: first, error: cannot be closed"""
    hwq.measure(step)
    pytest.fail("first")


def test_error_without_text(hwq: Hwq) -> None:
    """failed: Unprintable"""
    hwq.measure(step)
    raise Unprintable


def test_error_without_text_while_measuring(hwq: Hwq) -> None:
    """failed: its text cannot be shown"""

    def raises() -> None:
        raise Unprintable

    hwq.measure(raises)


def test_error_of_megabytes(hwq: Hwq) -> None:
    """failed: ValueError"""

    def raises() -> None:
        raise ValueError("x" * 10_000_000)

    hwq.measure(raises)


def test_error_that_is_its_own_cause(hwq: Hwq) -> None:
    """failed: round and round"""
    hwq.measure(step)
    first, second = ValueError("round and round"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def test_error_that_is_no_exception(hwq: Hwq) -> None:
    """failed: GeneratorExit"""

    def raises() -> None:
        raise GeneratorExit

    hwq.measure(raises)


def test_error_of_asyncio(hwq: Hwq) -> None:
    """failed: CancelledError"""

    def raises() -> None:
        raise asyncio.CancelledError

    hwq.measure(raises)


def test_skipped_after_measuring(hwq: Hwq) -> None:
    """skipped: not today"""
    hwq.measure(step)
    pytest.skip("not today")


@pytest.mark.xfail(reason="known", strict=True)
def test_expected_to_fail_and_does_not(hwq: Hwq) -> None:
    """failed: XPASS(strict)"""
    hwq.measure(step)


@pytest.mark.xfail(reason="known")
def test_expected_to_fail(hwq: Hwq) -> None:
    """skipped: known"""
    hwq.measure(step)
    pytest.fail("as expected")


def test_measures_twice(hwq: Hwq) -> None:
    """failed: it is measured 2 times in one run"""
    hwq.measure(step)
    hwq.measure(step)


def test_property_that_is_no_json(hwq: Hwq, record_property: Callable[[str, object], None]) -> None:
    """passed"""
    hwq.measure(step)
    record_property("thing", object())


@pytest.mark.parametrize("value", ["\ud800", "new\nline", "\x00", "[x]", "ä" * 5000], ids=str)
def test_strange_parameter(hwq: Hwq, value: str) -> None:
    """passed"""
    hwq.measure(step)


def test_coroutine_as_a_step(hwq: Hwq) -> None:
    """failed: coroutine"""

    async def step() -> None:
        await asyncio.sleep(0)

    hwq.measure(step)


def test_generator_as_a_step(hwq: Hwq) -> None:
    """failed: generator"""

    def step() -> Iterator[int]:
        yield 1

    hwq.measure(step)
