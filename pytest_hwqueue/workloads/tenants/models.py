"""Models that tenants serve: one request is one forward pass on one stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from pytest_hwqueue.devices.protocol import Device, Stream
from pytest_hwqueue.errors import BadParameter, CheckFailed
from pytest_hwqueue.workloads.matmul import MatmulType, set_precision
from pytest_hwqueue.workloads.tenants.names import model_family
from pytest_hwqueue.workloads.tenants.shapes import MODEL_SIZES, ModelSize, model_shape
from pytest_hwqueue.workloads.tenants.weights import loaded_model, seeded_model
from pytest_hwqueue.workloads.workload import require_close

_TORCH_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_IN_WORDS = {"fp32": "fp32 without TF32", "tf32": "fp32 with TF32", "bf16": "bf16", "fp16": "fp16"}
# Relative error of the norm between two passes that a library may compute by different
# algorithms: a single product's, times ten for the depth.
_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}


class OpenModel:
    """A model with its weights and inputs on a device.

    Attributes:
        items_per_request: images, sequences or tokens in one request.
        description: the model, its inputs, its numeric format and its weights, for people.
        parameters: number of weights.

    """

    def __init__(
        self,
        forward: Callable[[], torch.Tensor],
        stream: Stream,
        device: Device,
        dtype: MatmulType,
        items_per_request: int,
        description: str,
        parameters: int,
    ) -> None:
        self.items_per_request = items_per_request
        self.description = description
        self.parameters = parameters
        self._run = forward
        self._stream = stream
        self._device = device
        self._dtype = dtype
        self._output: torch.Tensor | None = None

    def request(self) -> None:
        """Enqueue one forward pass on the stream, without waiting for it.

        Raises:
            RuntimeError: if another model of this process has changed whether TF32 is allowed.

        """
        if self._dtype in ("fp32", "tf32") and _precision() != self._dtype:
            raise RuntimeError(
                f"{self.description}: opened with dtype {self._dtype}, but since then something in "
                f"this process set {_precision()}; give all its models the same dtype, or each a "
                "separate process"
            )
        self._stream.launch(self.forward)

    def forward(self) -> None:
        """Run one forward pass where it is called: what `request` launches."""
        # Inference mode belongs to a thread, and a request may come from any.
        with torch.inference_mode():
            self._output = self._run()

    def check(self) -> None:
        """Compare one request's output with a plain pass, on no stream of the pool's.

        Only where the device has values. Waits for the stream.

        Raises:
            CheckFailed: if they differ, or a value is not finite.

        """
        self._output = None
        self.request()
        self._stream.synchronize()
        if self._output is None:
            raise CheckFailed(f"{self.description}: the request computed nothing")
        with torch.inference_mode(), _plain_stream(self._device):
            expected = self._run()
            require_close(self.description, self._output, expected, _TOLERANCES[self._dtype])


def open_models(
    name: str,
    batch: int,
    device: Device,
    streams: Sequence[Stream],
    seed: int,
    weights: Path | None = None,
    size: ModelSize = "full",
    **parameters: Any,
) -> list[OpenModel]:
    """Build a model with its weights on the device, and inputs for requests on each of the streams.

    The weights are there once; only they are shared, so that requests may run at the same time.
    The streams' pool must be open.

    Sets for the whole process whether products and convolutions in float32 may use TF32, if
    ``dtype`` is ``fp32`` (they may not) or ``tf32``.

    Args:
        name: one of `names.MODELS`.
        batch: items in one request.
        device: where it runs.
        streams: the stream on which the requests of each result are enqueued.
        seed: of the inputs, and of the weights unless ``weights`` is given.
        weights: folder with config.json and safetensors files; None for seeded weights.
        size: ``full``, or ``tiny`` for a few ms on one core.
        parameters: of the model's class in `shapes`, over those of the size.

    Raises:
        BadParameter: if batch, size or a parameter is not valid.
        BadWeights: naming the folder and what is missing or wrong in it.
        MissingTransformers: if transformers is not installed.
        UnknownModel: listing the names there are.

    """
    family = model_family(name)
    _require(batch >= 1, name, "batch", batch, "an integer of at least 1")
    _require(size in MODEL_SIZES, name, "size", size, " or ".join(MODEL_SIZES))
    shape = model_shape(name, size, parameters)
    dtype = shape.dtype
    if weights is None:
        model = seeded_model(family, size, seed, _TORCH_TYPES[dtype])
    else:
        values = device.capabilities.has_values
        model = loaded_model(family, size, weights, _TORCH_TYPES[dtype], values=values)
    model.eval().requires_grad_(False)
    if device.torch_device.type != "cpu":
        model.to(device.torch_device)
    generator = torch.Generator().manual_seed(seed)
    forwards = [family.forward(model, batch, shape, generator) for _ in streams]
    if dtype in ("fp32", "tf32"):
        set_precision(dtype)
        # Convolutions have a switch of their own, which torch leaves on.
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    if device.torch_device.type != "cpu":
        # Weights were copied on whichever stream was current.
        torch.cuda.synchronize(device.torch_device)
    count = sum(parameter.numel() for parameter in model.parameters())
    description = (
        f"{name} ({size}), batch {batch}, {family.items(shape)}, {_IN_WORDS[dtype]}, "
        f"{count / 1e6:,.1f} million weights from {weights or 'a seed'}"
    )
    return [
        OpenModel(forward, stream, device, dtype, batch, description, count)
        for forward, stream in zip(forwards, streams, strict=True)
    ]


def _require(valid: bool, name: str, parameter: str, value: object, wanted: str) -> None:
    if not valid:
        raise BadParameter(f"{name}: {parameter} is {value!r}, must be {wanted}")


def _precision() -> MatmulType:
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _plain_stream(device: Device) -> AbstractContextManager[object]:
    """Make the device's default stream current: a launch leaves its own current behind it."""
    if device.torch_device.type == "cpu":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.default_stream(device.torch_device))
