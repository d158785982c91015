"""Extensions by name: the built-in ones, and those of other packages, from entry points.

Installed packages are searched only for a name that is not built in, or to list all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, NoReturn, TypeVar

from pytest_hwqueue.data.errors import BadInput

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """The extensions of one kind, built-in ones first.

    Args:
        group: of the entry points by which other packages add their own, each under its name.
        built_in: ours.
        adopt: makes an extension from an entry point and the object it names; raises BadInput
            if that is wrong.

    """

    def __init__(
        self,
        group: str,
        built_in: Mapping[str, Thing],
        adopt: Callable[[EntryPoint, Any], Thing],
    ) -> None:
        self.group = group
        self.built_in = dict(built_in)
        self._adopt = adopt
        self._adopted: dict[EntryPoint, Thing] = {}

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        """The entry points of other packages by name, in alphabetical order; none is loaded.

        Raises:
            BadInput: if one has the name of a built-in extension, or two have the same name.

        """
        found: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            if point.name in self.built_in:
                raise BadInput(f"{origin(point)} takes a name that is built in")
            other = found.setdefault(point.name, point)
            # A package that is on the path twice is listed twice.
            if other.value != point.value:
                raise BadInput(f"{origin(point)} takes the name of {origin(other)}")
        return found

    def __getitem__(self, name: str) -> Thing:
        """Return an extension by name; KeyError if there is none, BadInput if unusable."""
        if name in self.built_in:
            return self.built_in[name]
        point = self.added[name]
        if point not in self._adopted:
            self._adopted[point] = self._adopt(point, load(point))
        return self._adopted[point]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.added

    def __len__(self) -> int:
        return len(self.built_in) + len(self.added)


def load(point: EntryPoint) -> Any:
    """Import the object that an entry point names.

    Raises:
        BadInput: naming the package, and why it cannot be imported.

    """
    try:
        with _exit_raised():
            return point.load()
    # Whatever another package's module raises is a reason why it cannot be used: sys.exit(), too.
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{origin(point)} cannot be loaded: {type(error).__name__}: {error}; repair that "
            "package, or uninstall it"
        ) from error


@contextmanager
def _exit_raised() -> Iterator[None]:
    """Let ``os._exit`` raise SystemExit in this thread: nobody could say who had ended pytest."""
    end, here = os._exit, (os.getpid(), threading.get_ident())
    inside = True

    def raising(status: int) -> NoReturn:
        # A forked child must end; and who imports the function keeps it.
        if inside and here == (os.getpid(), threading.get_ident()):
            raise SystemExit(f"it called os._exit({status})")
        end(status)

    os._exit = raising
    try:
        yield
    finally:
        os._exit, inside = end, False


def origin(point: EntryPoint) -> str:
    """Describe an entry point for messages: its package, its group, and what it names."""
    return f"{package(point)}: entry point {point.name} = {point.value} of {point.group}"


def package(point: EntryPoint) -> str:
    """Return the name and the version of an entry point's package."""
    return "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
