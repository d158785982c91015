"""XSched (OSDI '25): its global scheduler with our own xserver, or its library alone.

Written against XSched 1.2.0 on CUDA. The HIP side follows its documentation and source and has not
yet run on AMD hardware.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.processes.services import ServiceFailed, prepended
from pytest_hwqueue.parts.schedulers import inside_evidence
from pytest_hwqueue.parts.schedulers.declaration import BATCH, THRESHOLD, SchedulerSpec, in_flight
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, why_not_loaded
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    TenantRequest,
)
from pytest_hwqueue.parts.schedulers.xsched_server import (
    Report,
    ServerWatch,
    XQueueSettings,
    XServer,
    serve,
)

# Tell a process that runs under the mode what it was started with.
_ROOT, _PORT = "XSCHED_ROOT", "HWQ_XSERVER_PORT"

_LEAST_PRIORITY, _MOST_PRIORITY = -255, 255

# Compute capabilities for which XSched 1.2.0 can interrupt what runs (its level 2).
_LEVEL_2 = ([3, 5], [7, 0], [8, 6])


# What its processes write of who schedules them.
_APP, _GLOBAL, _LOCAL = "app-managed scheduler", "global scheduler", "local scheduler"

# What XSched does by itself.
_DEFAULT = XQueueSettings(1, THRESHOLD, BATCH)


@dataclass(frozen=True)
class _Platform:
    """How a platform's processes are intercepted: which shim, before which library, with what."""

    name: str
    shim: str
    real: str
    more: tuple[str, ...]


_CUDA = _Platform("CUDA", "libshimcuda.so", "libcuda.so", ("libcuda.so.1", "libhalcuda.so"))
_HIP = _Platform("HIP", "libshimhip.so", "libamdhip64.so", ("libhalhip.so",))


