"""What a traced tenant notes while it serves: its work on the device, and its threads' CPU.

Everything is opened when all of the tenant's threads are there, before the common window, and
written into a file after it. Its memory is bounded: how long the window may be follows from how
many kernels a request runs, and what the CPU's trace cannot keep, the kernel counts as lost.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.attribution import Request
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.engine.causes.explain import rows_of, write_trace
from pytest_hwqueue.engine.causes.perf_events import PerfTracer, in_root_namespace
from pytest_hwqueue.engine.causes.seen import trace_of
from pytest_hwqueue.engine.causes.traced_pass import Chunk, TracedPass, noted_host_work, open_pass
from pytest_hwqueue.parts.devices.protocol import Device, StreamPool

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.shared_trace import SharedTrace

# Kernels of one tenant that are kept. The vendor's tracer and its file take some 2 kB of memory for
# each, our own log a tenth of that.
MOST_KERNELS = {"cpu": 200_000}
MOST_ON_ACCELERATORS = 150_000

# Of records of switches and interrupts.
_MOST_CPU_BYTES = 128 * 1024 * 1024
# Between two looks at the rings, which cost the tenant its interpreter's lock: as many seconds as
# keep the fullest ring below a quarter.
_DRAIN_S = (0.02, 0.5)
_FULL = 0.25

Timed = Callable[[Callable[[], None]], Timeline]


class Traces:
    """The tracers of the tenants of one process.

    Args:
        folder: takes their files.
        tenants: how many are traced on this machine at once: what a user may lock is shared.
        here: how many of them are threads of this process.

    """

    def __init__(self, folder: Path, tenants: int, here: int) -> None:
        self._folder = folder
        self._tenants = tenants
        self._here = here
        self._opening = threading.Lock()
        self._shared: SharedTrace | None = None

    def tracer(
        self, tenant: str, device: Device, pool: StreamPool, *, gradients: bool
    ) -> TenantTracer:
        """Return the tracer of a tenant, which its own thread is to use.

        Args:
            tenant: its name.
            device: that it runs on.
            pool: its own streams.
            gradients: whether backward passes launch from threads of their own.

        """
        timeline = self._timeline(pool)
        return TenantTracer(tenant, device, pool, timeline, self._tenants, self._folder, gradients)

    def _timeline(self, pool: StreamPool) -> Timed:
        from pytest_hwqueue.parts.devices.accelerator import AcceleratorPool

        if self._here == 1 or not isinstance(pool, AcceleratorPool):
            return pool.timeline
        from pytest_hwqueue.parts.devices.shared_trace import KinetoTracer, SharedTrace

        with self._opening:
            if self._shared is None:
                self._shared = SharedTrace(self._here, KinetoTracer())
        return partial(self._shared.timeline, pool)


@dataclass
class TenantTracer:
    """Traces one tenant's window, once; `Traces` makes it."""

    _tenant: str
    _device: Device
    _pool: StreamPool
    _timeline: Timed
    _tenants: int
    _folder: Path
    _gradients: bool
    # By request that was begun, a failed one too: how many launches there were before it.
    _launches: list[int] = field(default_factory=list)

    def most_requests(self, request: Callable[[], None]) -> int:
        """Run one request under the tracer, which starts it too; return how many may follow."""
        try:
            kernels = len(self._timeline(request).kernels)
        except DeviceError:
            # It says so again where it matters.
            kernels = 0
        most = MOST_KERNELS.get(self._device.kind, MOST_ON_ACCELERATORS)
        return max(1, most // max(1, kernels))

    def serve(
        self, request: Callable[[], None], window: Callable[[Callable[[], None]], None]
    ) -> None:
        """Trace a window, and write what was seen.

        What the window raises is raised; what cannot be traced is left out, with the reason.

        Args:
            request: of the tenant.
            window: serves the request it is given, one after the other.

        Raises:
            RecordError: if the file cannot be written.

        """
        begun = served = False

        def enqueue() -> None:
            nonlocal begun, served
            begun = True
            self._on_cpu(request, window, passed, helper)
            served = True

        with ExitStack() as stack:
            # Threads that are there before the others are traced are not traced with them.
            helper = _Helper()
            stack.callback(helper.end)
            passed = open_pass(
                self._device, self._pool, stack, all_threads=self._gradients, sharing=self._tenants
            )
            unseen = ""
            try:
                timeline = self._timeline(enqueue)
                passed.chunks.append(Chunk(timeline, self._requests(timeline), 0, 0))
            except DeviceError as error:
                unseen = str(error)
                if not begun:
                    enqueue()
                elif not served:
                    raise
        # Between the last launch of a request and the first of the next the thread waits: for the
        # device, and where requests are due at a time for that too.
        pauses = [one.started_ns for one in passed.requests]
        trace, work = trace_of(passed, self._tenant, self._device.kind, pauses, unseen)
        more = {"named_as_by_others": in_root_namespace(), "full_ns": helper.full_ns}
        write_trace(self._folder, trace.model_copy(update={**more, "work": rows_of(work)}))

    def _on_cpu(
        self,
        request: Callable[[], None],
        window: Callable[[Callable[[], None]], None],
        passed: TracedPass,
        helper: _Helper,
    ) -> None:
        """Serve the window and trace the threads that do."""
        clock_ns = self._device.clock_ns
        perf, delays = passed.tracing.perf, passed.delays

        def noted() -> None:
            trace = self._pool.trace
            self._launches.append(0 if trace is None else len(trace.launches))
            if delays is not None:
                delays.step()
            started = clock_ns()
            try:
                request()
            finally:
                number = len(passed.requests)
                passed.requests.append(Request(number, started, started, started, clock_ns()))
                if delays is not None:
                    passed.delayed.append(delays.step())

        with noted_host_work(passed, clock_ns):
            if perf is None:
                window(noted)
            else:
                perf.start()
                with helper.drains(perf):
                    window(noted)
                passed.trace = perf.stop()

    def _requests(self, timeline: Timeline) -> dict[int, int]:
        """Return the number of the request of each launch that ran something or was called."""
        launches = {one.launch for one in timeline.kernels}
        called = {one.launch for one in timeline.calls}
        return {
            launch: number
            for launch in launches | called
            if launch is not None and (number := bisect_right(self._launches, launch) - 1) >= 0
        }


class _Helper:
    """A thread that empties the rings while the tenant serves."""

    def __init__(self) -> None:
        self.full_ns: int | None = None
        self._perf: PerfTracer | None = None
        self._go, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="hwq-drain", daemon=True)
        self._thread.start()

    @contextmanager
    def drains(self, perf: PerfTracer) -> Iterator[None]:
        """Empty this one's meanwhile."""
        self._perf = perf
        self._go.set()
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self._go.set()
        self._thread.join()

    def _run(self) -> None:
        self._go.wait()
        least_s, most_s = _DRAIN_S
        pause_s = least_s
        while not self._over.wait(pause_s):
            assert self._perf is not None
            if self._perf.taken_bytes >= _MOST_CPU_BYTES:
                self.full_ns = time.monotonic_ns()
                return
            fullest = self._perf.drain()
            # No more than twice as long as before: a burst may follow a calm.
            longest_s = min(most_s, 2 * pause_s)
            pause_s = max(least_s, min(longest_s, pause_s * _FULL / max(fullest, 1e-3)))
