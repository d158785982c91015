"""Counters of the kernel, where processes stand with its scheduler, and how much a core does."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.records.noise import Done, Placement
from pytest_hwqueue.engine.noise.evidence import (
    MachineReading,
    core_speed,
    counts,
    done_between,
    machine_between,
    misplaced,
    placement,
    read_machine,
    read_processes,
)

_INTERRUPTS = """\
           CPU0       CPU1
  1:          9          0   IO-APIC   1-edge      i8042
 24:        100        200   PCI-MSI 65536-edge      virtio0-config
LOC:       1000       2000   Local timer interrupts
ERR:          3
"""


@given(
    st.dictionaries(
        st.text("ABZ_", min_size=2, max_size=8),
        st.lists(st.integers(0, 2**63), min_size=3, max_size=3),
    )
)
def test_interrupts_are_summed_over_cores_and_devices(rows: dict[str, list[int]]) -> None:
    assert counts(_INTERRUPTS) == {"device": 309, "LOC": 3000, "ERR": 3}
    lines = [f"{name}: {' '.join(map(str, numbers))}" for name, numbers in rows.items()]
    table = "\n".join(["   CPU0 CPU1 CPU2", *lines])
    assert counts(table) == {name: sum(numbers) for name, numbers in rows.items()}
    assert counts("") == {}


def test_what_this_machine_did_in_between() -> None:
    before = read_machine()
    machine = machine_between(before, read_machine(), 1.0)
    assert set(machine.pressure_share) == set(before.pressure_s)
    assert all(count > 0 for count in (*machine.softirqs.values(), *machine.interrupts.values()))
    # What is missing is missing, not 0.
    for name in ("cpu", "io", "memory"):
        assert (name in machine.pressure_share) != (f"pressure.{name}" in machine.missing)
    before = MachineReading({"cpu": 1.0}, {"NET_RX": 5, "BLOCK": 1}, {"LOC": 7}, 1.0, {})
    after = MachineReading({"cpu": 2.0}, {"NET_RX": 9, "BLOCK": 1}, {"LOC": 9}, 1.25, {})
    machine = machine_between(before, after, 4.0)
    assert (machine.pressure_share, machine.softirqs) == ({"cpu": 0.25}, {"NET_RX": 4})
    assert (machine.interrupts, machine.steal_s) == ({"LOC": 2}, 0.25)


def test_a_hidden_file_is_missing_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text("some avg10=0.00 total=5\n")
    # As containers hide files.
    (tmp_path / "pressure" / "io").mkdir()
    (tmp_path / "interrupts").touch()
    reading = read_machine(tmp_path)
    machine = machine_between(reading, reading, 1.0)
    assert machine.missing["pressure.io"] == f"{tmp_path}/pressure/io: Is a directory"
    assert machine.missing["pressure.memory"].endswith("memory: No such file or directory")
    assert machine.missing["interrupts"] == f"{tmp_path}/interrupts is empty"
    assert machine.pressure_share.keys() == {"cpu"}
    assert machine.interrupts == {}


def test_a_process_that_computes_and_writes_is_read_until_it_has_ended() -> None:
    # More than an interpreter reads at its start; what it writes last shows that the rest is done.
    work = "import os, sys; os.write(1, bytes(1 << 23)); os.write(1, b'!'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read((1 << 23) + 1).endswith(b"!")
        done = done_between({}, read_processes([process.pid]))
        process.communicate()
    assert (done.on_cpu_s or 0) > 0
    assert (done.handed_over_bytes or 0) >= 1 << 23
    assert (read_processes([process.pid]), placement(process.pid)) == ({}, None)
    assert os.getpid() in read_processes([os.getpid()])


COUNTS = st.integers(0, 2**40)
READING = st.builds(
    Done, on_cpu_s=COUNTS, waiting_s=COUNTS, handed_over_bytes=COUNTS, disk_written_bytes=COUNTS
)


@given(st.dictionaries(st.integers(1, 9), READING, min_size=1), READING, READING)
def test_only_what_came_in_between_counts(before: dict[int, Done], more: Done, new: Done) -> None:
    def added(one: Done, two: Done) -> Done:
        return Done(**{name: value + getattr(two, name) for name, value in one})

    pid = min(before)
    now = added(before[pid], more)
    # The others have ended, and one has come.
    assert done_between(before, {pid: now, 10: new}) == added(more, new)
    # What one process hides is unknown of all.
    hidden = now.model_copy(update={"handed_over_bytes": None, "disk_written_bytes": None})
    done = done_between({1: now, 2: hidden}, {1: now, 2: hidden})
    assert (done.on_cpu_s, done.waiting_s) == (0.0, 0.0)
    assert (done.handed_over_bytes, done.disk_written_bytes) == (None, None)
    assert done_between({}, {}).on_cpu_s is None


def test_where_this_process_stands() -> None:
    place = placement(os.getpid())
    assert place is not None
    assert (place.session, place.nice) == (os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0))
    assert place.cores == sorted(os.sched_getaffinity(0))


def at(session: int = 1, cores: Sequence[int] = (0, 1)) -> Placement:
    return Placement(
        session=session, autogroup=None, cgroup=None, cpu_weight=None, nice=0, cores=list(cores)
    )


@pytest.mark.parametrize(("measured", "neighbour", "autogroup", "kept_free", "reason"), [
    *((at(), at(cores=(1, 2)), autogroup, [], None) for autogroup in (True, False, None)),
    # Sessions matter only with autogroups.
    (at(1), at(2), True, [], "it runs in its own session"),
    (at(1), at(2), False, [], None),
    (at(1), at(2), None, [], None),
    (at(cores=(0,)), at(cores=(1, 2)), False, [],
     "it may run on cores 1, 2, what is measured on 0: they never meet"),
    # Cores that were to be kept free.
    (at(cores=(3,)), at(cores=(0, 2)), False, [1, 3], None),
    (at(cores=(3,)), at(cores=(0, 1)), False, [1, 3],
     "it may run on cores 1, which were to be kept free of it"),
    (at(cores=(3,)), at(cores=range(4)), False, [1, 3],
     "it may run on cores 1, 3, which were to be kept free of it"),
    (at(cores=(3,)), at(2, cores=(0,)), True, [1, 3], "it runs in its own session"),
])  # fmt: skip
def test_a_neighbour_that_cannot_contend_as_intended_is_misplaced(
    measured: Placement, neighbour: Placement, autogroup: bool | None, kept_free: list[int],
    reason: str | None,
) -> None:  # fmt: skip
    found = misplaced(measured, neighbour, autogroup, kept_free)
    assert found is None if reason is None else (found or "").startswith(reason)


def test_rounds_are_held_against_cpu_time() -> None:
    # A thousand rounds between two looks at the clock, until 0.1 s is over.
    clock = itertools.count(123, 7_000_000)
    assert core_speed(clock.__next__) == pytest.approx(14_000 * 1e9 / 105_000_000)


def test_a_thread_that_sleeps_is_no_slower_core() -> None:
    """Time without a core is no CPU time: whoever is switched out has the same speed."""
    took_ns: list[int] = []

    def reading() -> int:
        time.sleep(0.001)
        took_ns.append(time.thread_time_ns())
        return took_ns[-1]

    begin = time.monotonic_ns()
    core_speed(reading, 5_000_000)
    assert took_ns[-1] - took_ns[0] < (time.monotonic_ns() - begin) / 2
