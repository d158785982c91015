"""Methods called in another process: their arguments, results and errors."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_hwqueue.data import errors
from pytest_hwqueue.data.errors import (
    TRAVELLING,
    BadInput,
    BadOption,
    HwqError,
    LeaseError,
    NotProven,
    SideFailed,
    travelling_as,
)
from pytest_hwqueue.data.records.cell import WarmUp
from pytest_hwqueue.parts.processes.channel import Channel, Message, ProcessEnded
from pytest_hwqueue.parts.processes.remote import answer_to, one_way, remote
from pytest_hwqueue.plugin.worker.test_run import packed, unpacked


class Calls:
    def longer(self, warm_up: WarmUp, by: int = 1) -> WarmUp:
        raise NotImplementedError

    def failing(self, how: str) -> None:
        raise NotImplementedError

    @one_way
    def told(self, values: tuple[str, float | None]) -> None:
        raise NotImplementedError

    @one_way
    def reported(self, data: dict[str, Any]) -> None:
        raise NotImplementedError


class _Special(NotProven):
    pass


class Target(Calls):
    def __init__(self) -> None:
        self.heard: list[object] = []

    def longer(self, warm_up: WarmUp, by: int = 1) -> WarmUp:
        return warm_up.model_copy(update={"iterations": warm_up.iterations + by})

    def failing(self, how: str) -> None:
        if how == "option":
            raise BadOption("--hwq-size", "huge", f"for {how}")
        raise {"lease": LeaseError, "special": _Special, "base": HwqError}[how](f"for {how}")

    def told(self, values: tuple[str, float | None]) -> None:
        self.heard.append(values)

    def reported(self, data: dict[str, Any]) -> None:
        self.heard.append(data)


@pytest.fixture
def both() -> Iterator[tuple[Calls, Target]]:
    """The far end of a channel, and what its calls reach at the near one."""
    here, there = os.pipe(), os.pipe()
    near = Channel.to_process(here[0], there[1])
    far = Channel.from_process(there[0], here[1])
    target, answers = Target(), queue.SimpleQueue[Message]()

    def serve() -> None:
        while True:
            try:
                message = near.receive()
            except ProcessEnded:
                return
            assert message is not None
            answer = answer_to(message, Calls, target)
            if answer is not None:
                answers.put(answer)

    server = threading.Thread(target=serve)
    server.start()
    yield remote(Calls, far.send, answers.get), target
    far.close()
    server.join()
    near.close()


def test_paths_that_are_no_text_arrive_as_they_were(both: tuple[Calls, Target]) -> None:
    caller, target = both
    folder = os.fsdecode(b"caf\xe9")
    # As the keywords of a report have the names of its folders.
    report = {"keywords": {folder: 1, "test_mine": 2}, "nodeid": f"{folder}/test_mine.py"}
    caller.reported(packed(report))
    caller.longer(WarmUp(iterations=3, iteration_ns=5, stable=True, reason="stable"))
    assert unpacked(target.heard[-1]) == report


def test_arguments_and_results_keep_their_types(both: tuple[Calls, Target]) -> None:
    caller, _ = both
    given = WarmUp(iterations=3, iteration_ns=5, stable=True, reason="stable")
    assert caller.longer(given) == given.model_copy(update={"iterations": 4})
    assert caller.longer(given, by=3).iterations == 6


@pytest.mark.parametrize(
    ("how", "kind"),
    [("lease", LeaseError), ("special", NotProven), ("base", HwqError), ("option", BadInput)],
)
def test_an_error_is_raised_where_the_method_was_called(
    both: tuple[Calls, Target], how: str, kind: type[HwqError]
) -> None:
    with pytest.raises(HwqError, match=f"for {how}") as caught:
        both[0].failing(how)
    assert type(caught.value) is kind


def test_every_error_that_is_made_of_its_text_travels_as_itself() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    plain = {kind for kind in kinds if issubclass(kind, HwqError) and "__init__" not in vars(kind)}
    assert {*TRAVELLING.values()} == plain
    for kind in plain:
        assert TRAVELLING[travelling_as(kind("text"))] is kind
    assert travelling_as(SideFailed(["A"], "text")) == "error"


def test_only_public_methods_of_the_interface_can_be_called(both: tuple[Calls, Target]) -> None:
    for name in ("heard", "_secret", "__len__"):
        assert not hasattr(both[0], name)


def test_one_way_calls_arrive_in_order_before_one_that_is_answered(
    both: tuple[Calls, Target],
) -> None:
    caller, target = both
    for number in range(100):
        caller.told(("value", float(number)))
    caller.told(("none", None))
    with pytest.raises(LeaseError):
        caller.failing("lease")
    assert target.heard == [*(("value", float(n)) for n in range(100)), ("none", None)]


def test_a_call_with_a_wrong_argument_is_refused_before_it_is_sent(
    both: tuple[Calls, Target],
) -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'how'"):
        both[0].failing()  # type: ignore[call-arg]
