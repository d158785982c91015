"""Tests that end, fork or stop their process. Each docstring begins with the outcome."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from pytest_hwqueue import Hwq


def step() -> int:
    return sum(range(100))


def test_forks_and_the_child_goes_on(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.fork()


def test_forks_and_the_child_sleeps(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    if os.fork() == 0:
        time.sleep(3600)


def test_forks_while_measuring(hwq: Hwq) -> None:
    """passed"""

    def forks() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    hwq.measure(forks)


def test_daemon_in_a_session_of_its_own(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    subprocess.Popen(["sleep", "3600"], start_new_session=True)


def test_exits_with_success(hwq: Hwq) -> None:
    """failed: exited with status 0 in the test's own code"""
    hwq.measure(step)
    os._exit(0)


def test_exits_while_measuring(hwq: Hwq) -> None:
    """failed: exit"""
    hwq.measure(lambda: os._exit(3))


def test_segmentation_fault_while_measuring(hwq: Hwq) -> None:
    """failed: SIGSEGV"""
    hwq.measure(lambda: ctypes.string_at(0))


def test_aborts(hwq: Hwq) -> None:
    """failed: SIGABRT"""
    hwq.measure(step)
    os.abort()


def test_killed(hwq: Hwq) -> None:
    """failed: SIGKILL"""
    hwq.measure(step)
    os.kill(os.getpid(), signal.SIGKILL)


def test_stops_itself(hwq: Hwq) -> None:
    """failed: --hwq-timeout"""
    hwq.measure(step)
    os.kill(os.getpid(), signal.SIGSTOP)


def test_ends_its_process_group(hwq: Hwq) -> None:
    """failed: SIGKILL"""
    hwq.measure(step)
    os.killpg(0, signal.SIGKILL)


def test_runs_another_program(hwq: Hwq) -> None:
    """failed: test_runs_another_program"""
    hwq.measure(step)
    os.execv("/bin/true", ["true"])


def test_leaves_its_process_group(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    os.setpgid(0, os.getppid()) if os.getpgrp() != os.getpid() else os.setpgid(0, 0)


def test_sys_exit(hwq: Hwq) -> None:
    """failed: SystemExit: 0"""
    hwq.measure(step)
    sys.exit(0)


def test_sys_exit_while_measuring(hwq: Hwq) -> None:
    """failed: SystemExit: 4"""
    hwq.measure(lambda: sys.exit(4))


def test_sys_exit_in_a_thread(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()


def test_daemon_threads(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def test_thread_that_never_ends(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    threading.Thread(target=time.sleep, args=(3600,)).start()


def test_stuck_at_exit(hwq: Hwq) -> None:
    """passed"""
    hwq.measure(step)
    atexit.register(time.sleep, 3600)


def test_holds_the_interpreters_lock(hwq: Hwq) -> None:
    """failed: --hwq-timeout"""
    hwq.measure(step)
    ctypes.PyDLL(None).sleep(3600)
