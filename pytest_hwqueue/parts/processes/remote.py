"""Method calls from one process to another, over a channel.

An interface is a class whose public methods are annotated: arguments and results cross as JSON and
are read back by their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data.errors import TRAVELLING, HwqError, travelling_as
from pytest_hwqueue.parts.processes.channel import Message

Interface = TypeVar("Interface")
Method = TypeVar("Method", bound=Callable[..., None])
_ONE_WAY: set[Callable[..., object]] = set()


def one_way(method: Method) -> Method:
    """Mark a method whose caller continues at once, and never hears of an error."""
    _ONE_WAY.add(method)
    return method


def remote(
    interface: type[Interface],
    send: Callable[..., None],
    answer: Callable[[], Message] = lambda: {},
) -> Interface:
    """Return an object whose methods are called in the process at a channel's other end.

    A method that is not one-way waits for its answer, and raises the `HwqError` that it raised
    there, as one of those in `TRAVELLING`.

    Args:
        interface: its class; the other process passes each call to `answer_to`.
        send: sends each call, as `Channel.send` does.
        answer: waits for the next message of kind ``answer``; not called if all are one-way.

    """
    # It answers to the interface's names, and has none of its state, which is at the other end.
    return cast("Interface", _Remote(interface, send, answer))


class _Remote:
    """Sends each call of an interface's methods, and reads the answer."""

    def __init__(
        self, interface: type, send: Callable[..., None], answer: Callable[[], Message]
    ) -> None:
        # Read once: some calls are made while something is measured.
        self._methods = {
            name: (method, inspect.signature(method)) for name, method in _public(interface).items()
        }
        self._send = send
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._methods:
            raise AttributeError(f"{name} is no method that can be called in another process")
        return partial(self._call, *self._methods[name])

    def _call(
        self, method: Callable[..., object], signature: inspect.Signature, /,
        *positional: object, **named: object,
    ) -> object:  # fmt: skip
        arguments = dict(signature.bind(self, *positional, **named).arguments)
        del arguments["self"]
        content = to_jsonable_python(arguments, fallback=str)
        waits = method not in _ONE_WAY
        self._send("call", method=method.__name__, arguments=content, waits=waits)
        if not waits:
            return None
        found = self._answer()
        if found["error"]:
            raise TRAVELLING[found["error"]](found["text"])
        return _reader(method, "return").validate_python(found["value"])


def answer_to(call: Message, interface: type[Interface], target: Interface) -> Message | None:
    """Call a method as a message asks; return the content of the answer, None if nobody waits."""
    method = getattr(interface, call["method"])
    arguments = {
        name: _reader(method, name).validate_python(value)
        for name, value in call["arguments"].items()
    }
    bound = getattr(target, call["method"])
    if not call["waits"]:
        bound(**arguments)
        return None
    try:
        return {"value": to_jsonable_python(bound(**arguments)), "error": ""}
    except HwqError as error:
        return {"error": travelling_as(error), "text": str(error)}


def _public(interface: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(interface, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


@cache
def _reader(method: Callable[..., object], name: str) -> TypeAdapter[Any]:
    """Return what reads an argument of a method, or its result (``return``)."""
    return TypeAdapter(get_type_hints(method)[name])
