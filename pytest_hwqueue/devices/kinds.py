"""What devices of each kind can do, for whoever must know it before one is opened; no torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

DeviceKind = Literal["cpu", "cuda", "hip", "sim"]


class Capabilities(NamedTuple):
    """What a device can do. Ask this rather than what kind of device it is.

    The defaults are those of an accelerator that nothing else is known of.

    Attributes:
        simulated: its figures are a model's, and are labelled so wherever they appear.
        virtual_time: its clock is a model's: nothing on this machine can disturb it.
        runs_kernels: kernels really run, so code is compiled for it, memory is allocated on it, and
            its clocks may throttle; otherwise kernels are only costed.
        has_values: tensors hold values; if not, results cannot be checked.
        tenant_processes: several processes of this machine can share it as tenants.
        host: it is this machine's CPU: each stream is a thread, and ranks share its cores.
        graphs: launches can be captured into a graph.
        graphs_by_default: `--hwq-dispatch=auto` captures graphs, since they have been measured.
        stream_priorities: its queues have priorities.
        several_ranks: ranks can run one workload together, each on a device of its own (on the
            host they share it).
        collectives: torch.distributed's backend; ``fake`` takes tensors without values.

    """

    simulated: bool = False
    virtual_time: bool = False
    runs_kernels: bool = True
    has_values: bool = True
    tenant_processes: bool = True
    host: bool = False
    graphs: bool = True
    graphs_by_default: bool = False
    stream_priorities: bool = True
    several_ranks: bool = True
    collectives: Literal["gloo", "nccl", "fake"] = "nccl"


KINDS: dict[str, Capabilities] = {
    "cpu": Capabilities(host=True, graphs=False, stream_priorities=False, collectives="gloo"),
    "cuda": Capabilities(graphs_by_default=True),
    # Graphs of HIP have not been measured yet.
    "hip": Capabilities(),
    "sim": Capabilities(
        simulated=True,
        virtual_time=True,
        runs_kernels=False,
        has_values=False,
        tenant_processes=False,
        graphs_by_default=True,
        several_ranks=False,
        collectives="fake",
    ),
}


def kind_of(label: str) -> str:
    """Return the kind of a device by its label, such as ``cuda`` for ``cuda:1``."""
    return label.partition(":")[0]


def capabilities_of(device: str) -> Capabilities:
    """Return what a device can do, by its label or kind; an unknown one is an accelerator."""
    return KINDS.get(kind_of(device), Capabilities())


def can_name_devices(text: str) -> bool:
    """Whether `--hwq-device` takes a text; whether there is such a device is found out later."""
    kind, colon, which = text.partition(":")
    if kind == "sim":
        return bool(which)
    indexed = kind in ("cuda", "hip") and (not colon or which.isdecimal())
    return indexed or text in ("auto", "cpu", "all")
