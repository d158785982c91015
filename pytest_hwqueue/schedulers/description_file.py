"""Finds and reads a YAML file that describes a program: a preloaded scheduler, a neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from pytest_hwqueue.errors import BadDescription

_ENDINGS = (".yaml", ".yml")

Described = TypeVar("Described", bound=BaseModel)


def find_description(name: str, folders: Sequence[Path]) -> Path | None:
    """Return ``name`` if it is a path, or the file of that name in ``folders``, or None."""
    if "/" in name or name.endswith(_ENDINGS):
        return Path(name)
    files = (folder / f"{name}{ending}" for folder in folders for ending in _ENDINGS)
    return next((file for file in files if file.is_file()), None)


def described_in(folders: Sequence[Path]) -> list[str]:
    """Return the names described in folders."""
    return sorted(file.stem for folder in folders for file in folder.glob("*.y*ml"))


def read_description(file: Path, model: type[Described]) -> Described:
    """Read a description.

    Raises:
        BadDescription: naming the file and the wrong field.

    """
    try:
        return model.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadDescription(f"{file} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise BadDescription(f"{file}: {field}: {first['msg']}") from None
