"""The schema of records: what happened in one cell, with every sample. Plain data, no torch.

A record is one JSON file, written as soon as its cell is measured; a session is one JSON file
with all its records. Both carry the schema's version, and are published as JSON Schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from pytest_hwqueue.data.errors import RecordError, within
from pytest_hwqueue.data.metrics.contention import Contention
from pytest_hwqueue.data.metrics.estimate import Estimate, PlainData, data_in_utf8
from pytest_hwqueue.data.metrics.interference import LatencyRatioResult
from pytest_hwqueue.data.metrics.latency import LatencySummary
from pytest_hwqueue.data.metrics.launching import LaunchingCalls
from pytest_hwqueue.data.metrics.limits import LimitShare
from pytest_hwqueue.data.metrics.overlap import Bandwidth, OverlapEfficiency, TimelineSummary
from pytest_hwqueue.data.metrics.scaling import Scaling
from pytest_hwqueue.data.metrics.switching import QueueSwitch
from pytest_hwqueue.data.records.bounds import LatencyBounds
from pytest_hwqueue.data.records.counters import CpuCounters
from pytest_hwqueue.data.records.declared import ITERATION, PACE, DeclaredFigures, Primary
from pytest_hwqueue.data.records.files import record_path
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.data.records.noise import Causes
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.run import Repeatable, Run
from pytest_hwqueue.data.records.sealed import SealedData, contradictions, read_sealed, sealed
from pytest_hwqueue.data.records.telemetry import Telemetry
from pytest_hwqueue.data.safe_files import write_text

LAUNCH_BOUND = "bounded by launching from Python"
"""How the note of a launch-bound cell begins."""

Json = dict[str, Any]


class Cell(PlainData):
    """What is measured, and under which settings; the id is stable and readable."""

    name: str = Field(
        description="the workload's name; of the user's own test FILE::CLASS::TEST, FILE with its "
        "path from git's top"
    )
    device: str = Field(description="label of the device, such as cuda or cuda:1")
    streams: int
    scheduler: str
    dispatch: str
    sync_mode: str
    cache: Literal["hot", "cold"] = Field(
        default="hot",
        description="hot: as the iteration before has left the device's cache; cold: emptied "
        "before each iteration",
    )
    size: str | None = Field(description="size of the workload; null for the user's own test")
    parameters: Json = Field(default_factory=dict, description="all parameters, by name")
    variant: str = Field(
        default="", description="what else identifies it: settings that are not the default"
    )

    @property
    def id(self) -> str:
        """Such as ``hetero_kernels[cuda-s8-native-eager]``; what is not the default follows."""
        parts = [self.device, f"s{self.streams}", self.scheduler, self.dispatch]
        if self.sync_mode != "per_iteration":
            parts.append(self.sync_mode)
        if self.cache != "hot":
            parts.append(self.cache)
        if self.variant:
            parts.append(self.variant)
        return f"{self.name}[{'-'.join(parts)}]"


def measured_again(times: int) -> str:
    """Return why a cell has no figure that one test measured several times in a run."""
    return (
        f"it is measured {times} times in one run: give each a name of its own "
        "(hwq.measure(..., name=...))"
    )


class BackToBack(PlainData):
    """Blocks of iterations that were enqueued without waiting: what full queues carry."""

    blocks_ns: list[int] = Field(
        description="device time of each block, from the end of the block before"
    )
    iterations: int = Field(description="of each block")
    launching_ns: int = Field(
        description="time the host took to enqueue an iteration while no queue was full"
    )


class Samples(PlainData):
    """Every sample in the order it was taken, in nanoseconds."""

    host_ns: list[int] = Field(
        description="host-observed latency of each iteration; empty unless it was synchronised"
    )
    device_ns: list[int] = Field(
        description="device time of each iteration, from events; empty unless it was synchronised"
    )
    enqueue_ns: list[int] = Field(description="time the host took to enqueue each iteration")
    begun_ns: list[int] = Field(
        default_factory=list,
        description="how long after the time that all ranks had agreed on each iteration began; "
        "empty for one rank, and where ranks have no clock in common",
    )
    pace_ns: list[int] = Field(
        description="device time from one iteration's end to the next's; empty if synchronised"
    )
    back_to_back: BackToBack | None = Field(
        None, description="null where throughput is that of the iterations above"
    )
    tags_ns: dict[str, list[int]] = Field(
        default_factory=dict, description="latency of each tagged launch, ready to done, by tag"
    )
    tags_timed_by: Literal["events", "activity"] = Field(
        "events",
        description="events in the streams of the measured pass, or the activity records of the "
        "kernels in a traced pass, where events would make streams wait for each other",
    )
    contended: Contention | None = Field(
        None,
        description="how the judged launches were timed while all streams had work; null where "
        "the judged latency is no launch's",
    )
    launching: LaunchingCalls | None = Field(
        None,
        description="how launching calls were timed while a thread for each stream made them; null "
        "where the judged latency is none of a call",
    )
    tag_iterations: int | None = Field(
        None,
        description="iterations whose tagged launches were timed, equally many samples of a tag "
        "in each; null where no launch was",
    )
    references_ns: dict[str, list[int]] = Field(
        default_factory=dict, description="latencies of reference passes in the same run, by name"
    )
    reference_iterations_ns: dict[str, list[int]] = Field(
        default_factory=dict,
        description="device time of each iteration of the references that overlap is taken from",
    )

    def blocks_of(self, tag: str, primary: Primary) -> int | None:
        """Return how many blocks a tag's samples were taken in: windows, or iterations."""
        if self.launching is not None:
            return self.launching.windows
        if self.contended is not None and tag == primary.name:
            return self.contended.windows
        return self.tag_iterations

    def pace(self) -> tuple[int, list[int]]:
        """Return how long so many iterations take, time after time, in ns.

        That is of windows of launching threads, or of blocks enqueued without waiting, where they
        were measured; else of single iterations, from one's end to the next's where they overlap.
        """
        if self.launching is not None:
            return 1, self.launching.rounds_ns()
        if self.back_to_back is not None:
            return self.back_to_back.iterations, self.back_to_back.blocks_ns
        return 1, self.host_ns or self.pace_ns

    def back_to_back_shares(self) -> tuple[float, float] | None:
        """Return what bounds a throughput back to back, and what waiting for iterations costs.

        Returns:
            the share of an iteration that launching it takes as long as no queue is full; the share
            of its time that a device is idle if each iteration is waited for. None where iterations
            were not measured back to back.

        """
        blocks = self.back_to_back
        if blocks is None or not (sum(self.host_ns) and sum(blocks.blocks_ns)):
            return None
        iteration_ns = sum(blocks.blocks_ns) / len(blocks.blocks_ns) / blocks.iterations
        waited_ns = sum(self.host_ns) / len(self.host_ns)
        return blocks.launching_ns / iteration_ns, max(0.0, 1 - iteration_ns / waited_ns)


