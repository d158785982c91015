"""Models as workloads of tenants, with seeded or loaded weights."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pytest_hwqueue.data.errors import BadInput, CheckFailed, HwqError, translated
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.devices.kinds import resolve_size
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
from pytest_hwqueue.parts.devices.torch_settings import tf32_allowed
from pytest_hwqueue.parts.workloads.numerics import require_close, set_precision
from pytest_hwqueue.parts.workloads.tenants.families import (
    ModelFamily,
    TransformersFamily,
    transformers,
)
from pytest_hwqueue.parts.workloads.tenants.shapes import (
    ModelSize,
    model_family,
    model_shape,
)
from pytest_hwqueue.parts.workloads.workload import MatmulType

# transformers draws from torch's global generator and sets torch's default format, which threads of
# a process share.
_one_at_a_time = threading.Lock()
_HOST = torch.device("cpu")
_WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


def import_model(name: str) -> None:
    """Import all that making a model takes; nothing is drawn, and no thread or device used.

    Raises:
        HwqError: if the library that makes it is not installed.
        BadInput: if there is no such model.

    """
    with torch.device("meta"):
        model_family(name).build("tiny", torch.float32)


def problem(name: str) -> str:
    """Import a model as `import_model` does; return why it cannot be used, or an empty text."""
    try:
        import_model(name)
    except HwqError as error:
        return str(error)
    return ""


def seeded_model(
    family: ModelFamily,
    size: ModelSize,
    seed: int,
    dtype: torch.dtype,
    place: torch.device = _HOST,
    **changed: Any,
) -> Any:
    """Build a model for inference, its weights drawn from ``seed``; torch's random state stays.

    Args:
        family: which model.
        size: of what the family offers.
        seed: the same weights in every process.
        dtype: numeric format of the weights.
        place: draws the weights. Those of the host are the same bits everywhere; an accelerator
            draws others, hundreds of millions in a fraction of the time.
        changed: fields of the configuration, instead of the family's.

    Raises:
        HwqError: if the library that makes it is not installed.
        BadInput: if that library has no such model.

    """
    drawing = [] if place.type == "cpu" else [place]
    with _one_at_a_time, torch.random.fork_rng(devices=drawing), torch.no_grad(), place:
        torch.manual_seed(seed)
        model = family.build(size, dtype, **changed)
        family.tame(model)
    return model.eval().requires_grad_(False)


def loaded_model(
    family: TransformersFamily, size: ModelSize, folder: Path, dtype: torch.dtype, *, values: bool
) -> Any:
    """Load a model from a folder as ``save_pretrained`` writes one.

    Args:
        family: which model the folder must hold.
        size: likewise.
        folder: with config.json and weights in safetensors files; pickled ones are refused.
        dtype: numeric format that the weights are turned into.
        values: whether to read the weights; a device without values needs only their shapes.

    Raises:
        BadInput: naming the folder and what is missing or wrong in it.
        HwqError: if transformers is not installed.

    """
    library = transformers()
    configuration = _configuration(library, family, size, folder)
    if not any((folder / name).is_file() for name in _WEIGHT_FILES):
        raise BadInput(
            f"{folder}: no {' or '.join(_WEIGHT_FILES)}; weights must be safetensors files "
            "(pickled ones are not read): save the model again with save_pretrained"
        )
    model_class = getattr(library, family.model_class)
    # An error of safetensors' own is no ValueError and no OSError.
    broken = importlib.import_module("safetensors").SafetensorError
    with _one_at_a_time:
        if not values:
            return model_class.from_config(configuration, dtype=dtype)
        said = f"{folder}: the weights cannot be loaded"
        with translated(BadInput, said, OSError, ValueError, RuntimeError, broken):
            model, found = model_class.from_pretrained(
                folder, config=configuration, dtype=dtype, local_files_only=True,
                use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
    missing = sorted(found["missing_keys"])
    if missing:
        some = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise BadInput(
            f"{folder}: {len(missing)} weights of {type(model).__name__} are missing: {some}"
        )
    return model


def _configuration(library: Any, family: TransformersFamily, size: ModelSize, folder: Path) -> Any:
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give one with config.json and its weights")
    file = folder / "config.json"
    with translated(BadInput, f"{file} cannot be read", OSError, ValueError):
        contents = json.loads(file.read_text(encoding="utf-8"))
    configuration_class = getattr(library, family.configuration_class)
    wanted_type = configuration_class.model_type
    found_type = contents.get("model_type") if isinstance(contents, dict) else None
    if found_type != wanted_type:
        raise BadInput(f"{file}: model_type is {found_type!r}, must be {wanted_type!r}")
    configuration = configuration_class.from_pretrained(folder, local_files_only=True)
    wanted = family.configuration(size)
    for name in family.identity:
        found = getattr(configuration, name)
        if found != wanted[name]:
            raise BadInput(f"{file}: {name} is {found}, must be {wanted[name]}")
    return configuration


_IN_WORDS = {"fp32": "fp32 without TF32", "tf32": "fp32 with TF32", "bf16": "bf16", "fp16": "fp16"}
# Relative error of the norm between two passes that a library may compute by different
# algorithms: a single product's, times ten for the depth.
_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}


@dataclass(eq=False)
class OpenModel:
    """A model with its weights and inputs on a device.

    Attributes:
        run: one forward pass.
        stream: on which requests are enqueued.
        device: where it runs.
        dtype: of weights, inputs and arithmetic.
        items_per_request: images, sequences or tokens in one request.
        description: the model, its inputs, its numeric format and its weights, for people.
        parameters: number of weights.
        output: of the last forward pass, which may still run; None before the first.

    """

    run: Callable[[], torch.Tensor]
    stream: Stream
    device: Device
    dtype: MatmulType
    items_per_request: int
    description: str
    parameters: int
    output: torch.Tensor | None = field(default=None, init=False)

    def request(self) -> None:
        """Enqueue one forward pass on the stream, without waiting for it.

        Raises:
            RuntimeError: if another model of this process has changed whether TF32 is allowed.

        """
        if self.dtype in ("fp32", "tf32") and _precision() != self.dtype:
            raise RuntimeError(
                f"{self.description}: opened with dtype {self.dtype}, but since then something in "
                f"this process set {_precision()}; give all its models the same dtype, or each a "
                "separate process"
            )
        self.stream.launch(self.forward)

    def forward(self) -> None:
        """Run one forward pass where it is called: what `request` launches."""
        # Inference mode belongs to a thread, and a request may come from any.
        with torch.inference_mode():
            self.output = self.run()

    def check(self) -> None:
        """Compare one request's output with a plain pass, on no stream of the pool's.

        Only where the device has values. Waits for the stream.

        Raises:
            CheckFailed: if they differ, or a value is not finite.

        """
        self.output = None
        self.request()
        self.stream.synchronize()
        if self.output is None:
            raise CheckFailed(f"{self.description}: the request computed nothing")
        with torch.inference_mode(), _plain_stream(self.device):
            expected = self.run()
            require_close(self.description, self.output, expected, _TOLERANCES[self.dtype])


def open_models(
    tenant: Tenant, device: Device, streams: Sequence[Stream], seed: int
) -> list[OpenModel]:
    """Build a model with its weights on the device, and inputs for requests on each of the streams.

    The weights are there once; only they are shared, so that requests may run at the same time.
    The streams' pool must be open.

    Sets for the whole process whether products and convolutions in float32 may use TF32, if
    ``dtype`` is ``fp32`` (they may not) or ``tf32``.

    Args:
        tenant: whose model, of which size, batch and parameters, and whose weights.
        device: where it runs.
        streams: the stream on which the requests of each result are enqueued.
        seed: of the inputs, and of the weights unless it has a folder of them.

    Raises:
        BadInput: if there is no model of that name, a parameter is not valid, or the folder lacks
            something.
        HwqError: if the library that makes it is not installed.

    """
    assert tenant.model is not None
    name, batch, weights = tenant.model, tenant.batch or 1, tenant.weights
    # Models are full or tiny: a small size only makes the window short.
    tiny = resolve_size(tenant.size, device.kind) == "tiny"
    size: ModelSize = "tiny" if tiny else "full"
    family = model_family(name)
    shape = model_shape(name, size, tenant.parameters)
    dtype = shape.dtype
    if weights is None:
        model = seeded_model(family, size, seed, TORCH_TYPES[dtype])
    elif not isinstance(family, TransformersFamily):
        raise BadInput(f"{name}: its weights are seeded; leave --hwq-weights out")
    else:
        values = device.capabilities.has_values
        model = loaded_model(family, size, Path(weights), TORCH_TYPES[dtype], values=values)
    model.eval().requires_grad_(False)
    if device.torch_device.type != "cpu":
        model.to(device.torch_device)
    generator = torch.Generator().manual_seed(seed)
    forwards = [family.forward(model, batch, shape, generator) for _ in streams]
    if dtype in ("fp32", "tf32"):
        set_precision(dtype)
    if device.torch_device.type != "cpu":
        # Weights were copied on whichever stream was current.
        torch.cuda.synchronize(device.torch_device)
    count = sum(parameter.numel() for parameter in model.parameters())
    items = family.items.format(**shape.model_dump())
    description = (
        f"{name} ({size}), batch {batch}, {items}, {_IN_WORDS[dtype]}, "
        f"{count / 1e6:,.1f} million weights from {weights or 'a seed'}"
    )
    return [
        OpenModel(forward, stream, device, dtype, batch, description, count)
        for forward, stream in zip(forwards, streams, strict=True)
    ]


def _precision() -> MatmulType:
    return "tf32" if tf32_allowed() else "fp32"


def _plain_stream(device: Device) -> AbstractContextManager[object]:
    """Make the device's default stream current: a launch leaves its own current behind it."""
    if device.torch_device.type == "cpu":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.default_stream(device.torch_device))
