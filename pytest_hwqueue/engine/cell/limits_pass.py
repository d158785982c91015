"""What share of the device's own limits a cell takes: the last pass of a cell.

It comes after all others, so that what it loads and allocates is in none of their figures.
"""

from __future__ import annotations

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.data.metrics.latency import throughput
from pytest_hwqueue.data.metrics.limits import limit_share
from pytest_hwqueue.engine.cell.attempt import describe_failure
from pytest_hwqueue.engine.cell.cell import OpenCell
from pytest_hwqueue.parts.devices.limits import FRONT_END, device_limit


def take_limits(cell: OpenCell, kernels: int | None) -> None:
    """Measure the limits that the cell's work counts against, and what it takes of them.

    Args:
        cell: measured.
        kernels: of an iteration; None if they were not counted.

    """
    device, draft = cell.device, cell.draft
    samples, ranks = draft.samples, cell.request.plan.rank_sync.ranks
    if device.capabilities.host or ranks.size > 1 or samples is None:
        return
    if "throughput" in draft.metrics.refused:
        # Of what is no rate of the device there is no share.
        return
    cell.stage("limits")
    used = cell.request.workload.limits_used()
    if kernels:
        used = {FRONT_END: float(kernels), **used}
    iterations, pace_ns = samples.pace()
    shares = []
    for name, amount in used.items():
        try:
            most = device_limit(device, name)
        except Exception as error:  # whatever it is, the cell was measured
            reason = describe_failure(error, DeviceError).reason
            draft.metrics = draft.metrics.without(f"share of {name}", reason)
            continue
        reached = throughput(amount * iterations, pace_ns, most.unit)
        shares.append(limit_share(name, reached, most))
    draft.metrics = draft.metrics.model_copy(update={"limits": shares})
