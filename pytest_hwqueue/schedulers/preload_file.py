"""The description of a preloaded scheduler: a YAML file, found by name, checked by field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pytest_hwqueue.schedulers.specification import BadScheduler

_ENDINGS = (".yaml", ".yml")


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
    """A program that runs beside the tenants."""

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
    """What is seen of a tenant only if the scheduler is active in it; all that is given counts."""

    maps: Pattern | None = Field(None, description="matches the path of a mapped file")
    output: Pattern | None = Field(None, description="matches a line that the process wrote")

    @model_validator(mode="after")
    def _something(self) -> ProofDescription:
        if self.maps is None and self.output is None:
            raise ValueError("give maps or output: a mode that cannot be proven is not measured")
        return self


class Description(_Strict):
    """A scheduler that is switched on by environment, preloads and library folders.

    ``{name}``, ``{priority}``, ``{share}`` of the tenant and the file's own ``{folder}`` may stand
    in values of ``environment``. Paths go from the file's folder.
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
        BadScheduler: if there is none, or naming the file and the field that is wrong.

    """
    file = _find(name, folders)
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        return file, Description.model_validate(values)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadScheduler(f"preload:{name}: {file} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise BadScheduler(f"preload:{name}: {file}: {field}: {first['msg']}") from None


def _find(name: str, folders: Sequence[Path]) -> Path:
    if "/" in name or name.endswith(_ENDINGS):
        return Path(name)
    for folder in folders:
        for ending in _ENDINGS:
            if (file := folder / f"{name}{ending}").is_file():
                return file
    there_are = sorted(file.stem for folder in folders for file in folder.glob("*.y*ml"))
    searched = ", ".join(map(str, folders)) or "none"
    raise BadScheduler(
        f"preload:{name}: there is no {name}.yaml in the folders of --hwq-preloads ({searched}); "
        f"there are {', '.join(there_are) or 'no descriptions'}; or give the file's path"
    )
