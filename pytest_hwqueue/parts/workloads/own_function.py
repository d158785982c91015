"""The user's own code: a function launched on each stream, or named as ``module:attribute``.

The function prepares a step, and the step is one request. What it raises is reported with the
frames of the user's code alone.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
import symtable
import sys
import sysconfig
import traceback
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import pytest_hwqueue
from pytest_hwqueue.data.errors import BadInput, OwnCodeFailed, meant, translated
from pytest_hwqueue.data.records.definitions import OWN_TEST
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.workloads import MAXIMUM_STREAMS
from pytest_hwqueue.parts.workloads.workload import Parameters, Setup, StreamRange, Workload

PATTERN = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_GIVEN = ("device", "streams", "seed")
_LIKE_THIS = "def make_step(*, device, streams, seed)"
_OURS = Path(pytest_hwqueue.__file__).parent
# Where Python and installed packages are.
_INSTALLED = tuple(
    Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

Step = Callable[[], object] | Callable[["Sequence[Stream]"], object]
"""One request. Without a parameter it runs as one launch on the first stream, as a function of
`hwq.measure` does; with one it is given the streams and enqueues through ``launch``, as that of
`hwq.measure_streams`."""


class MakeStep(Protocol):
    """Prepares a tenant's step; called once for each request that is served at once."""

    def __call__(self, *, device: Device, streams: Sequence[Stream], seed: int) -> Step:
        """Make weights and inputs on ``device.torch_device``, and return the step.

        Args:
            device: that the tenant runs on.
            streams: its own, one unless the tenant asks for more.
            seed: of the session; the same for each call.

        """


def find(text: str, folder: Path) -> Path | None:
    """Find the file of a function's module, without running any of it.

    Args:
        text: such as ``my_module:make_step`` or ``package.module:make_step``.
        folder: is looked at first, then Python's path.

    Returns:
        the file; None if the module has no source.

    Raises:
        BadInput: if there is no such module, its source is no Python, or it has no such name.

    """
    if re.fullmatch(PATTERN, text) is None:
        raise BadInput(f"{text!r} names no function; give module:function, my_module:make_step")
    module, _, attribute = text.partition(":")
    spec = _spec(module, folder)
    if spec is None:
        raise BadInput(f"{text}: there is no module {module!r} in {folder} or on Python's path")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin)
    names = _names(text, file)
    if names is not None and attribute not in names:
        near = meant(attribute, names)
        hint = f"; {near.rstrip()}" if near else ""
        raise BadInput(f"{text}: {file} has no {attribute!r} at its top level{hint}")
    return file


