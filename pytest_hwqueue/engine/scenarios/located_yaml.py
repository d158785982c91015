"""Reads YAML as plain data that remembers each value's line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]

_DEFAULT_TAGS = {
    yaml.MappingNode: "tag:yaml.org,2002:map",
    yaml.SequenceNode: "tag:yaml.org,2002:seq",
}
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Problem:
    """Something wrong in a file: on which line (from 1), in which field, and why."""

    line: int
    field: str
    reason: str


@dataclass(frozen=True)
class LocatedYaml:
    """A file's content.

    Attributes:
        data: mappings, sequences and scalars.
        lines: the line of each value by its path; of one in a mapping, that of its key.
        problems: what YAML allows but a scenario does not, such as duplicate keys.

    """

    data: Any
    lines: Mapping[Path, int]
    problems: tuple[Problem, ...]

    def line(self, path: Path) -> int:
        """Return the line of a value, or of the innermost existing one around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def field_name(path: Path) -> str:
    """Format a path for people: ``tenants[0].batch``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


_OPEN = {"status", "method", "protocol", "timeout", "ready_timeout", "stop_timeout", "max_tokens"}


def may_be_secret(path: Path) -> bool:
    """Whether a value may be one that no message repeats: of a server, unless its field is open."""
    return "server" in path and path[-1] not in _OPEN


def read_yaml(text: str) -> LocatedYaml:
    """Read one YAML document; nothing in it is ever executed."""
    loader = None
    try:
        # Refuses control characters already here.
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        walk = _Walk(loader)
        data = None if node is None else walk.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return LocatedYaml(
            None, {}, (Problem(mark.line + 1 if mark else 1, "", _explained(error)),)
        )
    except yaml.YAMLError as error:
        return LocatedYaml(None, {}, (Problem(1, "", f"not YAML: {error}"),))
    except RecursionError:
        return LocatedYaml(None, {}, (Problem(1, "", "nested too deeply"),))
    finally:
        if loader is not None:
            loader.dispose()
    return LocatedYaml(data, walk.lines, tuple(walk.problems))


def _explained(error: yaml.MarkedYAMLError) -> str:
    reason = " ".join(part for part in (error.context, error.problem) if part)
    # Its name may be a secret that begins with a star, a handle of a tag one with !.
    if "undefined alias" in reason:
        return "not YAML: aliases (*name) are not supported: quote text that begins with *"
    reason = re.sub(r" (['\"])[^<'\"].+\1", "", reason)
    if "mapping values are not allowed" in reason:
        reason += '; quote text that holds a colon: "constant: 20/s"'
    return f"not YAML: {reason}"


class _Walk:
    """Turns nodes into data and notes their lines."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.lines: dict[Path, int] = {(): 1}
        self.problems: list[Problem] = []
        self._loader = loader
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._seen:
            # An alias repeats what it names: a few lines could hold more than any memory.
            reason = "aliases (*name) are not supported: write it out"
            self.problems.append(Problem(self.lines[path], field_name(path), reason))
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, path, _DEFAULT_TAGS[yaml.SequenceNode])
            return [self.value(each, (*path, index)) for index, each in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        plain = self._loader.resolve(  # type: ignore[no-untyped-call]
            yaml.ScalarNode, node.value, (True, False)
        )
        if not self._check_tag(node, path, plain if node.style is None else _TEXT):
            return None
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            # Such as a date that no calendar has, or a number of thousands of digits.
            if may_be_secret(path):
                return self._refuse(node, path, "is not valid; quote it")
            return self._refuse(node, path, f"{node.value[:40]!r} is not valid: {error}")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._check_tag(node, path, _DEFAULT_TAGS[yaml.MappingNode])
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                self._refuse(key, path, f"a key must be text, not {_shown(key)}")
                continue
            inner = (*path, key.value)
            if key.value in data:
                first = self.lines[inner]
                self._refuse(key, inner, f"stands here twice; the first is on line {first}")
                continue
            self.lines[inner] = key.start_mark.line + 1
            data[key.value] = self.value(value, inner)
        return data

    def _check_tag(self, node: yaml.Node, path: Path, expected: str) -> bool:
        if node.tag == expected:
            return True
        if may_be_secret(path):
            self._refuse(node, path, "tags are not supported: quote text that begins with !")
        else:
            self._refuse(node, path, f"the tag {node.tag!r} is not supported: leave it out")
        return False

    def _refuse(self, node: yaml.Node, path: Path, reason: str) -> None:
        self.problems.append(Problem(node.start_mark.line + 1, field_name(path), reason))


def _shown(key: yaml.Node) -> str:
    if isinstance(key, yaml.ScalarNode):
        return f"{key.value!r}; quote it"
    return "a list or a table"
