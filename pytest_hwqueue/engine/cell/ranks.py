"""One cell on several ranks: their process group, and their records merged into the cell's.

A rank that fails leaves the others waiting in a collective, which nothing in their own process can
end. So each rank reports its failure in the store, a thread of every other rank watches for it
there and asks the process that follows this one to end it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from pytest_hwqueue.data.errors import DeviceError, HwqError
from pytest_hwqueue.data.figures.of_cell import NOTHING_DECLARED, summarise
from pytest_hwqueue.data.metrics.dependence import proportion_interval
from pytest_hwqueue.data.metrics.latency import CONFIDENCE, percentile, summarise_latency
from pytest_hwqueue.data.records.cell import BackToBack, RankPart, RanksSummary, RunRecord, Samples
from pytest_hwqueue.engine.cell.attempt import Failure
from pytest_hwqueue.engine.cell.cell import CellRequest
from pytest_hwqueue.engine.cell.closed_loop import RankSynchronisation
from pytest_hwqueue.engine.cell.runner import CellRunner
from pytest_hwqueue.parts.devices.fingerprint import of_processes
from pytest_hwqueue.parts.devices.lease import lease
from pytest_hwqueue.parts.devices.protocol import Device
from pytest_hwqueue.parts.processes.launched import (
    LaunchedRank,
    connect,
    failures,
    in_words,
    tell_failure,
)
from pytest_hwqueue.parts.workloads.workload import Ranks

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


# How long the other ranks of one that failed may take to come to an end of their own.
_GRACE_S = 3.0
# Longer, so that rank 0 has sent the others the cell's outcome.
_PATIENCE_S = 8.0
_LOOK_S = 0.3

# Ranks leave a collective of gloo within 10 µs of each other at P50, within 300 at P99. A rank that
# comes too late for what it agreed to asks for twice as long from then on.
LEAD_NS, LONGEST_LEAD_NS = 500_000, 8_000_000
# So much of the lead is spent looking at the clock: a sleep ends late by the timer's slack.
_SPIN_NS = 200_000


def open_group_of_one(device: Device) -> None:
    """Open the default group for this process alone.

    Torch's fake backend, whose collectives take tensors without values, has its own store.
    """
    store: Store = HashStore()
    backend = device.capabilities.collectives
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store = FakeStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1, **_bound_to(device))


@contextmanager
def group_of_one(device: Device) -> Iterator[None]:
    """Open the default group for this process alone, for the ``with`` block.

    Reuses a group of one that the process already has.

    Raises:
        DeviceError: if the process has a group of several.

    """
    if dist.is_initialized():
        if dist.get_world_size() > 1:
            raise DeviceError(
                f"this process has opened a process group of {dist.get_world_size()} ranks itself: "
                "leave that to pytest-hwqueue, under torchrun or with --hwq-ranks"
            )
        yield
        return
    open_group_of_one(device)
    try:
        yield
    finally:
        dist.destroy_process_group()


class AgreedBegin:
    """Lets ranks begin at one time of their common clock.

    Ranks leave a barrier one after the other, and those that left first would wait for the last in
    the first collective they measure.

    Attributes:
        lead_ns: how long after it has come this rank proposes to begin.

    """

    def __init__(
        self, latest: Callable[[int], int], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Take what exchanges proposals.

        Args:
            latest: returns the latest time (ns) that any rank proposes, given this one's.
            sleep: waits for so many seconds, or a little longer.

        """
        self._latest, self._sleep = latest, sleep
        self.lead_ns = LEAD_NS

    def wait(self, clock_ns: Callable[[], int]) -> int:
        """Return at the latest time that any rank proposes; at once if this one comes too late."""
        begin_ns = self._latest(clock_ns() + self.lead_ns)
        left_ns = begin_ns - clock_ns()
        if left_ns < 0:
            self.lead_ns = min(2 * self.lead_ns, LONGEST_LEAD_NS)
        elif left_ns > _SPIN_NS:
            self._sleep((left_ns - _SPIN_NS) / 1e9)
        while clock_ns() < begin_ns:
            pass
        return begin_ns


