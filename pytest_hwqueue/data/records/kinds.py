"""Kinds of devices by their labels, and what each can do; nothing is opened to know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.extensions import Registry, origin
from pytest_hwqueue.data.resources import RESOURCES, Resource

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# Those that are built in.
DeviceKind = Literal["cpu", "cuda", "hip", "sim"]


class Capabilities(NamedTuple):
    """What a device can do. Ask this rather than what kind of device it is.

    The defaults are those of an accelerator about which nothing else is known.

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
        partitions: streams can be bound to disjoint groups of its multiprocessors (a
            `PartitionedDevice`).
        cold_cache: its cache can be emptied between iterations (a `CachedDevice`).
        several_ranks: ranks can run one workload together, each on its own device (on the host they
            share it).
        collectives: torch.distributed's backend; ``fake`` takes tensors without values.
        visible_by: the environment variables that leave a process only some of these devices; the
            runtime reads the first that is set.
        driver_library: how the name of the library begins that every process which works on it has
            mapped; empty if there is none.
        contended: the resources for which tenants contend on it, or in its model.

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
    partitions: bool = False
    cold_cache: bool = False
    several_ranks: bool = True
    collectives: Literal["gloo", "nccl", "fake"] = "nccl"
    visible_by: tuple[str, ...] = ()
    driver_library: str = ""
    contended: tuple[Resource, ...] = RESOURCES


def _adopt(point: EntryPoint, found: Any) -> Capabilities:
    """Return the declared capabilities of another package's device, before it is opened."""
    can = getattr(found, "capabilities", None)
    if not callable(found) or not isinstance(can, Capabilities):
        raise BadInput(
            f"{origin(point)} names {found!r}, which is no class of a Device whose `capabilities` "
            "can be read before it is opened"
        )
    return can


_BUILT_IN = {
    "cpu": Capabilities(
        host=True,
        graphs=False,
        stream_priorities=False,
        collectives="gloo",
        # Its cores compute products; it has no blocks, and copies nothing to a device.
        contended=("multiprocessors", "memory", "launches"),
    ),
    "cuda": Capabilities(
        graphs_by_default=True,
        partitions=True,
        cold_cache=True,
        visible_by=("CUDA_VISIBLE_DEVICES",),
        driver_library="libcuda.so",
    ),
    # Graphs of HIP have not been measured yet.
    "hip": Capabilities(
        partitions=True,
        cold_cache=True,
        visible_by=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        driver_library="libamdhip64.so",
    ),
    "sim": Capabilities(
        simulated=True,
        virtual_time=True,
        runs_kernels=False,
        has_values=False,
        tenant_processes=False,
        graphs_by_default=True,
        partitions=True,
        several_ranks=False,
        collectives="fake",
        # A kernel takes as long whatever else reads memory, and blocks start as soon as they fit.
        contended=("multiprocessors", "copies", "launches"),
    ),
}


# How NVIDIA's UUIDs begin, of GPUs and of MIG instances.
UUIDS = ("GPU-", "MIG-")


# Not labels: they are resolved to some.
UNRESOLVED = ("auto", "all")


# A package adds one by the entry point ``KIND = "module:Class"``; the class is called with a label,
# which is the kind, or ``KIND:`` and whatever the class can read.
KINDS = Registry("pytest_hwqueue.devices", _BUILT_IN, _adopt)


def kind_of(label: str) -> str:
    """Return the kind of a device by its label, such as ``cuda`` for ``cuda:1``."""
    return label.partition(":")[0]


def capabilities_of(device: str) -> Capabilities:
    """Return what a device can do, by its label or kind; an unknown one is an accelerator."""
    if device in UNRESOLVED:
        return Capabilities()
    try:
        return KINDS[kind_of(device)]
    except (KeyError, BadInput):
        # Whoever chooses devices refuses this one, and says why.
        return Capabilities()


def device_names() -> str:
    """Return what `--hwq-device` accepts, for messages."""
    built_in = "auto, cpu, cuda, cuda:N, cuda:MIG-UUID, hip, hip:N, all, sim:h200, sim:FILE.yaml"
    return ", ".join([built_in, *KINDS.added])


def can_name_devices(text: str) -> bool:
    """Whether `--hwq-device` takes a text; whether there is such a device is found out later."""
    kind, colon, which = text.partition(":")
    if kind == "sim":
        return bool(which)
    indexed = kind in ("cuda", "hip") and (not colon or which.isdecimal())
    by_uuid = kind == "cuda" and which.startswith(UUIDS)
    return indexed or by_uuid or text in ("cpu", *UNRESOLVED) or kind in KINDS.added
