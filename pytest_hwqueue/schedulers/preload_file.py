"""The description of a preloaded scheduler: a YAML file, found by name, checked by field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pytest_hwqueue.errors import BadDescription, BadScheduler
from pytest_hwqueue.schedulers.description_file import (
    described_in,
    find_description,
    read_description,
)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServiceDescription(_Strict):
    """A program that runs along with the tenants."""

    command: list[str] = Field(
        min_length=1, description="program and arguments; a program with / goes from the file"
    )
    environment: dict[str, str] = Field(default_factory=dict)
    stop: Literal["INT", "TERM", "QUIT", "HUP", "KILL"] = Field(
        "TERM", description="signal that stops it"
    )
    ready: Pattern | None = Field(
        None, description="expression that its output matches once it is ready; None: at once"
    )


class ProofDescription(_Strict):
    """Evidence seen in a tenant only if the scheduler is active in it; all given is required."""

    maps: Pattern | None = Field(None, description="matches the path of a mapped file")
    output: Pattern | None = Field(None, description="matches a line that the process wrote")

    @model_validator(mode="after")
    def _something(self) -> ProofDescription:
        if self.maps is None and self.output is None:
            raise ValueError("give maps or output: a mode that cannot be proven is not measured")
        return self


class Description(_Strict):
    """A scheduler that is switched on by environment, preloads and library folders.

    Values of ``environment`` may contain ``{name}``, ``{priority}`` and ``{share}`` of the tenant
    and the file's own ``{folder}``. Paths are relative to the file's folder.
    """

    environment: dict[str, str] = Field(default_factory=dict)
    preload: list[str] = Field(default_factory=list, description="libraries for LD_PRELOAD")
    library_path: list[str] = Field(default_factory=list, description="for LD_LIBRARY_PATH")
    services: list[ServiceDescription] = Field(default_factory=list)
    proof: ProofDescription

    @model_validator(mode="after")
    def _by_fields(self) -> Description:
        for variable, instead in (("LD_PRELOAD", "preload"), ("LD_LIBRARY_PATH", "library_path")):
            if variable in self.environment:
                raise ValueError(f"environment sets {variable}; use the field {instead}")
        return self


def load(name: str, folders: Sequence[Path]) -> tuple[Path, Description]:
    """Find a description by name in ``folders``, or by its path, and read it.

    Raises:
        BadScheduler: if there is none, or if it is wrong, naming the file and the field.

    """
    file = find_description(name, folders)
    if file is None:
        searched = ", ".join(map(str, folders)) or "none"
        there_are = ", ".join(described_in(folders)) or "no descriptions"
        raise BadScheduler(
            f"preload:{name}: there is no {name}.yaml in the folders of --hwq-preloads "
            f"({searched}); there are {there_are}; or give the file's path"
        )
    try:
        return file, read_description(file, Description)
    except BadDescription as error:
        raise BadScheduler(f"preload:{name}: {error}") from None