class RankGroup(RankSynchronisation):
    """This rank among those that measure a cell."""

    def __init__(
        self, launched: LaunchedRank, device: Device, test: str, cell: int, timeout_s: float
    ) -> None:
        """Take the group's parts; `join` forms it.

        Args:
            launched: this process's rank.
            device: the device that this rank measures.
            test: name of the test, the same on all ranks and unique in this session.
            cell: number of the cell in its test.
            timeout_s: time limit for a cell.

        """
        self.ranks = Ranks(launched.rank, launched.size)
        self.backend = device.capabilities.collectives
        self._launched, self._device, self._test, self._cell = launched, device, test, cell
        # Later than the session ends a cell that hangs, with every thread's stack.
        self._timeout = timedelta(seconds=1.5 * timeout_s)
        self._settled = threading.Event()
        # Until all ranks have come to a good end.
        self._broken = True
        # With a common clock.
        self._agreed_begin: AgreedBegin | None = None

    @contextmanager
    def watched(self, on_failure: Callable[[str, str], None]) -> Iterator[None]:
        """Watch the other ranks during the ``with`` block; leave the group at its end.

        Args:
            on_failure: called in a separate thread if another rank has failed and this one does not
                end either, with what happened and all ranks' last output.

        """
        # A test that has failed is over for all its ranks: failures are kept by test.
        self._told = connect(self._launched, self._test)
        self._store = PrefixStore(f"cell-{self._cell}", self._told)
        watcher = threading.Thread(
            target=self._watch, args=(on_failure,), name="hwq-ranks", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            self._settled.set()
            watcher.join()
            # Where a rank has failed this could wait for it without end, and the process is to go.
            if dist.is_initialized() and not self._broken:
                dist.destroy_process_group()

    @contextmanager
    def join(self) -> Iterator[None]:
        """Join the group; it lasts until the cell's record is settled."""
        dist.init_process_group(
            # A barrier, and what is agreed on, must not occupy the device: gloo carries them.
            "gloo" if self.backend == "gloo" else f"cpu:gloo,cuda:{self.backend}",
            store=PrefixStore("group", self._store),
            rank=self.ranks.rank,
            world_size=self.ranks.size,
            timeout=self._timeout,
            **_bound_to(self._device),
        )
        self._control = dist.new_group(backend="gloo", timeout=self._timeout)
        self._check_devices()
        if len(set(self._of_each("clock", clock_in_use(self.ranks.rank)))) == 1:
            self._agreed_begin = AgreedBegin(self._latest)
        yield

    def agreed(self, value: int) -> int:
        """Return rank 0's value."""
        shared = torch.tensor(int(value), dtype=torch.int64)
        dist.broadcast(shared, 0, group=self._control)
        return int(shared)

    def barrier(self) -> None:
        """Return once all ranks have arrived here."""
        dist.barrier(group=self._control)

    def begin(self, clock_ns: Callable[[], int]) -> int | None:
        """Return at a time that all ranks agreed on, once all are here; None after a barrier."""
        if self._agreed_begin is not None:
            return self._agreed_begin.wait(clock_ns)
        self.barrier()
        return None

    def _latest(self, proposed_ns: int) -> int:
        """Return the latest time that any rank proposes."""
        shared = torch.tensor(proposed_ns)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self._control)
        return int(shared)

    def settle(
        self, record: RunRecord, failure: Failure | None
    ) -> tuple[RunRecord, Failure | None, list[RunRecord]]:
        """Return the cell's record and failure, the same on every rank; on rank 0 also each rank's.

        Args:
            record: this rank's.
            failure: this rank's, if it failed.

        """
        store, rank = self._store, self.ranks.rank
        if failure is not None:
            tell_failure(self._told, rank, failure.reason)
        store.set(f"record/{rank}", record.model_dump_json())
        if rank == 0:
            result = self._settled_by_first()
            store.set("settled", result[0].model_dump_json())
            return result
        return self._as_first_settled()

    def _settled_by_first(self) -> tuple[RunRecord, Failure | None, list[RunRecord]]:
        size = self.ranks.size
        keys = [f"record/{rank}" for rank in range(size)]
        own = RunRecord.model_validate_json(self._store.get(keys[0]))
        deadline = time.monotonic() + self._timeout.total_seconds()
        graced = False
        while not self._store.check(keys) and time.monotonic() < deadline:
            if not graced and failures(self._told, size):
                graced, deadline = True, time.monotonic() + _GRACE_S
            time.sleep(_LOOK_S / 3)
        failed = failures(self._told, size)
        there = [rank for rank in range(size) if self._store.check([keys[rank]])]
        records = [RunRecord.model_validate_json(self._store.get(keys[rank])) for rank in there]
        if not failed and len(there) < size:
            absent = sorted(set(range(size)) - set(there))
            failed = [(rank, "nothing was heard of it", "") for rank in absent]
        if not failed:
            try:
                merged = merge(records, self.backend)
            except HwqError as error:
                failed = [(0, str(error), "")]
            else:
                self._broken = False
                return merged, None, records
        reason, _ = in_words(failed)
        status = next((r.status for r in records if r.status not in ("ok", "failed")), "failed")
        update = {"status": status, "reason": reason, "stage": own.stage or "ranks"}
        broken = own.model_copy(update=update)
        return broken, Failure(reason, retire_process=True), records

    def _as_first_settled(self) -> tuple[RunRecord, Failure | None, list[RunRecord]]:
        self._store.wait(["settled"], self._timeout)
        record = RunRecord.model_validate_json(self._store.get("settled"))
        if record.status != "ok":
            return record, Failure(record.reason, retire_process=True), []
        self._broken = False
        return record, None, []

    def _check_devices(self) -> None:
        """Refuse ranks that share an accelerator: each must have its own."""
        if self._device.capabilities.host:
            return
        keys = self._of_each("device", str(self._device.lease_key))
        for rank, key in enumerate(keys):
            if key in keys[:rank]:
                raise DeviceError(
                    f"ranks {keys.index(key)} and {rank} have the same accelerator {key}: start "
                    "at most one rank for each that is visible"
                )

    def _of_each(self, what: str, own: str) -> list[str]:
        """Return what each rank says of itself, in the order of the ranks."""
        self._store.set(f"{what}/{self.ranks.rank}", own)
        return [self._store.get(f"{what}/{rank}").decode() for rank in range(self.ranks.size)]

    def _watch(self, on_failure: Callable[[str, str], None]) -> None:
        # A connection of its own: one that waits holds up all other requests.
        store = connect(self._launched, self._test)
        since: float | None = None
        while not self._settled.wait(_LOOK_S):
            failed = failures(store, self.ranks.size)
            if any(rank != self.ranks.rank for rank, _, _ in failed):
                since = since or time.monotonic()
            if since is not None and time.monotonic() - since > _PATIENCE_S:
                on_failure(*in_words(failed))
                return