class WarmUp(PlainData):
    """How the cell was warmed up."""

    iterations: int
    iteration_ns: int = Field(description="median time of the last iterations, synchronised")
    stable: bool
    reason: str


class Metrics(PlainData):
    """Numbers with intervals; what could not be given stands in ``refused`` with the reason."""

    latency: LatencySummary | None = Field(
        None,
        description="the cell's primary latency: of what its user waits for; null where iterations "
        "are not waited for, which have a pace",
    )
    pace: LatencySummary | None = Field(
        None,
        description="time per iteration where none is waited for, from one's end to the next's: "
        "its percentiles are no latency's; null elsewhere",
    )
    iteration: LatencySummary | None = Field(
        None, description="of a whole iteration, seen by the host; null where it has a pace"
    )
    device_time: LatencySummary | None = Field(
        None, description="of a whole iteration, from events; null where it has a pace"
    )
    tags: dict[str, LatencySummary] = Field(
        default_factory=dict, description="of tagged launches, without the primary one's"
    )
    ratios: dict[str, LatencyRatioResult] = Field(default_factory=dict)
    throughput: list[Estimate] = Field(default_factory=list)
    overlap: OverlapEfficiency | None = Field(
        None, description="how much of communication and computation together was hidden"
    )
    bandwidth: Bandwidth | None = Field(None, description="of one rank's communication alone")
    memory_bytes: dict[str, int] = Field(default_factory=dict)
    timeline: TimelineSummary | None = None
    ready_to_start: QueueSwitch | None = Field(
        None, description="delay from ready to start of the cell's own kernels"
    )
    queue_switch: QueueSwitch | None = Field(
        None, description="the same of 50 µs kernels of one block, which fill no device"
    )
    limits: list[LimitShare] = Field(
        default_factory=list,
        description="shares of the device's own limits that the cell takes; empty on the CPU, for "
        "several ranks, and with --hwq-lean",
    )
    apart: dict[str, float] = Field(
        default_factory=dict,
        description="measured by the workload besides the samples, by name with its unit",
    )
    refused: dict[str, str] = Field(default_factory=dict)

    def without(self, name: str, reason: str) -> Metrics:
        """Return them with the reason why another one is missing."""
        return self.model_copy(update={"refused": {**self.refused, name: reason}})

    @property
    def nearest_limit(self) -> LimitShare | None:
        """The limit of the device of which the cell takes the greatest share, if any is known."""
        known = [each for each in self.limits if each.share.value is not None]
        return max(known, key=lambda each: each.share, default=None)

    @property
    def judged(self) -> LatencySummary | None:
        """By which the cell is judged: its primary latency, or its pace."""
        return self.pace if self.latency is None else self.latency