class _Shimmed(Scheduler):
    """Tenants whose calls of the driver go through the library of the user's XSched."""

    # What else of an installation is needed.
    _programs: tuple[str, ...] = ()
    _with_policy = "unset it"

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        root = paths.xsched_root or os.environ.get(_ROOT)
        self._root = Path(root).resolve() if root else None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Require an installation, and the real driver."""
        return self._not_installed(_HIP if device_kind == "hip" else _CUDA)

    def _shim(self) -> dict[str, str]:
        """Return the variables that put the shim before the real library."""
        platform = _platform()
        if self._root is None or (real := self._real_library(platform)) is None:
            raise ServiceFailed(self._not_installed(platform))
        library = self._root / "lib"
        variables = {
            "LD_LIBRARY_PATH": prepended("LD_LIBRARY_PATH", [library]),
            _ROOT: str(self._root),
        }
        if platform is _HIP:
            variables["LD_PRELOAD"] = prepended("LD_PRELOAD", [library / platform.shim])
            variables["XSCHED_HIP_LIB"] = str(real)
        else:
            variables["XSCHED_CUDA_LIB"] = variables["CUXTRA_CUDA_LIB"] = str(real)
        return variables

    def _prove_interception(self, name: str, pid: int, evidence: InsideEvidence) -> None:
        where = f"{self.mode}: tenant {name} (process {pid})"
        platform = _platform()
        if self._root is None:
            raise NotProven(f"{where}: {self._not_installed(platform)}")
        shim = self._root / "lib" / platform.shim
        if not evidence.has_mapped(shim):
            instead = ", ".join(evidence.mapped(platform.real)) or f"no {platform.real}"
            raise NotProven(
                f"{where} has {instead} mapped and not {shim}: nothing is intercepted; "
                f"{why_not_loaded(shim)}"
            )
        mapped = [Path(path) for path in evidence.mapped(platform.real)]
        if all(path.is_relative_to(self._root) for path in mapped):
            raise NotProven(
                f"{where} has the shim mapped and no real {platform.real}: nothing reached a GPU"
            )

    def _not_installed(self, platform: _Platform) -> str | None:
        if self._root is None:
            return (
                f"{self.mode}: say where XSched is installed, by --hwq-xsched-root or {_ROOT} (the "
                "folder of bin/xserver and lib/ that its README's build makes)"
            )
        libraries = (f"lib/{name}" for name in (platform.shim, *platform.more, "libpreempt.so"))
        files = (*self._programs, *libraries)
        missing = [file for file in files if not (self._root / file).exists()]
        if missing:
            return (
                f"{self.mode}: {self._root} has no {', '.join(missing)}; build and install XSched "
                f"for {platform.name} there"
            )
        for program in self._programs:
            if not os.access(self._root / program, os.X_OK):
                return f"{self.mode}: {self._root / program} is not executable"
        if "XSCHED_POLICY" in os.environ:
            return (
                f"{self.mode}: XSCHED_POLICY is set, with which a process schedules itself alone; "
                f"{self._with_policy}"
            )
        if self._real_library(platform) is None:
            return (
                f"{self.mode}: the real {platform.real} was not found; is the driver installed? If "
                "it is, add its folder to LD_LIBRARY_PATH"
            )
        return None

    def _real_library(self, platform: _Platform) -> Path | None:
        assert self._root is not None
        if platform is _HIP:
            return inside_evidence.hip_runtime()
        return inside_evidence.cuda_driver(self._root / "lib")


class XSchedApp(_Shimmed):
    """Tenants behind XSched's library with nothing set: its app-managed scheduler.

    That is what preloading the library alone gives. Nobody schedules: it shows what interception
    costs, and that figures under it are no effect of a scheduler.
    """

    placements = frozenset(TenantPlacement)

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the shim before the real library, and XSched's own defaults."""
        # Stated, since the user may have set others.
        return {**self._shim(), "XSCHED_SCHEDULER": "APP", "XSCHED_AUTO_XQUEUE": "OFF"}

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require the shim before the real driver; XQueues cannot be seen without an xserver."""
        wrote = []
        for name, evidence in inside.items():
            self._prove_interception(name, pids[name], evidence)
            output = evidence.output or ""
            for other in (_GLOBAL, _LOCAL):
                if other in output:
                    raise NotProven(
                        f"{self.mode}: tenant {name} (process {pids[name]}) wrote that it uses the "
                        f"{other}, which is another mode"
                    )
            if _APP in output:
                wrote.append(name)
        return Proof(
            self.mode,
            "shim and real driver mapped in all tenants, started as app-managed with XQueues off: "
            "no scheduler was seen (XQueues neither: only an xserver tells of them); written "
            f"'{_APP}': {', '.join(wrote) or 'by none'}",
            self.seen_priorities(inside),
        )


class XSched(_Shimmed):
    """Tenants as clients of xserver, each stream an XQueue of its tenant's priority.

    The requested level, threshold and batch apply to tenants that may be held back. The most urgent
    tenant never is; it keeps XSched's own, so that its launches are not throttled.
    """

    _programs = ("bin/xserver",)
    _with_policy = "unset it and give the policy as xsched:policy=HPF"

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        self._asked = XQueueSettings(int(spec.value("level")), *in_flight(spec.parameters))
        self._server: XServer | None = None
        self._tenants: dict[str, TenantRequest] = {}
        self._watch = ServerWatch()

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Require priorities that differ, within its range."""
        for tenant in tenants:
            if not _LEAST_PRIORITY <= tenant.priority <= _MOST_PRIORITY:
                return (
                    f"{self.mode}: tenant {tenant.name} has priority {tenant.priority}; those of "
                    f"XSched go from {_LEAST_PRIORITY} to {_MOST_PRIORITY}"
                )
        if self.spec.value("policy").endswith("HPF"):
            return self.equal_priorities(tenants)
        return None

    @contextmanager
    def services(self, folder: Path) -> Iterator[None]:
        """Run xserver with the requested policy on a free loopback port."""
        if self._root is None:
            raise ServiceFailed(self._not_installed(_CUDA))
        self.begin_window()
        with serve(self._root, self.spec.value("policy"), folder, self.paths) as server:
            self._server = server
            try:
                yield
            finally:
                self._server = None

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the shim before the real library, and the settings of the tenant's XQueues."""
        if self._server is None or self._root is None:
            raise RuntimeError("an XSched client's environment is known only while xserver runs")
        self._tenants[tenant.name] = tenant
        settings = self._settings(tenant.name)
        variables = {
            **self._shim(),
            # APP, the default, means that nobody schedules. XSCHED_POLICY stays unset: with it a
            # process schedules itself alone and ignores the server.
            "XSCHED_SCHEDULER": "GLB",
            "XSCHED_AUTO_XQUEUE": self.spec.value("auto").upper(),
            "XSCHED_AUTO_XQUEUE_PRIORITY": str(tenant.priority),
            "XSCHED_AUTO_XQUEUE_LEVEL": str(settings.level),
            "XSCHED_AUTO_XQUEUE_THRESHOLD": str(settings.threshold),
            "XSCHED_AUTO_XQUEUE_BATCH_SIZE": str(settings.batch),
            _PORT: str(self._server.port),
        }
        if settings.level == 3 and _platform() is _CUDA:
            # Without it level 3 is accepted, reported, and does what level 1 does.
            variables["XSCHED_CUDA_LV3_IMPL"] = "TSG"
        return variables

    def check(self) -> None:
        """Check that xserver is alive: without it clients wait in vain, or nobody schedules."""
        self._reached().check()

    def begin_window(self) -> None:
        """Watch the XQueues anew."""
        self._watch = ServerWatch()

    def observe(self, pids: Mapping[str, int]) -> None:
        """Count which XQueues are ready and which are suspended."""
        self._watch.add(self._reached().report(), pids)

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require the shim before the real driver, and every stream as a requested XQueue.

        ``effective`` if, in the warm-up, a less urgent tenant was seen held back while a more
        urgent one had work.
        """
        server = self._reached()
        server.check()
        server.require_own_port()
        for name, evidence in inside.items():
            self._prove_interception(name, pids[name], evidence)
            self._prove_level(name, pids[name], evidence)
        report = server.report()
        self._watch.remember(report)
        for name, pid in pids.items():
            self._prove_queues(name, pid, report, inside[name])
        queues = "; ".join(
            f"{name} has {len(self._watch.queues(pid))} of {self._settings(name)}"
            for name, pid in pids.items()
        )
        effective = self._effective(pids)
        never = "; but less urgent work was never seen held up" if effective is False else ""
        return Proof(
            self.mode,
            f"shim and real driver mapped in all tenants; XQueues: {queues}{never}",
            self.seen_priorities(inside),
            effective,
            self._watch.counts(pids),
        )

    def _settings(self, name: str) -> XQueueSettings:
        tenant = self._tenants.get(name)
        return _DEFAULT if tenant is not None and tenant.most_urgent else self._asked

    def _reached(self) -> XServer:
        """Return the xserver started here, or the one under which this process was started."""
        if self._server is not None:
            return self._server
        port = os.environ.get(_PORT, "")
        if not port.isdecimal():
            raise NotProven(f"{self.mode}: this process was not started under it ({_PORT} unset)")
        self._server = XServer(int(port))
        return self._server

    def _prove_level(self, name: str, pid: int, evidence: InsideEvidence) -> None:
        where = f"{self.mode}: tenant {name} (process {pid})"
        capability = evidence.capability
        if self._settings(name).level == 2 and capability and capability not in _LEVEL_2:
            raise NotProven(
                f"{where} runs on compute capability {capability[0]}.{capability[1]}, for which "
                "XSched has no level 2: it accepts and reports it, and does what level 1 does"
            )

    def _prove_queues(self, name: str, pid: int, report: Report, evidence: InsideEvidence) -> None:
        where = f"{self.mode}: tenant {name} (process {pid})"
        queues = self._watch.queues(pid)
        if not queues and pid in report.processes:
            raise NotProven(
                f"{where} is connected to xserver but has no XQueue, so that nobody schedules it: "
                "its work is on the default stream, or XSCHED_AUTO_XQUEUE is off"
            )
        if not queues:
            alone = _APP in (evidence.output or "")
            said = "; it wrote that it uses the app-managed scheduler: nobody's" if alone else ""
            raise NotProven(
                f"{where} is not connected to xserver, which knows the processes "
                f"{sorted(report.processes)}{said}"
            )
        asked = self._settings(name)
        for queue in queues:
            if queue.settings != asked:
                raise NotProven(f"{where} has an XQueue of {queue.settings}; requested was {asked}")

    def _effective(self, pids: Mapping[str, int]) -> bool | None:
        """Whether a less urgent tenant was held back; None if none was seen to compete."""
        priority = {name: self._tenants[name].priority for name in pids if name in self._tenants}
        pairs = [
            (low, high) for low in priority for high in priority if priority[low] < priority[high]
        ]
        if not any(self._watch.contended[pair] for pair in pairs):
            return None
        return any(self._watch.held[pair] for pair in pairs)


def _platform() -> _Platform:
    import torch

    return _HIP if torch.version.hip else _CUDA
