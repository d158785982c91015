"""``preload:NAME``: any scheduler that is preloaded, by its description."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pytest_hwqueue.data.errors import BadInput, NotProven, translated, within
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.processes.guardian import Order, Stop
from pytest_hwqueue.parts.processes.services import (
    Service,
    prepended,
    run_service,
    service_environment,
)
from pytest_hwqueue.parts.schedulers.declaration import SchedulerSpec
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, why_not_loaded
from pytest_hwqueue.parts.schedulers.syntax import (
    Scheduler,
    SchedulerPaths,
    TenantRequest,
)

_ENDINGS = (".yaml", ".yml")

Described = TypeVar("Described", bound=BaseModel)


def read_described(
    name: str,
    folders: Sequence[Path],
    model: type[Described],
    missing: str,
    known: Iterable[str] = (),
) -> tuple[Path, Described]:
    """Find a description by name in ``folders``, or by its path, and read it.

    Args:
        name: or path.
        folders: where it is looked for.
        model: of its fields.
        missing: what is said if it is not there.
        known: names of what needs no description.

    Raises:
        BadInput: if there is none, or if it is wrong, naming the file and the field.

    """
    file: Path | None = Path(name)
    if "/" not in name and not name.endswith(_ENDINGS):
        files = (folder / f"{name}{ending}" for folder in folders for ending in _ENDINGS)
        file = next((each for each in files if each.is_file()), None)
    if file is None:
        there = sorted(each.stem for folder in folders for each in folder.glob("*.y*ml"))
        names = ", ".join([*known, *there]) or "no descriptions"
        raise BadInput(f"{missing}; there are {names}; or give the file's path")
    with translated(BadInput, str(file), OSError, ValueError, yaml.YAMLError):
        return file, model.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


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
    """A program that runs along with the tenants."""

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

    def command_from(self, folder: Path) -> list[str]:
        """Return program and arguments, the program's path from the description's folder."""
        program, *arguments = self.command
        return [str(folder / program) if "/" in program else program, *arguments]

    @property
    def stopped_by(self) -> signal.Signals:
        """The signal that stops it."""
        return signal.Signals[f"SIG{self.stop}"]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text of a description with each ``{name}`` of ``values`` replaced."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def wait_until_ready(service: Service, pattern: str | None) -> None:
    """Wait until a service's output matches an expression; None: not at all.

    Raises:
        ServiceFailed: if it ends before, or takes too long.

    """
    if pattern is not None:
        service.wait_until(
            lambda: (
                re.search(pattern, service.log.read_text("utf-8", "replace"), re.MULTILINE)
                is not None
            ),
            f"wrote nothing that matches {pattern!r}",
        )


class ProofDescription(_Strict):
    """Evidence seen in a tenant only if the scheduler is active in it; all given is required."""

    maps: Pattern | None = Field(None, description="matches the path of a mapped file")
    output: Pattern | None = Field(None, description="matches a line that the process wrote")

    @model_validator(mode="after")
    def _something(self) -> ProofDescription:
        if self.maps is None and self.output is None:
            raise ValueError("give maps or output: a mode that cannot be proven is not measured")
        return self


class Description(_Strict):
    """A scheduler that is switched on by environment, preloads and library folders.

    Values of ``environment`` may contain ``{name}``, ``{priority}`` and ``{share}`` of the tenant
    and the file's own ``{folder}``. Paths are relative to the file's folder.
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


_OF_TENANT = re.compile(r"\{(name|priority|share)\}")
_LOADER_COMPLAINTS = ("cannot be preloaded", "undefined symbol", "wrong ELF class")


