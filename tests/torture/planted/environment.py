"""Tests that change their process's environment, limits. Each docstring begins with the outcome."""

from __future__ import annotations

import locale
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from pytest_hwqueue import Hwq


def step() -> int:
    return sum(range(100))


def limit(which: int, value: int) -> None:
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


# First: the records in it are those of the tests before.
def test_folder_of_the_records_is_gone(hwq: Hwq) -> None:
    """passed"""
    for each in Path(__file__).parent.glob(".hwqueue/2*"):
        shutil.rmtree(each)
    hwq.measure(step)


def test_current_folder(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.chdir("/")


def test_current_folder_is_gone(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def test_umask(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.umask(0o777)


def test_time_zone(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.environ["TZ"] = "Pacific/Kiritimati"
    time.tzset()


def test_locale(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.environ["LC_ALL"] = "C"
    locale.setlocale(locale.LC_ALL, "C")


def test_no_environment(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.environ.clear()


def test_temporary_folder_is_nowhere(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.environ["TMPDIR"] = os.environ["HOME"] = tempfile.tempdir = "/nowhere"


def test_one_core(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_lowest_priority(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.nice(19)


def test_no_descriptors(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    limit(resource.RLIMIT_NOFILE, 4)


def test_no_files(hwq: Hwq) -> None:
    """failed: the worker process exited"""
    hwq.measure(step)
    limit(resource.RLIMIT_FSIZE, 0)


def test_no_memory(hwq: Hwq) -> None:
    """failed: MemoryError"""
    limit(resource.RLIMIT_AS, 2**34)
    pages = []

    def grows() -> None:
        pages.append(bytearray(2**34))

    hwq.measure(grows)


def test_no_more_time_of_the_processor(hwq: Hwq) -> None:
    """failed: SIGXCPU"""
    hwq.measure(step)
    limit(resource.RLIMIT_CPU, 1)
    while True:
        pass


def test_own_file_is_gone(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    Path(__file__).unlink()
