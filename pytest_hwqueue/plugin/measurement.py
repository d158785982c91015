"""The ``hwq`` fixture: measures a workload of the suite, or a test's own code."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_hwqueue.data.errors import BadInput, NotApplicable, RecordError
from pytest_hwqueue.data.noise_names import NONE, noise_id
from pytest_hwqueue.data.records.cell import Cell, RunRecord, measured_again, now
from pytest_hwqueue.data.records.files import device_folder
from pytest_hwqueue.parts.devices.kinds import default_size, resolve_size
from pytest_hwqueue.parts.devices.torch_settings import (
    changed_settings,
    changes_in_words,
    torch_settings,
)
from pytest_hwqueue.parts.processes.launched import launched_rank
from pytest_hwqueue.parts.processes.unwatched import stop_coverage
from pytest_hwqueue.plugin.cells import (
    given_parameters,
    lean,
    measures_throughput,
    own_name,
    own_parameters,
    sample_plan,
    trace_plan,
)
from pytest_hwqueue.plugin.keys import ASSIGNMENT, NOISE, SETTINGS, SINK, Assignment, is_worker
from pytest_hwqueue.plugin.noise import under_noise
from pytest_hwqueue.plugin.ranks import ranks_together
from pytest_hwqueue.plugin.session import provenance

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pytest_hwqueue.data.records.noise import NoiseRound
    from pytest_hwqueue.parts.devices.protocol import Device, Stream
    from pytest_hwqueue.parts.schedulers.syntax import Scheduler
    from pytest_hwqueue.parts.workloads.own_function import FunctionWorkload, MakeStep
    from pytest_hwqueue.parts.workloads.workload import Workload


COMPARED_TIME_STRETCH = 3
"""A compared run may take so many times --hwq-max-time to reach its baseline's samples."""

# Gradients are usually switched off for a block, which ends, and `measure` goes by them.
_OF_A_BLOCK = ("is_grad_enabled", "is_inference_mode_enabled", "is_fwd_grad_enabled")

_EXAMPLES = (
    "; examples of Hypothesis are no runs of one cell: measure outside of @given, or give each "
    "example its name"
)


