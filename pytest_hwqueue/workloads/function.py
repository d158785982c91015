"""The user's own code as a workload: a function launched on each stream, or one that enqueues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, cast

from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.workloads import MAXIMUM_STREAMS
from pytest_hwqueue.workloads.own_function import (
    MakeStep,
    first_run,
    prepared,
    prepares_a_step,
    require_runs,
)
from pytest_hwqueue.workloads.workload import Parameters, Setup, StreamRange, Workload


class FunctionWorkload(Workload):
    """The user's function, as given to `hwq.measure`."""

    name = "function"
    family = "your own tests"
    mark = ""
    description = "a test's own code"
    stream_range = StreamRange(1, 8, MAXIMUM_STREAMS)
    units = ()
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(
        self,
        enqueue: Callable[[Sequence[Stream]], object],
        work: Mapping[str, float] | None,
        tags: Sequence[str] = (),
    ) -> None:
        for unit, amount in (work or {}).items():
            if not (math.isfinite(amount) and amount > 0):
                raise ValueError(f"work[{unit!r}] is {amount!r}; give a finite amount above zero")
        require_runs(_name(enqueue), enqueue)
        self._given = enqueue
        self._enqueue: Callable[[Sequence[Stream]], object] = self._first
        self._work = dict(work or {"iterations": 1.0})
        # A class attribute of other workloads; here each test has its own.
        self.tags = tuple(tags)  # type: ignore[misc]

    def setup(self, setup: Setup) -> None:
        """Do nothing: the test has set itself up."""

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the test's iteration."""
        self._enqueue(streams)

    def _first(self, streams: Sequence[Stream]) -> None:
        first_run(_name(self._given), self._given, streams)
        self._enqueue = self._given

    def work_per_iteration(self) -> dict[str, float]:
        """Return the work per iteration that the test declared."""
        return self._work

    def check(self, run_once: Callable[[], None]) -> None:
        """Only run it: the test itself checks its results."""
        run_once()


class PreparedFunction(FunctionWorkload):
    """A function that prepares its step, once for each stream, as given to `hwq.measure`."""

    # Torch is as the user's own program finds it, and as tenants of such a function have it.
    gradients = True

    def __init__(self, make: MakeStep, work: Mapping[str, float] | None, folder: Path) -> None:
        super().__init__(self._launch_steps, work)
        self._make = make
        self._folder = folder
        self._setup: Setup | None = None
        self._steps: list[Callable[[Sequence[Stream]], None]] = []

    def setup(self, setup: Setup) -> None:
        """Keep the means: the steps are prepared with their streams, which the first call has."""
        self._setup = setup

    def _launch_steps(self, streams: Sequence[Stream]) -> None:
        if not self._steps:
            self._steps = [self._prepared(stream) for stream in streams]
            self._synchronize()
        for stream, step in zip(streams, self._steps, strict=True):
            step([stream])

    def _prepared(self, stream: Stream) -> Callable[[Sequence[Stream]], None]:
        assert self._setup is not None
        make = self._make
        name = f"{getattr(make, '__module__', '')}:{_name(make)}"
        device, seed = self._setup.device, self._setup.seed
        return prepared(name, make, device, [stream], seed, {}, self._folder)[0]

    def _synchronize(self) -> None:
        import torch

        assert self._setup is not None
        place = self._setup.device.torch_device
        if place.type == "cuda" and self._setup.device.capabilities.has_values:
            # Weights were made on whichever stream was current.
            torch.cuda.synchronize(place)


def workload_of(
    function: Callable[[], object] | MakeStep, work: Mapping[str, float] | None, folder: Path
) -> FunctionWorkload:
    """Return the workload of a function as `hwq.measure` takes it.

    Args:
        function: called on each stream, or prepares what is called there.
        work: of one iteration, by unit; by default one iteration.
        folder: file names in tracebacks are relative to it.

    Raises:
        ValueError: if an amount of work is not finite and above zero.
        BadFunction: if calling the function runs none of its code.

    """
    require_runs(_name(function), function)
    if prepares_a_step(function):
        return PreparedFunction(cast("MakeStep", function), work, folder)
    return FunctionWorkload(on_every_stream(cast("Callable[[], object]", function)), work)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", function))


def on_every_stream(function: Callable[[], object]) -> Callable[[Sequence[Stream]], None]:
    """Enqueue ``function`` once on each stream."""

    @wraps(function)
    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(function)

    return enqueue
