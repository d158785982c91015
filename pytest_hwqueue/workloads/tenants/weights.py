"""Models with seeded weights, or with those of a local folder; nothing is ever downloaded."""

from __future__ import annotations

import importlib
import json
import threading
from pathlib import Path
from typing import Any

import torch

from pytest_hwqueue.workloads.tenants.family import ModelFamily, transformers
from pytest_hwqueue.workloads.tenants.names import model_family
from pytest_hwqueue.workloads.tenants.shapes import ModelSize

# transformers draws from torch's global generator and sets torch's default format, which threads of
# a process share.
_one_at_a_time = threading.Lock()
_HOST = torch.device("cpu")
_WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


class BadWeights(ValueError):
    """A folder does not hold a model's weights; the text names the folder and what is missing."""


def import_model(name: str) -> None:
    """Import all that making a model takes; nothing is drawn, and no thread or device used.

    Raises:
        MissingTransformers: if transformers is not installed.

    """
    family, library = model_family(name), transformers()
    configuration = getattr(library, family.configuration_class)(**family.configuration("tiny"))
    with torch.device("meta"):
        getattr(library, family.model_class).from_config(configuration)


def seeded_model(
    family: ModelFamily,
    size: ModelSize,
    seed: int,
    dtype: torch.dtype,
    place: torch.device = _HOST,
) -> Any:
    """Build a model with weights drawn from ``seed``; the global random state is left as it was.

    Args:
        family: which model.
        size: of what the family offers.
        seed: the same weights in every process.
        dtype: numeric format of the weights.
        place: draws the weights. Those of the host are the same bits everywhere; an accelerator
            draws others, hundreds of millions in a fraction of the time.

    Raises:
        MissingTransformers: if transformers is not installed.

    """
    library = transformers()
    configuration = getattr(library, family.configuration_class)(**family.configuration(size))
    model_class = getattr(library, family.model_class)
    drawing = [] if place.type == "cpu" else [place]
    with _one_at_a_time, torch.random.fork_rng(devices=drawing), torch.no_grad(), place:
        torch.manual_seed(seed)
        model = model_class.from_config(configuration, dtype=dtype)
        family.tame(model)
    return model


def loaded_model(
    family: ModelFamily, size: ModelSize, folder: Path, dtype: torch.dtype, *, values: bool
) -> Any:
    """Load a model from a folder as ``save_pretrained`` writes one.

    Args:
        family: which model the folder must hold.
        size: likewise.
        folder: with config.json and weights in safetensors files; pickled ones are refused.
        dtype: numeric format that the weights are turned into.
        values: whether to read the weights; a device without values needs only their shapes.

    Raises:
        BadWeights: naming the folder and what is missing or wrong in it.
        MissingTransformers: if transformers is not installed.

    """
    library = transformers()
    configuration = _configuration(library, family, size, folder)
    if not any((folder / name).is_file() for name in _WEIGHT_FILES):
        raise BadWeights(
            f"{folder}: no {' or '.join(_WEIGHT_FILES)}; weights must be safetensors files "
            "(pickled ones are not read): save the model again with save_pretrained"
        )
    model_class = getattr(library, family.model_class)
    # An error of safetensors' own is no ValueError and no OSError.
    broken = importlib.import_module("safetensors").SafetensorError
    with _one_at_a_time:
        if not values:
            return model_class.from_config(configuration, dtype=dtype)
        try:
            model, found = model_class.from_pretrained(
                folder, config=configuration, dtype=dtype, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
        except (OSError, ValueError, RuntimeError, broken) as error:
            raise BadWeights(f"{folder}: the weights cannot be loaded: {error}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise BadWeights(
            f"{folder}: {len(missing)} weights of {type(model).__name__} are missing: {some}"
        )
    return model


def _configuration(library: Any, family: ModelFamily, size: ModelSize, folder: Path) -> Any:
    if not folder.is_dir():
        raise BadWeights(f"{folder}: no such folder; give one with config.json and its weights")
    file = folder / "config.json"
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadWeights(f"{folder}: config.json is missing") from None
    except ValueError as error:
        raise BadWeights(f"{file}: not JSON: {error}") from None
    configuration_class = getattr(library, family.configuration_class)
    wanted_type = configuration_class.model_type
    found_type = contents.get("model_type") if isinstance(contents, dict) else None
    if found_type != wanted_type:
        raise BadWeights(f"{file}: model_type is {found_type!r}, must be {wanted_type!r}")
    configuration = configuration_class.from_pretrained(folder, local_files_only=True)
    wanted = family.configuration(size)
    for field in family.identity:
        found = getattr(configuration, field)
        if found != wanted[field]:
            raise BadWeights(f"{file}: {field} is {found}, must be {wanted[field]}")
    return configuration
