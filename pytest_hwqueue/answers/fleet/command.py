"""``hwq fleet``: every GPU of a cluster, checked and compared.

Exit status: 0 no GPU is named; 1 one is; 2 interrupted while measuring; 4 wrong usage or input.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.options.of_commands import (
    INTERRUPTED,
    OUT_FILE,
    OutFiles,
    combined,
    interruptible,
    out_file,
    output,
    with_options,
)

_NAMED = 1


def _writable(ctx: click.Context, option: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a page that cannot be written, before anything is measured."""
    if file is not None:
        from pytest_hwqueue.data.document.drawing import cannot_write

        reason = cannot_write(file)
        if reason is not None:
            raise HwqError(f"--html: {reason}")
    return file


@dataclass(frozen=True)
class FleetFiles:
    """What becomes of a judgement: each field but ``files`` is the option of its name."""

    files: OutFiles
    reference: Path | None
    drain: str | None
    html: Path | None
    prometheus: Path | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FleetFiles:
        """Return those among a command's options."""
        names = ("reference", "drain", "html", "prometheus")
        return cls(OutFiles.of(given), **{name: given[name] for name in names})


_output_options = combined(
    out_file("prometheus", "also write FILE for node exporter's textfile collector"),
    click.option("--reference", metavar="FOLDER",
                 type=click.Path(exists=True, file_okay=False, path_type=Path),
                 help="also compare with the GPUs of FOLDER, measured before; they get no "
                 "verdicts"),
    click.option("--drain", metavar="SYSTEM", type=click.Choice(("slurm", "kubernetes")),
                 help="also print the commands that drain the named nodes (slurm or "
                 "kubernetes); they are never run"),
    click.option("--html", metavar="FILE", type=OUT_FILE, callback=_writable,
                 help="also write a page with a map of nodes and GPUs; needs the extra report"),
    out_file("markdown", "also write the table to FILE"),
    out_file("json", "also write every verdict and figure to FILE"),
)  # fmt: skip


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...",
                type=click.Path(exists=True, file_okay=False, path_type=Path))  # fmt: skip
@_output_options
def merge(folders: tuple[Path, ...], **given: Any) -> int:
    """Judge the GPUs whose records are below FOLDER...: of `hwq fleet check`, of `hwq fleet run`,
    or of ordinary sessions.

    Compares GPUs of one model with each other; at least 5 are needed, measured alike, 4 times or
    more. Of healthy fleets at most 1 % have a GPU named.

    Exit status: 0 if no GPU is named, 1 if one is, and 4 for wrong usage or input.
    """
    return _merged(folders, FleetFiles.of(given))


def _merged(folders: Sequence[Path], to: FleetFiles) -> int:
    """Judge the records below folders, write what was asked for; return the exit status."""
    from pytest_hwqueue.answers.fleet.collected import collect
    from pytest_hwqueue.answers.fleet.report import (
        drain_commands,
        fleet_document,
        fleet_json,
        prometheus_text,
        write_fleet_page,
    )
    from pytest_hwqueue.answers.fleet.verdicts import confirmed, judge_fleet
    from pytest_hwqueue.data.metrics.numbers import counted
    from pytest_hwqueue.data.safe_files import write_text

    first, again = collect(folders)
    reference = collect([to.reference])[0] if to.reference else []
    found = confirmed(judge_fleet(first, reference), again)
    if len(reference) > found.reference:
        click.echo(
            f"{len(reference) - found.reference} of {counted(len(reference), 'GPU')} in "
            f"{to.reference} not compared: another model, or measured under other conditions",
            err=True,
        )
    document = fleet_document(found)
    output(document, to.files, lambda: fleet_json(found))
    if to.html:
        write_fleet_page(to.html, found, document)
    if to.prometheus:
        write_text(to.prometheus, prometheus_text(found))
    if to.drain:
        for command in drain_commands(found, to.drain):
            click.echo(command)
    return _NAMED if found.named else 0


