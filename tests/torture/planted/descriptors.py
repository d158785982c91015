"""Tests that treat output and descriptors badly. Each docstring begins with the outcome."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress

import pytest

from pytest_hwqueue import Hwq


def step() -> int:
    return sum(range(100))


def test_standard_output_closed(hwq: Hwq) -> None:
    """failed: closed file, error: closed file"""
    hwq.measure(step)
    sys.stdout.close()


def test_standard_output_is_none(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.stdout = None


def test_standard_output_is_another_file(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def test_50_mb_below_python(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    for _ in range(50):
        os.write(2, b"x" * 1_000_000)


def test_output_is_no_text(hwq: Hwq) -> None:
    """failed: on purpose"""
    hwq.measure(step)
    print("\x00 \x1b[2J \x1b]0;title\x07 ]]> <script>")
    os.write(1, b"\xff\xfe\x00\n")
    pytest.fail("on purpose")


def test_uses_up_all_descriptors(hwq: Hwq) -> None:
    """failed: Too many open files"""
    hwq.measure(step)
    while True:
        os.dup(0)


def test_closes_all_sockets_and_pipes(hwq: Hwq) -> None:
    """failed: test_closes_all_sockets_and_pipes"""
    hwq.measure(step)
    for each in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            mode = os.fstat(each).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.close(each)


def test_standard_input_is_read(hwq: Hwq) -> None:
    """failed: reading from stdin"""
    hwq.measure(step)
    input()
