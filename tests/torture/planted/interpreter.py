"""Tests that change the interpreter's state for good. Each docstring begins with the outcome."""

from __future__ import annotations

import builtins
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import warnings

import torch

from pytest_hwqueue import Hwq


def step() -> int:
    return sum(range(100))


def test_endless_recursion(hwq: Hwq) -> None:
    """failed: RecursionError"""

    def deeper() -> None:
        deeper()

    hwq.measure(deeper)


def test_recursion_limit(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.setrecursionlimit(300)


def test_signal_handlers(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def test_alarm(hwq: Hwq) -> None:
    """failed: SIGALRM"""
    hwq.measure(step)
    signal.alarm(1)
    time.sleep(60)


def test_no_garbage_collection(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    gc.disable()
    gc.freeze()


def test_another_clock(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    for name in ("perf_counter_ns", "perf_counter", "monotonic", "monotonic_ns", "time", "time_ns"):
        setattr(time, name, lambda: 0)


def test_sleep_that_does_not(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    time.sleep = lambda _: None


def test_traced_by_python(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)


def test_warnings_as_errors(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    warnings.simplefilter("error")
    os.environ["PYTHONWARNINGS"] = "error"


def test_warnings_function_replaced(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    warnings.warn = None  # type: ignore[assignment]


def test_open_replaced(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    builtins.print = None  # type: ignore[assignment]


def test_json_replaced(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    json.dumps = lambda *_, **__: "null"


def test_modules_forgotten(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    for name in ("json", "tempfile", "dataclasses", "numpy"):
        sys.modules.pop(name, None)


def test_path_emptied(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.path.clear()
    sys.argv.clear()


def test_seeds_and_defaults_of_torch(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")


def test_hooks_that_raise(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.excepthook = None  # type: ignore[assignment]
    threading.excepthook = None  # type: ignore[assignment]
    sys.unraisablehook = None  # type: ignore[assignment]


def test_switch_interval(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    sys.setswitchinterval(1.0)