_check_options = combined(
    click.option("--out", metavar="FOLDER", required=True,
                 type=click.Path(file_okay=False, path_type=Path),
                 help="where records are kept, in NODE/DEVICE/SESSION/"),
    click.option("--repeats", metavar="N", type=click.IntRange(min=4), default=6,
                 show_default=True, help="how often each figure is measured"),
    click.option("--count", metavar="N", type=click.IntRange(min=1), default=1,
                 show_default=True, help="how many of each simulated device"),
    click.option("--device", "devices", metavar="DEVICE", multiple=True, default=("all",),
                 show_default=True,
                 help="all accelerators, cuda:1, sim:h200; may be repeated"),
    with_options(only=("size", "seed", "sim-noise", "fault")),
)  # fmt: skip


def _require_empty(out: Path, otherwise: str) -> None:
    if out.exists() and any(out.iterdir()):
        raise HwqError(f"--out: {out} is not empty; name another, or {otherwise}")


def _session_options(repeats: int, given: Mapping[str, Any]) -> list[str]:
    from pytest_hwqueue.options.measuring import plugin_arguments

    return [*plugin_arguments(given), f"--hwq-runs={repeats}"]


@contextmanager
def _measuring(then: str) -> Iterator[None]:
    """End the command, with what can be done then, if it is interrupted or a cluster is lost."""
    try:
        with interruptible(then):
            yield
    except ConnectionError as error:
        click.echo(f"{error}: {then}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


@_check_options
@click.command()
@_output_options
def check(devices: tuple[str, ...], out: Path, repeats: int, count: int, **given: Any) -> int:
    """Measure this machine's GPUs, all at once, and judge them.

    Measures launches, graph replays, matrix products, copies, and small kernels behind large ones
    at stream priority; reads ECC errors, Xid and throttling from the driver. Changes no setting of
    a GPU. One machine has few GPUs: collect the folders of many and judge them with `hwq fleet
    merge`, or compare with those of --reference.

    Exit status: 0 if no GPU is named, 1 if one is, 2 if interrupted, and 4 for wrong usage or
    input.
    """
    from pytest_hwqueue.answers.fleet.check import check_devices, names_of
    from pytest_hwqueue.parts.devices.kinds import choose_devices

    # A shared folder may have the records of other machines.
    _require_empty(out / platform.node(), f"judge it: hwq fleet merge {out}")
    with _measuring(f"what was measured is in {out}"):
        labels = [choice.label for each in devices for choice in choose_devices(each)]
        named = names_of(list(dict.fromkeys(labels)), count)
        check_devices(named, out, _session_options(repeats, given))
    return _merged([out], FleetFiles.of(given))


@_check_options
@click.command()
@click.option("--address", metavar="HOST:PORT",
              help="of the Ray cluster, or auto for this machine's [one on this machine alone, "
              "for as long as the command runs]")  # fmt: skip
@click.option("--resume", is_flag=True, help="measure what FOLDER does not have yet")
@_output_options
def run(
    devices: tuple[str, ...], out: Path, repeats: int, count: int, address: str | None,
    resume: bool, **given: Any,
) -> int:  # fmt: skip
    """Measure every GPU of a Ray cluster, and judge them.

    Measures what `hwq fleet check` does, on all GPUs at once; Ray keeps other jobs off them. What
    is suspicious is measured again, beside others, before it is named. Simulated devices are custom
    resources of a node: ray start --resources='{"sim:h200": 8}'. Needs the extra `fleet`, also on
    the nodes, whose processes run what they are sent: trust the cluster.

    Exit status: 0 if no GPU is named, 1 if one is, 2 if interrupted or if the cluster's head ends
    (--resume goes on), and 4 for wrong usage or input.
    """  # fmt: skip
    from pytest_hwqueue.answers.fleet.cluster import Cluster, run_fleet

    if not resume:
        _require_empty(out, "go on with it: --resume")
    options = _session_options(repeats, given)
    lost = _measuring(f"go on with hwq fleet run --resume --out {out}")
    with lost, closing(Cluster(address, devices, count)) as cluster:
        run_fleet(cluster, out, lambda name: options)
    return _merged([out], FleetFiles.of(given))


@click.group()
def fleet() -> None:
    """Measure every GPU of a cluster, and find the one that is slow."""


for _command in (check, run, merge):
    fleet.add_command(_command)