class RankPart(PlainData):
    """One of the processes that ran a cell together."""

    rank: int
    host: str
    device: str
    p50_ns: int = Field(description="median time of its iterations")
    slowest_share: float = Field(description="share of iterations in which it was the last")


class RanksSummary(PlainData):
    """How the processes that ran a cell together differed; the samples are the slowest rank's."""

    world_size: int
    backend: str = Field(description="what carries collectives, such as nccl or gloo")
    skew: LatencySummary | None = Field(
        None,
        description="time from the first rank's end of an iteration to the last's; null for one "
        "rank, and where iterations are not waited for",
    )
    apart: LatencySummary | None = Field(
        None,
        description="how far apart ranks began an iteration, which is timed from the last of "
        "them; null for one rank, and where it is not known: ranks of several hosts leave a "
        "barrier",
    )
    straggler: int | None = Field(
        None, description="rank that was last more often than chance explains; null if none was"
    )
    parts: list[RankPart] = Field(default_factory=list)


class RunRecord(LatencyBounds, Run):
    """What happened in one cell."""

    known_by: ClassVar[str] = "cell_id"

    schema_version: Literal[3] = 3
    cell: Cell
    cell_id: str
    nodeid: str = Field(description="pytest's name of the test")
    family: str | None = None
    mark: str | None = None
    iterations: int = 0
    failed_requests: int | None = Field(
        None,
        description="a tenant's requests that came to nothing; null where a cell ends with its "
        "first failure",
    )
    failed_for: dict[str, int] = Field(
        default_factory=dict, description="those that raised, by the three most frequent reasons"
    )
    stopped: str = Field("", description="the condition that ended the measuring")
    primary: Primary = Field(ITERATION, description="what one sample of the judged series is")
    definitions: dict[str, int] = Field(
        default_factory=dict,
        description="version of what each figure means; figures of two versions are not comparable",
    )
    launch_bound: bool = Field(
        False,
        description="the host was enqueueing for more than half of the time: launching from "
        "Python was measured, not the device's queues",
    )
    work_per_iteration: dict[str, float] = Field(default_factory=dict)
    warm_up: WarmUp | None = None
    samples: Samples | None = None
    metrics: Metrics = Field(default_factory=Metrics)
    scheduler_proof: Proof | None = None
    telemetry: Telemetry | None = None
    counters: CpuCounters | None = Field(
        None,
        description="context switches, waiting for a core and interrupts during the measured pass; "
        "null where nothing was measured, and on simulated devices, which use no threads; of "
        "several ranks, rank 0's",
    )
    causes: Causes | None = Field(
        None,
        description="why slow requests were slow, from a traced pass after the measured one; null "
        "without --hwq-causes=always; of several ranks, rank 0's",
    )
    declared: DeclaredFigures | None = Field(
        None, description="what the workload declares of its figures; null for a tenant"
    )
    ranks: RanksSummary | None = Field(
        None, description="where torch.distributed's group was used; world_size 1 is one process"
    )

    @property
    def simulated(self) -> bool:
        """Whether its figures are a model's, and none measured."""
        hard = {} if self.fingerprint is None else self.fingerprint.hard
        return capabilities_of(str(hard.get("device_kind", self.cell.device))).simulated

    @property
    def has_pace(self) -> bool:
        """Whether it is judged by its pace: no iteration was waited for."""
        return self.primary == PACE

    def judged_ns(self) -> list[int]:
        """Return the samples in ns that the cell is judged by, in order; empty if there are none.

        They are its primary latency's, or its pace's (`has_pace`).
        """
        samples = self.samples
        if samples is None:
            return []
        if self.has_pace:
            return samples.pace_ns
        if self.primary.per == "iteration":
            return samples.host_ns
        return samples.tags_ns.get(self.primary.name, [])


