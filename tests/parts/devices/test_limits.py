"""A device's own limits: measured on a model, they are what the model was given."""

from __future__ import annotations

import pytest

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.devices.limits import (
    FRONT_END,
    GRAPH_START,
    LIMITS,
    device_limit,
    matrix_units,
    measured_limit,
)
from pytest_hwqueue.parts.devices.torch_settings import Float32Precision

# From the gate's opening to the first start, a share of what is timed: small kernels are few here.
# Several products at once fill each other's last wave of blocks, which one leaves part empty.
TOLERANCE = {FRONT_END: 0.05, GRAPH_START: 0.05, matrix_units("fp32"): 0.03}


@pytest.mark.parametrize("name", LIMITS)
def test_what_is_measured_on_a_model_is_what_it_was_given(name: str) -> None:
    device = open_device("sim:h200")

    own, measured = device_limit(device, name), measured_limit(device, name)

    assert measured.unit == own.unit
    assert float(measured) == pytest.approx(float(own), rel=TOLERANCE.get(name, 0.005))
    assert measured.interval == (measured.value, measured.value)
    assert (own.n, own.interval) == (0, None)


def test_the_precision_of_products_stays_as_it_was() -> None:
    before = Float32Precision.now()
    for name in ("tf32", "fp32"):
        measured_limit(open_device("sim:h200"), matrix_units(name))
        assert Float32Precision.now() == before


def test_a_device_without_graphs_has_no_front_end_to_measure() -> None:
    with pytest.raises(DeviceError, match="the CPU has no graphs"):
        measured_limit(open_device("cpu"), FRONT_END)