class Hwq:
    """Measures cells for one test. Each call is one record, on disk as soon as it is measured.

    Attributes:
        records: what this test has measured so far.

    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        device: Device,
        streams: int,
        scheduler: Scheduler,
        dispatch: str,
        noise: str,
    ) -> None:
        stash = request.config.stash
        self._request = request
        self._settings = stash[SETTINGS]
        self._assignment = stash.get(ASSIGNMENT, Assignment())
        self._device = device
        self._streams = streams
        self._scheduler = scheduler
        self._dispatch = dispatch
        self._noise = noise
        self._sink = stash[SINK]
        self._launched = launched_rank(os.environ)
        self._torch_settings = torch_settings()
        # Cells that this test has begun; why, where it may not have.
        self._begun: dict[str, str] = {}
        self.records: list[RunRecord] = []

    def run(self, workload: str | None = None, **parameters: Any) -> RunRecord:
        """Measure a workload of the suite; fail the test if it cannot be measured.

        Args:
            workload: its name; by default the one named by the test's ``hwq_workload`` mark.
            parameters: values for its parameters; ``--hwq-param`` takes precedence.

        Returns:
            the record, with every sample and all metrics.

        """
        from pytest_hwqueue.parts.workloads.registry import workload_class
        from pytest_hwqueue.parts.workloads.workload import Where, as_given, parameters_for

        if workload is None:
            mark = self._request.node.get_closest_marker("hwq_workload")
            if mark is None:
                raise ValueError("hwq.run() needs a workload's name, or a mark hwq_workload(name)")
            workload = mark.args[0]
        found = workload_class(workload)
        size = resolve_size(self._settings.size, self._device.kind)
        given = {**parameters, **given_parameters(self._settings, found)}
        values = parameters_for(found, size, given)

        def make(changed: Mapping[str, Any]) -> Workload:
            return found(values.model_copy(update=dict(changed)))

        variant = [f"{name}={value}" for name, value in as_given(values, given).items()]
        if size != default_size(self._device.kind):
            variant.insert(0, size)
        cell = self._cell(found.name, self._streams, size, values.model_dump(), "-".join(variant))
        urgency = found.urgency(self._streams)
        made = make({})
        ranks = ranks_together(None, self._device.label, None)
        try:
            made.require_applicable(Where(self._device.kind, self._streams, ranks, self._dispatch))
        except NotApplicable as error:
            pytest.skip(str(error))
        return self._measure(cell, made, make, urgency, found.family, found.mark)

    def measure(
        self,
        function: Callable[[], object] | MakeStep,
        *,
        streams: int | None = None,
        name: str = "",
        work: Mapping[str, float] | None = None,
        gradients: bool | None = None,
    ) -> RunRecord:
        """Measure your own function, called once per iteration on each stream.

        On an accelerator it enqueues kernels with that stream current and must not wait for them;
        on the CPU it runs on the stream's own thread.

        Args:
            function: called without arguments; or one that takes ``device``, ``streams`` and
                ``seed``, as a tenant's ``function`` does: it is called once for each stream, with
                that stream, and what is measured are the steps that it returns.
            streams: how many streams; by default the number in ``--hwq-streams``.
            name: distinguishes several measurements of one test.
            work: total work of one iteration, by unit, such as ``{"requests": 8}``.
            gradients: whether torch records autograd graphs, as a training step needs; by default
                as where this is called: it does, except inside ``torch.no_grad`` or
                ``torch.inference_mode``. Without gradients the function runs in inference mode.

        Returns:
            the record, with every sample and all metrics.

        """
        from pytest_hwqueue.parts.workloads.own_function import workload_of

        workload = workload_of(
            function, work, self._request.node.path.parent, gradients=_gradients(gradients)
        )
        return self._measure_own(workload, streams, name)

    def measure_streams(
        self,
        enqueue: Callable[[Sequence[Stream]], object],
        *,
        streams: int | None = None,
        name: str = "",
        work: Mapping[str, float] | None = None,
        urgency: Sequence[int] | None = None,
        tags: Sequence[str] = (),
        gradients: bool | None = None,
    ) -> RunRecord:
        """Measure your own iteration, which decides what each stream does.

        Args:
            enqueue: given the streams; enqueues one iteration through ``stream.launch(function,
                *arguments, tag=...)``, ``record`` and ``wait``, and never waits on the host.
            streams: how many streams; by default the number in ``--hwq-streams``.
            name: distinguishes several measurements of one test.
            work: total work of one iteration, by unit.
            urgency: of each stream's work (0 is normal, larger is more urgent), for schedulers with
                priorities.
            tags: names used in ``launch(tag=...)``; each gets its own latency distribution.
            gradients: as for `measure`.

        Returns:
            the record, with every sample and all metrics.

        """
        from pytest_hwqueue.parts.workloads.own_function import FunctionWorkload

        workload = FunctionWorkload(enqueue, work, tags, gradients=_gradients(gradients))
        return self._measure_own(workload, streams, name, urgency)

    def _measure_own(
        self,
        workload: FunctionWorkload,
        streams: int | None,
        name: str,
        urgency: Sequence[int] | None = None,
    ) -> RunRecord:
        count = self._streams if streams is None else streams
        node = self._request.node
        cell_name = own_name(node) + (f"::{name}" if name else "")
        cell = self._cell(cell_name, count, None, {}, own_parameters(node))
        return self._measure(cell, workload, None, urgency or [0] * count, None, None)

    def _cell(
        self, name: str, streams: int, size: str | None, parameters: dict[str, Any], variant: str
    ) -> Cell:
        ranks = "" if self._launched is None else f"{self._launched.size}ranks"
        own = self._request.node.stash.get(NOISE, None)
        noise = self._noise if own is None else own.running
        noise_part = "" if noise == NONE else noise_id(noise)
        variant = "-".join(filter(None, (ranks, variant, noise_part)))
        return Cell(
            name=name,
            device=self._device.label,
            streams=streams,
            scheduler=self._scheduler.mode,
            dispatch=self._dispatch,
            sync_mode=self._settings.sync_mode,
            cache=self._settings.cache,
            size=size,
            parameters=parameters,
            variant=variant,
        )

    def _measure(
        self,
        cell: Cell,
        workload: Workload,
        make: Callable[[Mapping[str, Any]], Workload] | None,
        urgency: Sequence[int],
        family: str | None,
        mark: str | None,
    ) -> RunRecord:
        from pytest_hwqueue.engine.causes.traced_cell import find_causes
        from pytest_hwqueue.engine.cell.cell import CellOrigin, CellRequest, Passes
        from pytest_hwqueue.engine.cell.closed_loop import Plan
        from pytest_hwqueue.engine.cell.ranks import RankGroup, measure_cell
        from pytest_hwqueue.engine.cell.runner import CellRunner
        from pytest_hwqueue.engine.cell.sample_plan import USUAL
        from pytest_hwqueue.engine.cell.stop_rule import StopRule
        from pytest_hwqueue.parts.schedulers.syntax import (
            impossible_split,
            unavailable_for_cell,
            unavailable_for_launchers,
        )

        settings, assignment = self._settings, self._assignment
        only_traced, planned = assignment.only_traced, assignment.planned.get(cell.id)
        stretch = 1 if planned is None else COMPARED_TIME_STRETCH
        refused = (
            unavailable_for_cell(self._scheduler, self._device.kind, urgency)
            or unavailable_for_launchers(self._scheduler, workload.launched_by)
            or impossible_split(self._scheduler, self._device, urgency)
        )
        if refused:
            pytest.skip(refused)
        traced = trace_plan(settings, only_traced)
        launched = self._launched
        # What is the same on all ranks is written by the first.
        writes = launched is None or launched.rank == 0
        iterations = 1 if only_traced else settings.iterations or USUAL
        request = CellRequest(
            cell=cell,
            workload=workload,
            urgency=urgency,
            plan=Plan(
                StopRule(iterations, int(settings.max_time * stretch * 1e9)),
                warmup=settings.warmup,
                sync_mode=settings.sync_mode,
                samples=None if only_traced else sample_plan(settings, planned),
            ),
            seed=settings.seed,
            origin=CellOrigin(
                nodeid=self._request.node.nodeid,
                family=family,
                mark=mark,
                command=self._sink.command,
                provenance=provenance(self._request.config),
                run=assignment.run,
                notes=tuple(assignment.notes),
            ),
            passes=Passes(
                lean=lean(settings, workload, assignment.run, in_baseline=self._in_baseline(cell)),
                throughput=measures_throughput(settings),
                find_causes=None if traced is None else partial(find_causes, traced),
                only_traced=only_traced,
                trace_folder=settings.profile_dir if settings.profile else None,
            ),
            make_workload=make,
            faults=settings.fault,
            record_folder=self._sink.folder if writes else None,
            noise=self._noise_runner(),
        )
        sink, session = self._sink, self._sink.session
        self._begin(cell, family, mark)
        if is_worker(self._request.config):
            # Of code of the user's: the session has a time limit, and covers what it runs itself.
            stop_coverage()
            faulthandler.cancel_dump_traceback_later()
        runner = CellRunner(
            self._device, self._scheduler, session.progress, session.confirm_scheduler
        )
        group = launched and RankGroup(
            launched, self._device, sink.key, len(self.records), settings.timeout
        )
        record, failure, of_ranks = measure_cell(runner, request, group, session)
        record = record.model_copy(update={"notes": [*record.notes, *self._note_settings()]})
        sink.keep_ranks(of_ranks)
        self.records.append(record.for_test())
        self._note_properties(record)
        sink.retire_process |= failure is not None and failure.retire_process
        # What is measured next gets a process in which nothing was traced.
        sink.retire_process |= self._device.profiled
        try:
            if writes:
                sink.record(record)
        except RecordError as error:
            pytest.fail(f"measured, but its record was not written: {error}", pytrace=False)
        if failure is not None:
            how = "is invalid" if failure.status == "invalid" else f"failed in {record.stage}"
            pytest.fail(f"{cell.id} {how}: {failure.reason}", pytrace=False)
        return self.records[-1]

    def _in_baseline(self, cell: Cell) -> bool:
        """Whether the session's baseline has the cell, of this device's model."""
        devices = self._assignment.compared_devices
        if cell.id not in self._assignment.planned or not devices:
            return cell.id in self._assignment.planned
        return device_folder(self._device.fingerprint().hard) in devices

    def _begin(self, cell: Cell, family: str | None, mark: str | None) -> None:
        """Fail the test if its cell has been measured before, and record why it has no figure."""
        nodeid, known = self._request.node.nodeid, self._begun.get(cell.id)
        refusal = f"{cell.id} is not measured: "
        if known:
            # Hypothesis repeats what has failed.
            pytest.fail(refusal + known, pytrace=False)
        try:
            if known is not None:
                examples = getattr(self._request.node.obj, "is_hypothesis_test", False)
                raise BadInput(measured_again(2) + (_EXAMPLES if examples else ""))
            self._sink.session.cell_begins(cell, nodeid)
            self._begun[cell.id] = ""
            return
        except BadInput as error:
            self._begun[cell.id] = reason = str(error)
        record = RunRecord(
            cell=cell, cell_id=cell.id, nodeid=nodeid, family=family, mark=mark,
            run=self._assignment.run, status="failed", reason=reason, stage="set-up",
            started=now(), duration_s=0.0, seed=self._settings.seed, command=self._sink.command,
            **provenance(self._request.config).fields(),
        )  # fmt: skip
        if self._launched is None or self._launched.rank == 0:
            self._sink.record(record)
        pytest.fail(refusal + reason, pytrace=False)

    def _noise_runner(self) -> Callable[[int], AbstractContextManager[list[NoiseRound]]] | None:
        """Return what runs a noise for a cell, or None if noise is irrelevant."""
        own = self._request.node.stash.get(NOISE, None)
        if own is not None:
            return own.around_cell if own.possible() else None
        if not self._settings.noise:
            return None
        return partial(under_noise, self._sink.session, self._noise)

    def _note_settings(self) -> list[str]:
        """Return a note on what the test, or the cell, has changed of torch's settings so far."""
        changes = [
            change
            for change in changed_settings(self._torch_settings, torch_settings())
            if not change.startswith(_OF_A_BLOCK)
        ]
        if not changes:
            return []
        then = (
            "the next test gets a fresh process, unless this one puts them back"
            if is_worker(self._request.config)
            else "what this process measures next has them, too (--hwq-isolation=none)"
        )
        return [f"torch's settings changed in this test: {changes_in_words(changes)}; {then}"]

    def _note_properties(self, record: RunRecord) -> None:
        """Expose the figures to JUnit and other reporters."""
        judged = record.metrics.judged
        if judged is None:
            return
        series = "pace" if record.has_pace else "latency"
        for name in ("p50", "p95", "p99"):
            figure = getattr(judged, name)
            if figure.value is not None:
                key = f"{record.cell_id}.{series}_{name}_{figure.unit}"
                self._request.node.user_properties.append((key, figure.value))


def _gradients(asked: bool | None) -> bool:
    """Return whether a test's own code records autograd graphs; by default as where it is called.

    Inference mode belongs to a thread, so a test's own block would not reach the CPU's streams.
    """
    import torch

    return torch.is_grad_enabled() if asked is None else asked