class SessionInfo(Repeatable):
    """The session that the records belong to."""

    id: str
    started: str
    finished: str | None = None
    interrupted: bool = False
    settings: Json
    left_out: list[str] = Field(default_factory=list, description="tests or runs, by --hwq-budget")


class SweepScaling(PlainData):
    """How the headline throughput of one cell scales over streams."""

    cells: list[str] = Field(description="ids of the records, by count of streams")
    scaling: Scaling


class SessionContent(SealedData):
    """What each file of a session has, whether it holds records or names their files."""

    schema_: str = Field(alias="schema")
    session: SessionInfo
    records: list[Json]
    scaling: list[SweepScaling] = Field(
        default_factory=list, description="of each cell measured at several counts of streams"
    )
    colocations: list[Json] | list[str] = Field(default_factory=list)
    judgements: list[Json] = Field(
        default_factory=list,
        description="what --hwq-compare or --hwq-against found, as in judgement.schema.json; "
        "exit_status is 1 if a verdict failed the session",
    )


class SessionFile(SessionContent):
    """All records of a session in one file."""

    schema_: Literal["pytest-hwqueue/session/2"] = Field("pytest-hwqueue/session/2", alias="schema")
    records: list[Json] = Field(
        description="RunRecords, each with its id as `cell` and its parts as `setting`"
    )
    colocations: list[Json] = Field(
        default_factory=list, description="ColocationRecords: every run of a scenario's tenants"
    )


def now() -> str:
    """Return the current time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def write_record(folder: Path, record: RunRecord) -> Path:
    """Write a record into ``folder``; return its path. RecordError if it cannot be written."""
    path = record_path(folder, record.cell_id)
    write_text(path, sealed(record.model_dump_json()))
    return path


def read_record(path: Path) -> RunRecord:
    """Read a record; RecordError names the file if it is damaged, truncated or foreign."""
    record, has_seal = read_sealed(path, RunRecord, "a record")
    if not has_seal:
        with within(str(path)):
            require_own_figures(record)
    return record


def require_own_figures(record: RunRecord) -> None:
    """Refuse a record whose latencies are not those of its samples.

    Raises:
        RecordError: with the first that is not.

    """
    samples, metrics = record.samples, record.metrics
    if samples is None:
        return
    series = [
        ("latency", metrics.latency, record.judged_ns()),
        ("pace", metrics.pace, samples.pace_ns),
        ("iteration", metrics.iteration, samples.host_ns),
        ("device_time", metrics.device_time, samples.device_ns),
        *(
            (f"tags.{tag}", summary, samples.tags_ns.get(tag, []))
            for tag, summary in metrics.tags.items()
        ),
    ]
    for name, summary, own in series:
        for wrong in () if summary is None else contradictions(name, summary, own):
            raise RecordError(f"its figures are not its samples': {wrong}; measure again")


def session_text(
    session: SessionInfo,
    records: Iterable[RunRecord],
    scaling: list[SweepScaling],
    colocations: Iterable[Json] = (),
    judgements: Sequence[Json] = (),
) -> str:
    """Return the session as JSON; in each record ``cell`` is the id and ``setting`` its parts.

    Holds one record at a time: a session's may be too many to hold them all.
    """
    file = SessionFile(session=session, records=[], scaling=scaling, judgements=list(judgements))
    lists: dict[str, Iterable[Json]] = {
        "records": map(_as_listed, records),
        "colocations": colocations,
    }
    parts = []
    for name, value in file.model_dump(mode="json", by_alias=True).items():
        listed = lists.get(name)
        text = (
            json.dumps(data_in_utf8(value))
            if listed is None
            else f"[{', '.join(json.dumps(each) for each in listed)}]"
        )
        parts.append(f"{json.dumps(name)}: {text}")
    return f"{{{', '.join(parts)}}}"


def _as_listed(record: RunRecord) -> Json:
    data = record.model_dump(mode="json")
    data["setting"] = data.pop("cell")
    return {"cell": data.pop("cell_id"), **data}
