"""A user's own function: where it is looked for, how it is called, and what its errors say."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import BadInput, OwnCodeFailed
from pytest_hwqueue.engine.cell.attempt import describe_failure
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.protocol import StreamPool
from pytest_hwqueue.parts.workloads.own_function import (
    FunctionWorkload,
    PreparedFunction,
    find,
    load,
    prepared,
    prepares_a_step,
    problem,
    workload_of,
)
from pytest_hwqueue.parts.workloads.workload import Setup

STEP = """\
def make_step(*, device, streams, seed, **more):
    return lambda: None
"""


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    path, modules = sys.path[:], set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "own_code.py") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_module_is_found_next_to_the_scenario_or_on_pythons_path_and_not_run(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "raise SystemExit\n" + STEP)
    assert find("own_code:make_step", tmp_path) == file
    inner = write(tmp_path, STEP, "package/inner.py")
    assert find("package.inner:make_step", tmp_path) == inner
    assert "own_code" not in sys.modules
    for elsewhere in ("json:loads", "json.decoder:JSONDecoder", "time:sleep"):
        find(elsewhere, tmp_path)
    # Names that only running tells.
    for code in ("from json import *\n", "def __getattr__(name): return print\n"):
        write(tmp_path, code)
        find("own_code:loads", tmp_path)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("own_code", STEP, "'own_code' names no function; give module:function, my_module:make"),
        ("own_code:make-step", STEP, "names no function"),
        ("./own_code.py:make_step", STEP, "names no function"),
        ("own_cod:make_step", STEP, "there is no module 'own_cod' in "),
        ("own_code.inner:make_step", STEP, r"there is no module 'own_code\.inner' in "),
        ("own_code:make_stp", STEP, r"own_code\.py has no 'make_stp' .* did you mean make_step\?"),
        ("own_code:make_step", "x = (\n", r"own_code\.py cannot be read: '\(' was never closed"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    text: str, code: str, says: str, tmp_path: Path
) -> None:
    write(tmp_path, code)
    with pytest.raises(BadInput, match=says):
        find(text, tmp_path)


@pytest.mark.parametrize(
    ("code", "given", "says"),
    [
        ("make_step = 3", {}, "own_code:make_step is no function: it is 3"),
        ("def make_step(device, seed): pass", {}, "called with device, streams, seed by keyword"),
        ("def make_step(*, device, streams, seed, n): pass", {}, "missing a required .*'n'"),
        (
            "def make_step(*, device, streams, seed, n): pass", {"m": 3},
            "and the tenant's parameters m, and missing a required",
        ),
        ("from json import *", {}, "own_code:make_step is no function: there is none"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_with_what_is_valid(
    code: str, given: dict[str, int], says: str, tmp_path: Path
) -> None:
    write(tmp_path, code)
    with pytest.raises(BadInput, match=says) as raised:
        load("own_code:make_step", tmp_path, given)
    assert "def make_step(*, device, streams, seed" in str(raised.value)
    assert problem("own_code:make_step", str(tmp_path), given) == str(raised.value)


def test_a_tenants_parameters_are_arguments(tmp_path: Path) -> None:
    write(tmp_path, "def make_step(*, device, streams, seed, n): pass")
    load("own_code:make_step", tmp_path, {"n": 3})
    assert problem("own_code:make_step", str(tmp_path), {"n": 3}) == ""


def test_another_module_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, STEP, f"{name}/own_code.py")
    load("own_code:make_step", tmp_path / "a", {})
    with pytest.raises(BadInput, match=r"has a module 'own_code' already, from .*rename own_co"):
        load("own_code:make_step", tmp_path / "b", {})


def test_a_module_that_raises_carries_its_own_frames_alone(tmp_path: Path) -> None:
    write(tmp_path, "import json\ndef read():\n    return json.loads('x')\nread()\n" + STEP)
    with pytest.raises(OwnCodeFailed) as raised:
        load("own_code:make_step", tmp_path, {})
    assert str(raised.value) == (
        "own_code:make_step: its module raised:\n"
        "Traceback (its own frames):\n"
        '  File "own_code.py", line 4, in <module>\n'
        "    read()\n"
        '  File "own_code.py", line 3, in read\n'
        "    return json.loads('x')\n"
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    )


def step_of(make: Callable[..., Any], streams: int = 1) -> bool:
    """Run one request of a function; return whether it is launched, rather than launches."""
    device = HostDevice()
    with device.open_streams(streams) as pool:
        enqueue, once = prepared(
            "m:make", partial(make, device=device, seed=7, n=2), pool.streams, Path()
        )
        before = pool.launched
        enqueue(pool.streams)
        pool.synchronize()
        assert (pool.launched == before + 1) or not once
    return once


def test_a_step_is_one_launch_or_launches_itself_on_the_streams_it_takes() -> None:
    seen: list[Any] = []

    def make(**given: Any) -> Callable[[], None]:
        seen.append({name: value for name, value in given.items() if name in ("seed", "n")})
        return lambda: seen.append(torch.is_inference_mode_enabled())

    def make_taking(*, streams: Sequence[Any], **_: Any) -> Callable[[Sequence[Any]], None]:
        def step(given: Sequence[Any]) -> None:
            assert list(given) == list(streams)
            for stream in given:
                stream.launch(seen.append, stream.index)

        return step

    assert step_of(make)
    assert seen[0] == {"seed": 7, "n": 2}
    assert len(seen) == 2
    assert not step_of(make_taking, streams=3)
    assert sorted(seen[2:]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("step", "streams", "says"),
    [
        (None, 1, "returned None; it must return the step"),
        (lambda a, b: None, 1, "must take no argument, or one: the streams"),
        (lambda: None, 2, "runs on one stream, and the tenant has 2"),
    ],
)
def test_what_is_no_step_is_refused(step: Any, streams: int, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        step_of(lambda **_: step, streams)


def test_an_error_of_a_request_keeps_its_kind() -> None:
    def make(**_: Any) -> Callable[[], None]:
        def step() -> None:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")

        return step

    with pytest.raises(OwnCodeFailed, match="m:make: a request raised:\nTraceback") as raised:
        step_of(make)
    failure = describe_failure(raised.value)
    assert failure.retire_process
    assert failure.reason == str(raised.value)
    assert "in step" in failure.reason
    assert "own_function.py" not in failure.reason.replace("test_own_function.py", "")


def make_step(*, device: object, streams: object, seed: int) -> Callable[[], None]:
    return lambda: None


def test_what_prepares_a_step_is_told_from_what_is_called() -> None:
    assert prepares_a_step(make_step)
    assert not prepares_a_step(lambda: None)
    assert not prepares_a_step(lambda device=None, streams=None, seed=0: None)
    prepared_one = workload_of(make_step, None, Path())
    assert isinstance(prepared_one, PreparedFunction)
    assert prepared_one.work_per_iteration() == {"iterations": 1.0}
    assert not isinstance(workload_of(lambda: None, None, Path()), PreparedFunction)


def test_each_stream_has_a_step_of_its_own_prepared_once() -> None:
    made: list[list[int]] = []
    ran: list[int] = []

    def make(*, device: Any, streams: Any, seed: int) -> Callable[[], None]:
        (stream,) = streams
        made.append([stream.index, seed])
        return lambda: ran.append(stream.index)

    device = HostDevice()
    workload = workload_of(make, {"requests": 2}, Path())
    assert workload.gradients
    workload.setup(Setup(device, 2, 5))
    with device.open_streams(2) as pool:
        for _ in range(3):
            workload.iterate(pool.streams)
        pool.synchronize()
    assert made == [[0, 5], [1, 5]]
    assert sorted(ran) == [0, 0, 0, 1, 1, 1]
    assert workload.work_per_iteration() == {"requests": 2}


async def coroutine() -> None:
    """Nothing of it runs when it is called."""


class Awaited:
    async def __call__(self) -> None:
        """Likewise."""


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


def future() -> asyncio.Future[None]:
    with closing(asyncio.new_event_loop()) as loop:
        return loop.create_future()


def run_once(workload: FunctionWorkload, pool: StreamPool) -> None:
    workload.iterate(pool.streams)
    pool.synchronize()


@pytest.mark.parametrize(
    ("waits", "kind"),
    [
        (coroutine, "coroutine"),
        (generator, "generator"),
        (asynchronous_generator, "async_generator"),
        (future, "Future"),
        (concurrent.futures.Future, "Future"),
        (torch.futures.Future, "Future"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_result_that_waits_to_be_run_is_refused(waits: Callable[[], Any], kind: str) -> None:
    """What wraps it is an ordinary function: only its result tells."""

    def step() -> Any:
        return waits()

    says = f"returned a {kind}: its work waits to be run, so it would not be measured"
    with pytest.raises(BadInput, match=f"^the step of m:make {says}"):
        step_of(lambda **_: step)
    with pytest.raises(BadInput, match=says):
        step_of(lambda **_: lambda streams: waits())
    with pytest.raises(BadInput, match=f"^what the step of m:make launches {says}"):
        step_of(lambda **_: lambda streams: streams[0].launch(waits))
    device = HostDevice()
    with device.open_streams(1) as pool:
        for workload, who in (
            (workload_of(step, None, Path()), "^" + re.escape(step.__qualname__) + " "),
            (FunctionWorkload(lambda streams: waits(), None), ""),
            (
                FunctionWorkload(lambda streams: streams[0].launch(waits), None),
                "^what .* launches ",
            ),
        ):
            with pytest.raises(BadInput, match=who + says):
                run_once(workload, pool)


def test_results_of_other_kinds_are_none_of_ours() -> None:
    for result in (None, torch.zeros(1), [1], iter([1]), "x"):
        step_of(lambda result=result, **_: lambda: result)


@pytest.mark.parametrize("function", [coroutine, Awaited(), generator, partial(generator)])
def test_a_function_whose_call_runs_nothing_is_refused(function: Any) -> None:
    says = "calling it runs none of its code, so nothing would be measured"
    with pytest.raises(BadInput, match=says):
        workload_of(function, None, Path())
    with pytest.raises(BadInput, match=says):
        step_of(lambda **_: function)