def _spec(module: str, folder: Path) -> ModuleSpec | None:
    """Find a module; importlib's own search would import the packages around it."""
    top, *inner = module.split(".")
    spec = PathFinder.find_spec(top, [str(folder)]) or importlib.util.find_spec(top)
    for count in range(1, len(inner) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = ".".join((top, *inner[:count]))
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec


def load(text: str, folder: Path, parameters: Mapping[str, Any]) -> MakeStep:
    """Import a function, from its folder first; refuse what cannot be called as `MakeStep` is.

    Raises:
        BadInput: if it cannot be found or called, or another module has its module's name.
        OwnCodeFailed: if its module raises.

    """
    folder = folder.absolute()
    file = find(text, folder)
    name, _, attribute = text.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise failed(text, "its module raised", error, folder) from error
    found = getattr(module, "__file__", None)
    if file is not None and found is not None and not file.samefile(found):
        raise BadInput(
            f"{text}: this process has a module {name!r} already, from {found}: rename {file.name}"
        )
    make = getattr(module, attribute, None)
    if not callable(make):
        what = "there is none" if make is None else f"it is {make!r}"
        raise BadInput(f"{text} is no function: {what}; give one such as {_LIKE_THIS}")
    require_callable(text, make, parameters)
    return cast("MakeStep", make)


def problem(text: str, folder: str, parameters: Mapping[str, Any]) -> str:
    """Import a function as `load` does; return why it cannot be used, or an empty text."""
    try:
        load(text, Path(folder), parameters)
    except (BadInput, OwnCodeFailed) as error:
        return str(error)
    return ""


def require_callable(text: str, make: Callable[..., object], parameters: Mapping[str, Any]) -> None:
    """Raise BadInput unless a function takes what it will be given, by keyword."""
    given = {**dict.fromkeys(_GIVEN), **parameters}
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        others = f", and the tenant's parameters {', '.join(parameters)}" if parameters else ""
        raise BadInput(
            f"{text} is called with {', '.join(_GIVEN)} by keyword{others}, and {error}: write it "
            f"as {_LIKE_THIS}"
        ) from None
    except ValueError:
        # Something of C that has no signature: its call will tell.
        return


def prepares_a_step(function: Callable[..., object]) -> bool:
    """Whether a function is a `MakeStep`: it has the three parameters, and cannot do without."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return False
    return all(
        name in parameters and parameters[name].default is inspect.Parameter.empty
        for name in _GIVEN
    )


def prepared(
    text: str, make: Callable[..., object], streams: Sequence[Stream], folder: Path
) -> tuple[Callable[[Sequence[Stream]], None], bool]:
    """Prepare a step.

    Args:
        text: its name, for errors.
        make: prepares it for the streams; all other arguments are bound.
        streams: its own; at least one.
        folder: file names in tracebacks are relative to it.

    Returns:
        what enqueues one request on the streams, and whether it is a single launch.

    Raises:
        BadInput: if what it returns is no step, or one that cannot use so many streams.
        OwnCodeFailed: if it raises.

    """
    try:
        step = make(streams=streams)
    except Exception as error:
        raise failed(text, "preparing its step raised", error, folder) from error
    if not callable(step):
        raise BadInput(
            f"{text} returned {step!r}; it must return the step, which is called once per request"
        )
    name = f"the step of {text}"
    require_runs(name, step)
    ran = False

    def call(*given: Sequence[Stream]) -> None:
        nonlocal ran
        try:
            if ran:
                step(*given)
            else:
                first_run(name, step, *given)
                ran = True
        except BadInput:
            raise
        except Exception as error:
            raise failed(text, "a request raised", error, folder) from error

    if _takes(step, streams):
        return call, False
    if not _takes(step):
        raise BadInput(f"the step of {text} must take no argument, or one: the streams")
    if len(streams) > 1:
        raise BadInput(
            f"the step of {text} takes no argument, so it runs on one stream, and the tenant has "
            f"{len(streams)}: leave out its field streams, or let the step take the streams"
        )
    return lambda given: given[0].launch(call), True


def require_runs(name: str, function: Callable[..., object]) -> None:
    """Raise BadInput if calling a function runs none of its code.

    Args:
        name: of the function, for the error.
        function: that is called to measure it.

    """
    for kind, is_one in (
        ("a coroutine", inspect.iscoroutinefunction),
        ("an asynchronous generator", inspect.isasyncgenfunction),
        ("a generator", inspect.isgeneratorfunction),
    ):
        if is_one(function) or is_one(getattr(function, "__call__", None)):  # noqa: B004
            raise BadInput(
                f"{name} is {kind} function: calling it runs none of its code, so nothing would be "
                "measured; give a function that does the work itself"
            )


def first_run(name: str, function: Callable[..., object], *given: Sequence[Stream]) -> None:
    """Call a function; raise BadInput if what it returns, or launches, waits to be run.

    Only its first call does so: looking at every result would be in the figures.

    Args:
        name: of the function, for the error.
        function: that is measured.
        given: its streams, all of a kind that has no slots, if it takes them.

    """
    with _looking_at_launches(name, *given):
        result = function(*given)
    _require_nothing_waits(name, result)


def _require_nothing_waits(name: str, result: object) -> None:
    waits = isinstance(result, (Awaitable, Generator, AsyncGenerator))
    # Futures of concurrent.futures and torch are not awaitable.
    if not waits and not hasattr(type(result), "add_done_callback"):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise BadInput(
        f"{name} returned a {type(result).__name__}: its work waits to be run, so it would not be "
        "measured; run it to its end (asyncio.run, result()) and return nothing of the kind"
    )


@contextmanager
def _looking_at_launches(name: str, streams: Sequence[Stream] = ()) -> Iterator[None]:
    # Replaces a method: the streams stay the objects that the user's code knows.
    def looking(
        launch: Callable[..., None],
        function: Callable[..., object],
        *arguments: object,
        tag: str | None = None,
    ) -> None:
        # `hwq.measure` launches the function itself.
        itself = getattr(function, "__qualname__", None) == name

        def look() -> None:
            what = name if itself else f"what {name} launches"
            _require_nothing_waits(what, function(*arguments))

        launch(look, tag=tag)

    for stream in streams:
        vars(stream)["launch"] = partial(looking, stream.launch)
    try:
        yield
    finally:
        for stream in streams:
            del vars(stream)["launch"]


def failed(text: str, what: str, error: Exception, folder: Path) -> OwnCodeFailed:
    """Return the error of a user's code, with the frames of that code alone."""
    folder = folder.absolute()
    frames = [
        traceback.FrameSummary(_short(one.filename, folder), one.lineno, one.name, line=one.line)
        for one in traceback.extract_tb(error.__traceback__)
        if _is_own(Path(one.filename), text)
    ]
    if isinstance(error, SyntaxError) or not frames:
        frames_text = ""
    else:
        frames_text = "Traceback (its own frames):\n" + "".join(traceback.format_list(frames))
    last = "".join(traceback.format_exception_only(error)).rstrip()
    return OwnCodeFailed(f"{text}: {what}:\n{frames_text}{last}")


def _is_own(file: Path, text: str) -> bool:
    if not file.is_absolute() or file.is_relative_to(_OURS):
        return False
    if not any(file.is_relative_to(place) for place in _INSTALLED):
        return True
    # A function of an installed package: that package's frames are its own.
    top = text.partition(":")[0].partition(".")[0]
    return top in (part.removesuffix(".py") for part in file.parts)


def _short(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _takes(step: Callable[..., object], *arguments: object) -> bool:
    try:
        inspect.signature(step).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        # Something of C that has no signature is called without arguments.
        return not arguments
    return True


def _names(text: str, file: Path) -> set[str] | None:
    """Return the names that a module's top level binds; None if only running it would tell.

    Raises:
        BadInput: if the file cannot be read or is no Python.

    """
    with translated(BadInput, f"{text}: {file} cannot be read", SyntaxError, OSError, ValueError):
        table = symtable.symtable(file.read_text(encoding="utf-8"), str(file), "exec")
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    star = re.search(r"^\s*from\s+\S+\s+import\s+\*", file.read_text(encoding="utf-8"), re.M)
    return None if star or "__getattr__" in bound else bound


class FunctionWorkload(Workload):
    """The user's function, as given to `hwq.measure`."""

    name = "function"
    family = "your own tests"
    mark = ""
    description = "a test's own code"
    version = OWN_TEST
    stream_range = StreamRange(1, 8, MAXIMUM_STREAMS)
    units = ()
    parameter_model = Parameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(
        self,
        enqueue: Callable[[Sequence[Stream]], object],
        work: Mapping[str, float] | None,
        tags: Sequence[str] = (),
        *,
        gradients: bool = True,
    ) -> None:
        for unit, amount in (work or {}).items():
            if not (math.isfinite(amount) and amount > 0):
                raise ValueError(f"work[{unit!r}] is {amount!r}; give a finite amount above zero")
        require_runs(_name(enqueue), enqueue)
        self._given = enqueue
        self._enqueue: Callable[[Sequence[Stream]], object] = self._first
        self._work = dict(work or {"iterations": 1.0})
        # Class attributes of other workloads; here each test has its own.
        self.tags = tuple(tags)  # type: ignore[misc]
        self.gradients = gradients  # type: ignore[misc]

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

    def __init__(
        self,
        make: MakeStep,
        work: Mapping[str, float] | None,
        folder: Path,
        *,
        gradients: bool = True,
    ) -> None:
        super().__init__(self._launch_steps, work, gradients=gradients)
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
        bound = partial(make, device=self._setup.device, seed=self._setup.seed)
        return prepared(name, bound, [stream], self._folder)[0]

    def _synchronize(self) -> None:
        import torch

        assert self._setup is not None
        place = self._setup.device.torch_device
        if place.type == "cuda" and self._setup.device.capabilities.has_values:
            # Weights were made on whichever stream was current.
            torch.cuda.synchronize(place)


def workload_of(
    function: Callable[[], object] | MakeStep,
    work: Mapping[str, float] | None,
    folder: Path,
    *,
    gradients: bool = True,
) -> FunctionWorkload:
    """Return the workload of a function as `hwq.measure` takes it.

    Args:
        function: called on each stream, or prepares what is called there.
        work: of one iteration, by unit; by default one iteration.
        folder: file names in tracebacks are relative to it.
        gradients: whether it may record autograd graphs; if not, it runs in inference mode.

    Raises:
        ValueError: if an amount of work is not finite and above zero.
        BadInput: if calling the function runs none of its code.

    """
    require_runs(_name(function), function)
    if prepares_a_step(function):
        return PreparedFunction(cast("MakeStep", function), work, folder, gradients=gradients)
    enqueue = on_every_stream(cast("Callable[[], object]", function))
    return FunctionWorkload(enqueue, work, gradients=gradients)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", function))


def on_every_stream(function: Callable[[], object]) -> Callable[[Sequence[Stream]], None]:
    """Enqueue ``function`` once on each stream."""

    @wraps(function)
    def enqueue(streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.launch(function)

    return enqueue
