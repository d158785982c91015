"""Method calls from one process to another, over a channel.

An interface is a class whose public methods are annotated: arguments and results cross as JSON and
are read back by their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from pytest_hwqueue.data import errors
from pytest_hwqueue.parts.processes.channel import Message

Interface = TypeVar("Interface")
Method = TypeVar("Method", bound=Callable[..., None])


def one_way(method: Method) -> Method:
    """Mark a method whose caller continues at once, and never hears of an error."""
    vars(method)["one_way"] = True
    return method


def remote(
    interface: type[Interface],
    send: Callable[..., None],
    answer: Callable[[], Message] = lambda: {},
) -> Interface:
    """Return an object whose methods are called in the process at a channel's other end.

    A method that is not one-way waits for its answer, and raises the `HwqError` that it raised
    there.

    Args:
        interface: its class; the other process passes each call to `answer_to`.
        send: sends each call, as `Channel.send` does.
        answer: waits for the next message of kind ``answer``; not called if all are one-way.

    """

    def calling(method: Callable[..., object]) -> Callable[..., object]:
        signature, name = inspect.signature(method), method.__name__
        waits = not hasattr(method, "one_way")

        def call(self: object, *positional: object, **named: object) -> object:
            arguments = dict(signature.bind(self, *positional, **named).arguments)
            del arguments["self"]
            content = to_jsonable_python(arguments, fallback=str)
            send("call", method=name, arguments=content, waits=waits)
            if not waits:
                return None
            found = answer()
            if found["error"]:
                raise getattr(errors, found["error"])(found["text"])
            return _reader(method, "return").validate_python(found["value"])

        return call

    methods = {name: calling(method) for name, method in _public(interface).items()}
    # Its state, if it has any, is at the other end.
    return cast("Interface", object.__new__(type(interface.__name__, (interface,), methods)))


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
    except errors.HwqError as error:
        # Others have subclasses of these, which their callers do not tell apart; and those that
        # are made of more than their text cannot be made again.
        kind = next(
            each
            for each in type(error).__mro__
            if each.__module__ == errors.__name__ and "__init__" not in vars(each)
        )
        return {"error": kind.__name__, "text": str(error)}


def _public(interface: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(interface, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


@cache
def _reader(method: Callable[..., object], name: str) -> TypeAdapter[Any]:
    """Return what reads an argument of a method, or its result (``return``)."""
    return TypeAdapter(get_type_hints(method)[name])
