"""Tenants that run together on a real device, and serve one window or several.

The parent takes the device's lease, and starts the scheduler's services and the tenants. For each
window it waits until all are warm, announces it on the clock that all processes share
(CLOCK_MONOTONIC), watches while they serve, and collects proof while they are still alive. It ends
them in every case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import BadInput, NotProven
from pytest_hwqueue.data.metrics.interference import PriorityEffect
from pytest_hwqueue.data.noise_names import seconds_of_a_cell
from pytest_hwqueue.data.records.plan import FEWER_KERNELS, Colocation
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.engine.cell.attempt import RunEnded
from pytest_hwqueue.engine.noise.neighbours import Noise
from pytest_hwqueue.engine.noise.running import RunningNoise, running
from pytest_hwqueue.engine.tenants.identified import identify
from pytest_hwqueue.engine.tenants.looks import CAN_SHOW, Decided, Look, Watch, served_all_ns
from pytest_hwqueue.engine.tenants.open_loop import Window
from pytest_hwqueue.engine.tenants.server_processes import ServerProcesses
from pytest_hwqueue.engine.tenants.tenant_calls import NextWindow
from pytest_hwqueue.engine.tenants.tenant_processes import ColocationDraft, Limits, TenantProcesses
from pytest_hwqueue.parts.devices.conditions import watched
from pytest_hwqueue.parts.devices.energy import COUNTED_KINDS, EnergyMeter, energy_meter
from pytest_hwqueue.parts.devices.fingerprint import of_processes
from pytest_hwqueue.parts.devices.lease import lease
from pytest_hwqueue.parts.processes.starting import ForkServer
from pytest_hwqueue.parts.schedulers.priority_probe import probe_priority
from pytest_hwqueue.parts.schedulers.syntax import Scheduler, tenant_requests

# Stage, how much of it is done, how much there is to do.
Progress = Callable[[str, int, int], None]

# From the word to all tenants, of whom none sends anything meanwhile, until the window begins.
LEAD_NS = 500_000_000
_SHOW_S = 0.2
_LIMITS = Limits()
_NOT_ASKED = Provenance()
# Before each further window. Its tenants have been warm, and were idle while the last was judged.
_WARM_AGAIN_S = 0.5


@dataclass
class TenantSetting:
    """How tenants are run, whichever they are.

    Attributes:
        scheduler: the mode of the plans, open, or why it cannot be opened.
        progress: receives the stage, how much of it is done, and its total.
        folder: receives the records, and a folder with the output of tenants and services.
        limits: how long tenants may take before they count as hanging.
        command: repeats this run; for the records.
        provenance: for the records.
        traced: also find out why tenants' slow requests were slow; the times are then not a result,
            and there is one window.
        noise: the plan's, opened, or that of the quiet; None if no noise is compared. With one
            there is one window.
        server: forks the tenants that need no special environment.

    """

    scheduler: Scheduler | BadInput
    progress: Progress
    folder: Path
    limits: Limits = _LIMITS
    command: str = ""
    provenance: Provenance = _NOT_ASKED
    traced: bool = False
    noise: Noise | None = None
    server: ForkServer | None = None

    @property
    def mode(self) -> Scheduler:
        """The open mode; RunEnded if it cannot be opened."""
        if isinstance(self.scheduler, BadInput):
            raise RunEnded("failed", str(self.scheduler))
        return self.scheduler


@dataclass
class LivingTenants:
    """Tenants on a real device, from their start to their end.

    Attributes:
        plan: who runs, and how, in the current window.
        setting: how they are run.
        folder: for the output of tenants and services, and their traces.
        draft: receives what becomes known in the current window.

    """

    plan: Colocation
    setting: TenantSetting
    folder: Path
    draft: ColocationDraft

    def __post_init__(self) -> None:
        self.scheduler, self.limits = self.setting.mode, self.setting.limits
        self.servers = ServerProcesses(self.plan, self.scheduler, self.draft)
        self.tenants = TenantProcesses(
            self.plan, self.scheduler, self.limits, self.draft, self.servers
        )
        self._is_first = True
        # What the probe saw once the tenants had started; None where none ran.
        self._effect: PriorityEffect | None = None
        self._probe_notes: list[str] = []
        self._shown = 0.0
        self._energy: EnergyMeter | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the tenants for the ``with`` block; raise whatever goes wrong."""
        draft = self.draft
        draft.stage = "open device"
        identity = identify(self.plan.device, self.folder)
        draft.fingerprint = identity.fingerprint
        assert identity.lease_key is not None, "simulated tenants are no processes"
        with lease(identity.lease_key, on_wait=lambda text: self.setting.progress(text, 0, 0)):
            draft.stage = "start services"
            self.folder.mkdir(parents=True, exist_ok=True)
            with self.scheduler.services(self.folder):
                draft.stage = "start servers"
                with self.servers.running(self.folder):
                    draft.stage = "start tenants"
                    trace = self.folder.absolute() if self.setting.traced else None
                    with (
                        self._counting(identity.lease_key),
                        self.tenants.running(self.folder, trace, self.setting.server),
                    ):
                        yield

    @contextmanager
    def _counting(self, uuid: str) -> Iterator[None]:
        """Have a GPU's energy counted; of the CPU and other packages' devices nobody counts it."""
        kind = self.plan.device.partition(":")[0]
        if kind not in COUNTED_KINDS:
            yield
            return
        with energy_meter(kind, uuid) as self._energy:
            yield

    def window(
        self, plan: Colocation, draft: ColocationDraft, looks: Sequence[Look], decided: Decided
    ) -> Window:
        """Measure a window; return it, or raise whatever went wrong.

        Args:
            plan: the tenants' own, or one that differs from it in load alone.
            draft: receives what becomes known.
            looks: at the window before its end.
            decided: takes over what a look sees, if that decides all that is asked; then the window
                ends.

        """
        self.plan, self.draft = plan, draft
        self.tenants.begin(plan, draft)
        self.servers.begin(plan, draft)
        draft.fingerprint = identify(plan.device, self.folder).fingerprint
        looks = looks if CAN_SHOW else ()
        # Who works on the device; with a server, its tenant's process generates load.
        pids = {n: pid for n, pid in self.tenants.pids.items() if n not in self.servers.reached}
        try:
            self._warm_up(pids, looked_at=bool(looks))
            longest_ns = self._longest_ns()
            at_work = pids | {name: next(iter(w)) for name, w in self.servers.workers().items()}
            with self._background_noise(at_work or self.tenants.pids, longest_ns) as noise:
                window = self._serve(longest_ns, looks, decided)
                if noise is not None:
                    draft.noise = noise.end_round()
        except RunEnded as ended:
            # A tenant may have died of what happened to a service: that is then the cause.
            self._add_cause(ended, self.tenants.pids)
            raise
        draft.stage = "proof"
        self._prove(pids)
        draft.tenants = self.tenants.outcome()
        return window

    def stop(self) -> None:
        """Ask all tenants to exit, and note whoever does not."""
        self.draft.stage = "stop"
        self.tenants.stop()

    def _warm_up(self, pids: Mapping[str, int], *, looked_at: bool) -> None:
        deadline = time.monotonic() + self.limits.ready_s
        self.draft.stage = "warm-up"
        warmup_s = min(self.plan.warmup_s, _WARM_AGAIN_S)
        if self._is_first:
            warmup_s = self.plan.warmup_s
            self.tenants.wait_for(self.tenants.are_set_up, deadline, self._watch_warm_up)
            self.servers.require_listening()
            # What it leaves on the device and in the processes, the warm-up sees to.
            began = time.monotonic()
            self._effect = self._probe_priority()
            self.draft.stage = "warm-up"
            deadline += time.monotonic() - began
        self._is_first = False
        self.scheduler.begin_window()
        self.draft.notes += self._probe_notes
        asked = NextWindow(replace(self.plan, warmup_s=warmup_s), looked_at)
        self.tenants.send("warm up", window=to_jsonable_python(asked))

        def watch() -> None:
            # All compete here as in the window, where asking would cost them time that tenants of
            # other modes keep: xserver's answers 50 times a second, say.
            self._watch_warm_up()
            self.scheduler.observe(pids)

        self.tenants.wait_for(self.tenants.are_ready, deadline, watch)

    def _prove(self, pids: Mapping[str, int]) -> None:
        """Prove the mode by what each tenant saw in this window, and add what the probe saw."""
        draft, told = self.draft, self.tenants.are_ready
        seen_by = {name: ready.fingerprint for name, ready in told.items()}
        assert draft.fingerprint is not None
        # A user's own server cannot be asked what watches it.
        asked = {name: each for name, each in seen_by.items() if each is not None}
        if asked:
            draft.notes += watched(of_processes(draft.fingerprint, asked).hard)
        draft.fingerprint = of_processes(draft.fingerprint, seen_by)
        inside = {n: evidence for n in pids if (evidence := told[n].evidence) is not None}
        draft.proof = self.servers.proof(pids, inside)
        if self._effect is not None and draft.proof is not None:
            effective = self._effect.effective
            draft.proof = replace(draft.proof, priority=self._effect, effective=effective)

    def _probe_priority(self) -> PriorityEffect | None:
        """Probe whether the mode orders by priority; None where it need not, or cannot."""
        if self.setting.traced or not self.scheduler.spec.declaration.by_priority:
            return None
        requests = sorted(tenant_requests(self.plan.tenants), key=lambda request: request.priority)
        least, most = requests[0], requests[-1]
        if least.priority == most.priority:
            return None
        if not self.servers.reached.keys().isdisjoint((least.name, most.name)):
            self._probe_notes.append("priority not proven: a server takes no part in the probe")
            return None
        self.draft.stage = "priority probe"
        self.setting.progress("priority probe", 0, 0)
        clients = [
            self.tenants.client(each.name, self.limits.finish_s, self._check)
            for each in (most, least)
        ]
        effect = probe_priority((most.name, clients[0]), (least.name, clients[1]))
        if effect.verdict != "proven":
            self._probe_notes.append(f"priority not proven: {effect.reason}")
        return effect

    def _longest_ns(self) -> int:
        """Return the window's length: as planned, or less if a tenant's trace would not hold it."""
        planned_ns = self.plan.duration_ns
        longest_ns, name = min((told.longest_ns, n) for n, told in self.tenants.are_ready.items())
        if longest_ns >= planned_ns:
            return planned_ns
        self.draft.notes.append(
            f"traced for at most {longest_ns / 1e9:.2g} s, not {planned_ns / 1e9:.2g} s: tenant "
            f"{name} runs too many kernels for its trace"
        )
        self.draft.duration_s = longest_ns / 1e9
        if reason := self.plan.too_short(longest_ns / 1e9, FEWER_KERNELS):
            raise RunEnded("skipped", f"a trace holds no more: {reason}")
        return longest_ns

    def _background_noise(
        self, pids: Mapping[str, int], window_ns: int
    ) -> AbstractContextManager[RunningNoise | None]:
        """Run the noise from when all tenants are warm until all have finished serving."""
        if self.setting.noise is None:
            return nullcontext()
        self.draft.stage = f"start noise {self.setting.noise.name}"
        logs = self.folder / "noise"
        logs.mkdir()
        # Tenants of one process share its id; the window has its lead, and a grace at its end.
        processes = list(dict.fromkeys(pids.values()))
        return running(self.setting.noise, processes, logs, seconds_of_a_cell(window_ns / 1e9))

    def _serve(self, duration_ns: int, looks: Sequence[Look], decided: Decided) -> Window:
        self.draft.stage = "measure"
        told = self.tenants.are_ready
        shown = {name: (pid, told[name].shown) for name, pid in self.tenants.pids.items()}
        looking = Watch(self.plan, looks, shown)
        begin_ns = time.monotonic_ns() + LEAD_NS
        window = Window(begin_ns, begin_ns + duration_ns)
        self.tenants.send("start", begin_ns=window.begin_ns, end_ns=window.end_ns)
        energy = self._energy
        if energy is not None:
            energy.begin()

        def end(gone_ns: int, ended_ns: int) -> None:
            if energy is not None:
                energy.poll(gone_ns, 0)
            self.tenants.send("end")
            looking.end(ended_ns)

        def watch() -> None:
            self._check()
            gone_ns = time.monotonic_ns() - begin_ns
            if energy is not None:
                energy.poll(gone_ns, duration_ns)
            gone_s = min(max(0, gone_ns), duration_ns) // 10**9
            self._show("measure", gone_s, -(-duration_ns // 10**9))
            seen = looking.look(gone_ns)
            if seen is not None and decided(*seen):
                end(gone_ns, seen[0].window_ns)
            served_ns = served_all_ns(self.plan, self.tenants.results)
            # What was due by then has its grace to start, as in any window.
            if served_ns is None or looking.ended_ns is not None:
                return
            if gone_ns >= Window(0, served_ns).over_ns:
                end(gone_ns, served_ns)

        over_s = window.over_ns / 1e9
        self.tenants.wait_for(self.tenants.results, over_s + self.limits.finish_s, watch)
        if energy is not None:
            # Of a window in which nobody looked after its end.
            energy.poll(time.monotonic_ns() - begin_ns, 0)
            self.draft.mean_power_w = energy.mean_power()
        results = self.tenants.results
        served_ns = served_all_ns(self.plan, results)
        self.draft.counted(self.plan, served_ns, results)
        if served_ns is not None:
            looking.end(served_ns)
        results.update({name: looking.counted(result) for name, result in results.items()})
        return window

    def _check(self) -> None:
        self.scheduler.check()
        self.servers.check()

    def _add_cause(self, ended: RunEnded, pids: Mapping[str, int]) -> None:
        try:
            self.servers.check()
            self.servers.refuse_strangers()
            self.scheduler.observe(pids)
        except (NotProven, RunEnded) as cause:
            # What ended the run may be that very cause; the log in it may have grown since.
            if str(cause).partition("\n")[0] not in str(ended):
                raise RunEnded("failed", f"{cause} ({ended})") from ended

    def _watch_warm_up(self) -> None:
        # Tenants whose server has died may wait for it for as long as they are let.
        self._check()
        self._show("warm-up", len(self.tenants.are_ready), len(self.plan.tenants))

    def _show(self, stage: str, done: int, planned: int) -> None:
        if time.monotonic() - self._shown >= _SHOW_S:
            self._shown = time.monotonic()
            self.setting.progress(stage, done, planned)
