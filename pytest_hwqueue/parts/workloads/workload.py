"""The interface of workloads; a new one is one file and one declaration in `registry`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from pytest_hwqueue.data.errors import BadInput, reason_of
from pytest_hwqueue.data.metrics.launching import LaunchedBy
from pytest_hwqueue.data.records.declared import LatencyRatio, Primary, Traffic
from pytest_hwqueue.data.records.kinds import Capabilities, capabilities_of
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.workloads import registry

if TYPE_CHECKING:
    import torch

# Declared where sessions read it that import no workload.
StreamRange = registry.StreamRange


# No more than this many launches are held at once in the timeline pass: an accelerator's launch
# queue takes about a thousand, then enqueueing waits for the device.
HELD_KERNELS = 800


_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

TORCH_SPELLINGS = BeforeValidator(lambda given: _FORMATS.get(str(given), given))
"""Of a parameter that is a numeric format: it may also be called as torch calls it."""

MatmulType = Annotated[Literal["fp32", "tf32", "bf16", "fp16"], TORCH_SPELLINGS]
"""Numeric formats of products; those of weights and inputs have the same names."""


class Parameters(BaseModel):
    """Base of a workload's typed parameters: unknown names are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class PrimaryLatency(Primary):
    """The latency that matters to a workload's user: shown first, and judged by the gate.

    ``per`` says what one sample is:

    - ``iteration``: a whole iteration, as the host observes it;
    - ``launch``: each launch tagged with ``name``, from ready to done;
    - ``request``: all launches of an iteration whose tags end in the same ``#REQUEST``, such as
      ``embed#3`` and ``generate#3``, from the first one's ready to the last one's done, over any
      streams;
    - ``call``: each launching call, as the thread of the host sees it that makes it, while a thread
      for each stream, or a process (`Workload.launched_by`), launches the stream's part of an
      iteration again and again. No stream may wait for another.

    Attributes:
        name: of one sample, as a standard term such as ``token``; a tag's name in records.
        per: what one sample is.
        description: what the user waits for, in a few words.
        alike: whether the samples of one iteration end together, as those of lanes that share the
            device do: only iterations then inform about the tail, and as many as P99 needs are
            planned.
        marks: what marks the end of a launch while all streams have work: a kernel that stores the
            time (stamps), which other streams' small kernels do not hold up, or an event, for
            launches that fill the device, behind which a kernel would wait for others' blocks, and
            for copies. None for launches of so many kernels that the launch queues do not hold
            them, and so long that launching them one by one keeps all streams at work: they are
            timed like other tags.
        bounded: whether an iteration bounds what a stream has in flight, so that no more than one
            is enqueued at once: a small launch may wait for all large ones that are.

    """

    description: str
    alike: bool = False
    marks: Literal["stamps", "events"] | None = "stamps"
    bounded: bool = False


ITERATION = PrimaryLatency("iteration", "iteration", "a whole iteration")


@dataclass(frozen=True)
class Ranks:
    """The processes that run a cell together, as torch.distributed's default group numbers them."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Where:
    """The settings under which a workload will run, known before anything is created."""

    device_kind: str
    streams: int
    ranks: int = 1
    dispatch: str = "eager"

    @property
    def capabilities(self) -> Capabilities:
        """What the device can do."""
        return capabilities_of(self.device_kind)


@dataclass(frozen=True)
class Setup:
    """A workload's means for setting itself up."""

    device: Device
    streams: int
    seed: int
    ranks: Ranks = Ranks()

    @property
    def where(self) -> Where:
        """The settings, without the dispatch mode, which set-up does not know."""
        return Where(self.device.kind, self.streams, self.ranks.size)

    def generator(self) -> torch.Generator:
        """Return a seeded generator on the device."""
        import torch

        return torch.Generator(device=self.device.torch_device).manual_seed(self.seed)