class Preload(Scheduler):
    """Tenants with a library preloaded, and the services it needs."""

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        searched = ", ".join(map(str, paths.preloads)) or "none"
        missing = f"there is no {spec.argument}.yaml in the folders of --hwq-preloads ({searched})"
        with within(self.mode):
            self._file, self._description = read_described(
                spec.argument, paths.preloads, Description, missing
            )
        self._folder = self._file.parent.resolve()
        self._services: list[Service] = []

    @property
    def placements(self) -> frozenset[str]:
        """Only processes if tenants differ in their environment; threads share one."""
        apart = any(map(_OF_TENANT.search, self._description.environment.values()))
        return frozenset({TenantPlacement.PROCESSES} if apart else TenantPlacement)

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Return the description's requirement that the tenants or the loader lack, or None.

        A library that cannot be loaded is an error, not a reason to skip: the proof finds it.
        """
        separated = [str(path) for path in self._libraries() if re.search(r"[\s:]", str(path))]
        if separated:
            return (
                f"{self.mode}: {', '.join(separated)}: the loader cuts LD_PRELOAD at blanks and "
                "colons; move the library"
            )
        asks_share = any("{share}" in value for value in self._description.environment.values())
        without = [tenant.name for tenant in tenants if tenant.share is None]
        if asks_share and without:
            return (
                f"{self.mode}: {self._file} uses {{share}}, but {', '.join(without)} has no share; "
                "give one"
            )
        return None

    @contextmanager
    def services(self, folder: Path) -> Iterator[None]:
        """Run the description's services, in order, each ready before the next starts."""
        with ExitStack() as stack:
            try:
                for number, described in enumerate(self._description.services):
                    log = folder / f"{self._file.stem}-{number}.log"
                    service = stack.enter_context(self._running(described, log))
                    self._services.append(service)
                    wait_until_ready(service, described.ready)
                yield
            finally:
                self._services.clear()

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the description's variables for this tenant, its preloads and library folders.

        The user's own preloads come behind those of the description.
        """
        values = {
            "name": tenant.name,
            "priority": str(tenant.priority),
            "share": "" if tenant.share is None else f"{tenant.share:g}",
            "folder": str(self._folder),
        }
        given = self._description.environment.items()
        variables = {name: filled(text, values) for name, text in given}
        if self._description.preload:
            variables["LD_PRELOAD"] = prepended("LD_PRELOAD", self._libraries())
        if self._description.library_path:
            folders = [self._folder / folder for folder in self._description.library_path]
            variables["LD_LIBRARY_PATH"] = prepended("LD_LIBRARY_PATH", folders)
        return variables

    def check(self) -> None:
        """Check that the services are alive."""
        for service in self._services:
            service.check()

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require every preload mapped in every tenant, and the description's proof seen."""
        self.check()
        proof = self._description.proof
        for name, evidence in inside.items():
            where = f"{self.mode}: tenant {name} (process {pids[name]})"
            for library in self._libraries():
                if not evidence.has_mapped(library):
                    raise NotProven(
                        f"{where} does not have {library} mapped: {why_not_loaded(library)}"
                        f"{_complaints(evidence.output)}"
                    )
            if proof.maps and not any(re.search(proof.maps, path) for path in evidence.maps):
                raise NotProven(
                    f"{where} has no file mapped that matches {proof.maps!r} (proof.maps of "
                    f"{self._file}){_complaints(evidence.output)}"
                )
            if proof.output and evidence.output is None:
                raise NotProven(
                    f"{where}: its output goes to no file in which to look for proof.output"
                )
            if proof.output and not re.search(proof.output, evidence.output or "", re.MULTILINE):
                raise NotProven(
                    f"{where} wrote nothing that matches {proof.output!r} (proof.output of "
                    f"{self._file}){_complaints(evidence.output)}"
                )
        seen = [f"{what} {pattern!r}" for what, pattern in
                (("mapped", proof.maps), ("written", proof.output)) if pattern]  # fmt: skip
        found = f"seen in {', '.join(inside)}: {', '.join(seen)}"
        return Proof(self.mode, found, self.seen_priorities(inside))

    def _libraries(self) -> list[Path]:
        """Return the preloads: paths relative to the description, bare names for the loader."""
        return [
            self._folder / library if "/" in library else Path(library)
            for library in self._description.preload
        ]

    def _running(self, described: ServiceDescription, log: Path) -> AbstractContextManager[Service]:
        command, values = described.command_from(self._folder), {"folder": str(self._folder)}
        given = {name: filled(text, values) for name, text in described.environment.items()}
        stop = Stop(described.stopped_by)
        order = Order(command, service_environment(given), stop, contending=None)
        return run_service(Path(command[0]).name, log, order)


def _complaints(output: str | None) -> str:
    lines = [line.strip() for line in (output or "").splitlines()
             if any(complaint in line for complaint in _LOADER_COMPLAINTS)]  # fmt: skip
    return f"; the process wrote: {lines[0]}" if lines else ""