def clock_in_use(rank: int, proc: Path = Path("/proc")) -> str:
    """Return what processes that read the same clock have in common: host, boot, time namespace.

    Where that is not known, each rank has a clock of its own.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink(proc / 'self/ns/time')}"
    except OSError:
        return f"unknown clock of rank {rank}"


def _bound_to(device: Device) -> dict[str, Any]:
    """Bind the group to an accelerator, so that its collectives never guess."""
    return {"device_id": device.torch_device} if device.capabilities.collectives == "nccl" else {}


class RankSession(Protocol):
    """What measuring a cell on its rank asks of the session that follows this process."""

    def rank_failed(self, reason: str, detail: str) -> None:
        """End this process: another rank has failed, and this one will not end by itself."""

    def keep_device(self, key: str) -> None:
        """Take a device, and keep it."""

    def waits_for_device(self, text: str) -> None:
        """Another session holds the device, as the text says; empty once it no longer does."""


def measure_cell(
    runner: CellRunner,
    request: CellRequest,
    group: RankGroup | None,
    session: RankSession,
) -> tuple[RunRecord, Failure | None, list[RunRecord]]:
    """Measure a cell; return its record, the failure if there was one, and rank 0's of each rank.

    Args:
        runner: measures it on this process's device.
        request: what to measure.
        group: this process's rank among others; None if it is alone.
        session: follows this process.

    """
    first = group is None or group.ranks.rank == 0
    with _leased(runner.device, session, first=first):
        if group is None:
            return (*measure_alone(runner, request), [])
        with group.watched(session.rank_failed):
            plan = replace(request.plan, rank_sync=group)
            joined = replace(request, plan=plan, group=group.join)
            return group.settle(*runner.run(joined))


def measure_alone(runner: CellRunner, request: CellRequest) -> tuple[RunRecord, Failure | None]:
    """Measure a cell in this process alone; a workload with collectives gets a group of one."""
    if not request.workload.collective:
        return runner.run(request)
    record, failure = runner.run(replace(request, group=lambda: group_of_one(runner.device)))
    alone = RanksSummary(world_size=1, backend=runner.device.capabilities.collectives)
    return record.model_copy(update={"ranks": alone}), failure


@contextmanager
def _leased(device: Device, session: RankSession, *, first: bool) -> Iterator[None]:
    """Take the device's lease, if it needs one. Ranks may share the CPU: rank 0 leases it for all.

    Other ranks have devices that their session does not know of; each is held for its cell.
    """
    if device.lease_key is None or (device.capabilities.host and not first):
        session.waits_for_device("")
        yield
        return
    if first:
        session.keep_device(device.lease_key)
    with lease(device.lease_key, on_wait=session.waits_for_device):
        session.waits_for_device("")
        yield


_SERIES = ("host_ns", "device_ns", "enqueue_ns", "begun_ns", "pace_ns")


def merge(records: Sequence[RunRecord], backend: str) -> RunRecord:
    """Return the cell's record from those of all ranks, in the order of the ranks.

    An iteration lasts from when its last rank has begun to when its last one has ended; where ranks
    have no clock in common it is as long as its slowest rank's. Measurements of a single device
    (timeline, queue switch, a workload's separate measurements) are rank 0's.

    Args:
        records: one per rank, all with samples.
        backend: torch.distributed's name for the backend of the collectives.

    Raises:
        HwqError: if the ranks did not measure the same iterations.

    """
    of_rank = [record.samples for record in records if record.samples is not None]
    if len(of_rank) < len(records):
        raise HwqError("a rank measured nothing")
    refused: dict[str, str] = {}
    first = records[0]
    samples = _slowest(of_rank, refused)
    if contended := [part for part in of_rank if part.contended is not None]:
        samples = _slowest_contended(samples, contended, first.primary.name)
        refused.pop(first.primary.name, None)
    declared = first.declared or NOTHING_DECLARED
    missing = {**first.metrics.refused, **refused}
    metrics = summarise(samples, first.work_per_iteration, declared, first.primary, missing)
    metrics = metrics.model_copy(
        update={
            "memory_bytes": _most([record.metrics.memory_bytes for record in records]),
            "timeline": first.metrics.timeline,
            "ready_to_start": first.metrics.ready_to_start,
            "queue_switch": first.metrics.queue_switch,
            "apart": first.metrics.apart,
            "throughput": [] if "throughput" in metrics.refused else metrics.throughput,
        }
    )
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    if samples.host_ns and not samples.begun_ns:
        notes.append(
            "ranks of several hosts have no clock in common: iterations begin after a barrier, and "
            "how far apart ranks leave it stands in their latency"
        )
    fingerprint = first.fingerprint
    if fingerprint is not None:
        by_rank = {f"rank {rank}": each.fingerprint for rank, each in enumerate(records)}
        fingerprint = of_processes(fingerprint, by_rank)
    return first.model_copy(
        update={
            "samples": samples,
            "metrics": metrics,
            "fingerprint": fingerprint,
            "ranks": _summary(records, of_rank, backend),
            "notes": [*notes, "timeline, queue switch and counters of the CPU: those of rank 0"],
        }
    )


def _slowest(parts: Sequence[Samples], refused: dict[str, str]) -> Samples:
    """Take the longest time of all ranks for each iteration, tagged launch and reference.

    A rank that begins early waits in its first collective for the last one to begin.
    """
    series = {}
    for name in _SERIES:
        values = [getattr(part, name) for part in parts]
        lengths = [len(each) for each in values]
        if len(set(lengths)) > 1:
            raise HwqError(f"the ranks took {_counts(lengths)} samples of {name}")
        series[name] = _longest(values) if name != "pace_ns" else _between_last_ends(values)
    if series["begun_ns"]:
        early_ns = _waited_for_last([part.begun_ns for part in parts])
        for name in ("host_ns", "device_ns"):
            times_ns = np.array([getattr(part, name) for part in parts], dtype=np.int64)
            series[name] = _longest(np.maximum(times_ns - early_ns, 1))
    named: dict[str, dict[str, list[int]]] = {}
    for name in ("tags_ns", "references_ns", "reference_iterations_ns"):
        named[name] = {}
        for key in getattr(parts[0], name):
            values = [getattr(part, name).get(key, []) for part in parts]
            lengths = [len(each) for each in values]
            if len(set(lengths)) > 1:
                refused[key] = f"the ranks timed {_counts(lengths)} launches of it"
                continue
            named[name][key] = _longest(values)
    return Samples(
        **series,
        **named,
        tags_timed_by=parts[0].tags_timed_by,
        tag_iterations=parts[0].tag_iterations,
        back_to_back=_slowest_blocks([part.back_to_back for part in parts if part.back_to_back]),
    )


def _slowest_contended(samples: Samples, parts: Sequence[Samples], judged: str) -> Samples:
    """Take the judged launches of the rank that was slowest, whole: ranks do not share windows."""
    slowest = max(parts, key=lambda part: percentile(part.tags_ns[judged], 0.99))
    tags_ns = {**samples.tags_ns, judged: slowest.tags_ns[judged]}
    return samples.model_copy(update={"tags_ns": tags_ns, "contended": slowest.contended})


def _slowest_blocks(parts: Sequence[BackToBack]) -> BackToBack | None:
    """Return the time between the last ranks' ends of blocks; all ranks measured some, or none."""
    if not parts:
        return None
    return BackToBack(
        blocks_ns=_between_last_ends([part.blocks_ns for part in parts]),
        iterations=parts[0].iterations,
        launching_ns=max(part.launching_ns for part in parts),
    )


def _summary(records: Sequence[RunRecord], parts: Sequence[Samples], backend: str) -> RanksSummary:
    waited_for = bool(parts[0].host_ns)
    times = np.array([part.host_ns or part.pace_ns for part in parts], dtype=np.int64)
    begun_ns = np.array([part.begun_ns for part in parts], dtype=np.int64)
    ends = times if waited_for else times.cumsum(axis=1)
    if begun_ns.size:
        ends = times + begun_ns
    slowest = np.bincount(ends.argmax(axis=0), minlength=len(parts))
    iterations = times.shape[1]
    most = int(slowest.argmax())
    # The rank was chosen as the greatest of all: each could have been (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / len(parts)
    low, _ = proportion_interval(int(slowest[most]), iterations, confidence)
    skew_ns = ends.max(axis=0) - ends.min(axis=0)
    apart_ns = (begun_ns.max(axis=0) - begun_ns.min(axis=0)).tolist()
    return RanksSummary(
        world_size=len(parts),
        backend=backend,
        skew=summarise_latency(skew_ns.tolist()) if waited_for else None,
        apart=summarise_latency(apart_ns) if apart_ns else None,
        straggler=most if low > 1 / len(parts) else None,
        parts=[
            RankPart(
                rank=rank,
                host=str(fingerprint.soft.get("host_name", "")) if fingerprint else "",
                device=str(fingerprint.hard.get("device_name", "")) if fingerprint else "",
                p50_ns=int(np.median(times[rank])),
                slowest_share=float(slowest[rank] / iterations),
            )
            for rank, fingerprint in enumerate(record.fingerprint for record in records)
        ],
    )


def _between_last_ends(values: Sequence[Sequence[int]]) -> list[int]:
    """Return the times from one iteration's end on its last rank to the next one's.

    All begin together. The longest time of each would add up to more than any rank took.
    """
    ends = np.cumsum(np.array(values, dtype=np.int64), axis=1).max(axis=0)
    between: list[int] = np.diff(ends, prepend=0).tolist()
    return between


def _waited_for_last(begun_ns: Sequence[Sequence[int]]) -> np.ndarray:
    """Return how long before the last rank each one began, by rank and iteration."""
    begun = np.array(begun_ns, dtype=np.int64)
    waited: np.ndarray = begun.max(axis=0) - begun
    return waited


def _longest(values: Sequence[Sequence[int]] | np.ndarray) -> list[int]:
    longest: list[int] = np.array(values, dtype=np.int64).max(axis=0).tolist()
    return longest


def _most(values: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for each in values for name in each)
    return {name: max(each[name] for each in values if name in each) for name in names}


def _counts(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))
