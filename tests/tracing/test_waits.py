"""What threads wait for: the names of waits, and a process that looks."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import cast

import pytest

from pytest_hwqueue.metrics.cpu_events import OffCpu, Wait, WaitKind
from pytest_hwqueue.metrics.delay_evidence import wait_evidence
from pytest_hwqueue.tracing import waits as waits_module
from pytest_hwqueue.tracing.waits import (
    NoWaits,
    WaitWatcher,
    name_wait,
    named_waits,
    read_samples,
)

MS = 1_000_000


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number calls as x86-64 does, wherever the tests run."""
    monkeypatch.setattr(waits_module, "_BY_NUMBER", waits_module.numbered("x86_64"))


@pytest.mark.usefixtures("x86")
@pytest.mark.parametrize(("seen", "kind", "what"), [
    (("230", "hrtimer_nanosleep", ""), "sleep", "sleep (clock_nanosleep, at hrtimer_nanosleep)"),
    (("select of nothing", "", "S"), "sleep", "sleep (select)"),
    (("202", "futex_do_wait", ""), "lock", "lock (futex, at futex_do_wait)"),
    (("0", "anon_pipe_read", ""), "I/O", "I/O (read, at anon_pipe_read)"),
    (("74", "", "D"), "I/O", "I/O (fsync)"),
    (("-1", "folio_wait_bit_common", ""), "page fault", "page fault (at folio_wait_bit_common)"),
    (("-1", "", "D"), "page fault", "page fault"),
    (("999", "", "S"), "other", "call 999"),
    (("", "hrtimer_nanosleep", "S"), "sleep", "sleep (at hrtimer_nanosleep)"),
    (("", "nvidia_ioctl", "S"), "other", "a wait at nvidia_ioctl"),
    (("", "", "S"), "other", "a wait that /proc does not name"),
    (("202", "do_signal_stop", ""), "stopped", "stopped by a signal"),
    (("-1", "", "T"), "stopped", "stopped by a signal"),
])  # fmt: skip
def test_names(seen: tuple[str, str, str], kind: str, what: str) -> None:
    assert name_wait(*seen) == (kind, what)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_two_calls_have_one_number(machine: str) -> None:
    numbers = waits_module.numbered(machine)
    assert numbers[202 if machine == "x86_64" else 98] == ("lock", "futex")
    assert -2 not in numbers
    calls = [call for _, call in numbers.values()]
    assert len(calls) == len(set(calls)) > 40


def sample(start: int, end: int, kind: str = "lock", tid: int = 7) -> Wait:
    return Wait(tid, start * MS, end * MS, cast(WaitKind, kind), kind)


def away(start: int, end: int, reason: str = "waited", runnable: int | None = None) -> OffCpu:
    return OffCpu(
        7, 0, 0, start * MS, end * MS, reason,  # type: ignore[arg-type]
        None if runnable is None else runnable * MS,
    )  # fmt: skip


def test_switches_tell_when_and_samples_what() -> None:
    samples = [sample(9, 12), sample(14, 30, "sleep"), sample(0, 99, "I/O", tid=8)]
    found = named_waits([away(8, 13), away(13, 40, runnable=35)], samples, "unseen")
    assert found == [
        Wait(7, 8 * MS, 13 * MS, "lock", "lock"), Wait(7, 13 * MS, 35 * MS, "sleep", "sleep"),
    ]  # fmt: skip


def test_a_wait_between_samples_is_called_as_one_near_it() -> None:
    samples = [sample(0, 2), sample(40, 41, "sleep")]
    found = named_waits([away(3, 4), away(20, 21), away(33, 34)], samples, "unseen")
    assert [one.what for one in found] == ["lock", "unseen", "sleep"]


def test_preempted_and_stopped_threads_wait_for_nothing() -> None:
    assert named_waits([away(0, 5, "preempted", 0), away(5, 9, "stopped")], [], "unseen") == []


def test_a_wait_before_a_stop_is_not_called_a_stop() -> None:
    (found,) = named_waits([away(3, 4)], [sample(5, 30, "stopped")], "unseen")
    assert (found.kind, found.what) == ("other", "unseen")


def test_a_stop_that_only_samples_see_takes_the_cpu_away() -> None:
    (stop,) = wait_evidence([Wait(7, 0, MS, "stopped", "stopped by a signal")])
    assert (stop.cause, stop.what) == ("descheduled", "stopped by a signal")
    (lock,) = wait_evidence([sample(0, 1)])
    assert lock.cause == "blocked"


def test_samples_are_read_as_they_are_printed() -> None:
    text = json.dumps({
        "per_s": 900.5, "lost": 2, "keys": [["-1", "handle_userfault", ""]],
        "runs": [[7, 5, 9, 0], [8, 1, 3, 0]],
    })  # fmt: skip
    seen = read_samples(text)
    assert (seen.per_s, seen.lost) == (900.5, 2)
    assert [(one.tid, one.start_ns, one.kind) for one in seen.waits] == [
        (8, 1, "page fault"), (7, 5, "page fault"),
    ]  # fmt: skip


def test_a_thread_that_waits_for_a_lock_is_seen_to() -> None:
    lock = threading.Lock()
    lock.acquire()
    waiter = threading.Thread(target=lock.acquire, daemon=True)
    waiter.start()
    tid = cast(int, waiter.native_id)
    try:
        watcher = WaitWatcher([tid])
    except NoWaits as reason:
        pytest.skip(str(reason))
    watcher.start()
    seen = watcher.stop()
    lock.release()
    waiter.join()
    assert [(one.tid, one.kind) for one in seen.waits][-1:] == [(tid, "lock")]
    assert (seen.lost, seen.per_s > 0) == (0, True)
    # A second end is no failure.
    watcher.close()


def test_what_cannot_be_read_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(NoWaits, match=r"neither .* nor wchan can be read"):
        WaitWatcher([1])


def test_a_process_that_cannot_look_is_refused_with_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no right to look')", encoding="utf-8")
    monkeypatch.setattr(waits_module, "_SCRIPT", broken)
    with pytest.raises(NoWaits, match="no right to look"):
        WaitWatcher([os.getpid()])