class Workload(ABC):
    """One kind of work on n streams.

    ``iterate`` only enqueues, through ``Stream.launch``, ``record`` and ``wait``; it never waits on
    the host. Buffers that cross streams live as long as the workload. What an iteration reads and
    what it leaves are public attributes: by them an author's tests compare it with a reference.
    """

    name: ClassVar[str]
    family: ClassVar[str]
    mark: ClassVar[str]
    description: ClassVar[str]
    stream_range: ClassVar[StreamRange]
    units: ClassVar[tuple[str, ...]]
    # Raised when the same parameters come to mean other work: its stored figures are then others.
    version: ClassVar[int] = 1
    primary: ClassVar[PrimaryLatency] = ITERATION
    tags: ClassVar[tuple[str, ...]] = ()
    # Why an iteration cannot be captured as a graph; empty if it can. `auto` is then eager.
    no_graph: ClassVar[str] = ""
    ratios: ClassVar[tuple[LatencyRatio, ...]] = ()
    parameter_model: ClassVar[type[Parameters]]
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]]
    gradients: ClassVar[bool] = False
    # Whether it runs collectives: then torch.distributed's default group exists from before `setup`
    # until after the last iteration, also for one rank.
    collective: ClassVar[bool] = False
    # References that do an iteration's computation and its communication alone: what the iteration
    # hides of the shorter one is a result.
    overlap: tuple[str, str] | None = None
    # Where launching calls are judged: who makes them, a thread for each stream, or a process.
    launched_by: LaunchedBy = "threads"
    # Decisions that data would make, drawn from the seed where a device has no values.
    decisions_drawn: tuple[str, ...] = ()

    def __init_subclass__(cls, declared: str = "") -> None:
        """Take over what the registry declares of a built-in workload, given its name.

        The type of its parameters is that of its annotation.
        """
        super().__init_subclass__()
        if declared:
            known = registry.WORKLOADS.built_in[declared]
            for each in registry.OF_CLASS:
                setattr(cls, each, getattr(known, each))
            cls.parameter_model = get_type_hints(cls)["parameters"]

    def __init__(self, parameters: Parameters) -> None:
        self.parameters: Parameters = parameters

    def require_applicable(self, where: Where) -> None:  # noqa: B027 - most run everywhere
        """Raise, before anything is created, if the workload cannot run with these settings.

        Raises:
            NotApplicable: naming the setting, and one that works.

        """

    @abstractmethod
    def setup(self, setup: Setup) -> None:
        """Make inputs and buffers."""

    @abstractmethod
    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue one iteration on ``streams`` (which may contain the same one several times)."""

    @abstractmethod
    def work_per_iteration(self) -> dict[str, float]:
        """Return the work of one iteration, by the class's ``units``, the headline first.

        If several ranks run the cell, the work of all of them together.
        """

    @abstractmethod
    def check(self, run_once: Callable[[], None]) -> None:
        """Poison the outputs, run one iteration, compare with a plain reference.

        Raises:
            CheckFailed: naming what differs, and by how much.

        """

    @classmethod
    def urgency(cls, streams: int) -> list[int]:
        """Return the priority of each stream's work: 0 is normal, larger is more urgent."""
        return [0] * streams

    def references(self) -> dict[str, Callable[[Sequence[Stream]], None]]:
        """Return iterations measured in the same run as the main one, by name, for `ratios`."""
        return {}

    def traffic(self) -> Traffic | None:
        """Return what one rank's collectives exchange in an iteration, for bandwidths; or None."""
        return None

    def limits_used(self) -> dict[str, float]:
        """Return what an iteration takes of the device's limits, by their names and in their units.

        Such as 0.55 of ``matrix bf16``, which is TFLOP (`parts.devices.limits`). Kernels are
        counted for every workload.
        """
        return {}

    def measured_apart(self) -> dict[str, float]:
        """Return separate measurements, named with their unit, such as ``compile_s``."""
        return {}

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return parameters to change so that the timeline pass can hold back all work at once."""
        return {}


def parameters_for(workload: type[Workload], size: str, given: Mapping[str, Any]) -> Parameters:
    """Return a workload's typed parameters: its size's values, overridden by those given.

    Raises:
        BadInput: naming the parameter, the value, and the valid names or values.

    """
    values = {**workload.sizes[size], **given}
    return valid_parameters(workload.name, workload.parameter_model, values)


def as_given(values: Parameters, given: Iterable[str]) -> dict[str, str]:
    """Return the parameters that were given, by name, each value spelt in the one way.

    So ``mm_dim=512,512,512`` and ``mm_dim=512`` name the same cell.
    """
    fields = type(values).model_fields
    return {
        name: _spelt(getattr(values, name)) for name in given if fields[name].exclude is not True
    }


def _spelt(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Checked = TypeVar("Checked", bound=BaseModel)


def valid_parameters(whose: str, model: type[Checked], values: Mapping[str, object]) -> Checked:
    """Return parameters; BadInput names whose they are, the wrong one, and what is valid."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            raise BadInput(f"{whose} has no parameter {name!r}; it has {known}") from None
        reason = reason_of(first)
        raise BadInput(f"{whose}.{name}={first['input']!r}: {reason}") from None
