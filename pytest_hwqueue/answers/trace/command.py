"""``hwq trace``: one cell's traced pass with the causes of its tail, or a vendor's profiler."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.kinds import capabilities_of
from pytest_hwqueue.options.measuring import (
    MeasuringWorkloads,
    WorkloadName,
    plugin_arguments,
    run_suite,
    with_parameters,
)
from pytest_hwqueue.options.of_commands import settings_of, with_options
from pytest_hwqueue.options.options import DISPATCHES, SIZES, SYNC_MODES
from pytest_hwqueue.parts.devices.launches import NAMED_RANGES, PICTURES, WITH_CSV, rank_of_process
from pytest_hwqueue.parts.workloads.registry import WORKLOADS

# Enough for P99, and not too many for a picture.
_DEFAULTS = {"iterations": "400"}
# A vendor's trace is read by eye: more iterations only make the file large.
_DEFAULTS_OF_TOOLS = {"iterations": "20"}
_TORCH = "torch"
_PERFETTO = "open in Perfetto, https://ui.perfetto.dev"
_CELL = re.compile(
    r"(?P<name>.+)\[(?P<device>.+?)-s(?P<streams>\d+)-(?P<scheduler>.+?)"
    rf"-(?P<dispatch>{'|'.join(DISPATCHES)})"
    rf"(?:-(?P<sync_mode>{'|'.join(SYNC_MODES)}))?(?:-(?P<cache>cold))?(?:-(?P<variant>.+))?\]"
)
_RANKS = re.compile(r"(\d+)ranks")


class _Tracing(MeasuringWorkloads):
    """Accepts a cell's id in place of a workload's name and options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put an id's options before all others, which override them."""
        at = next((index for index, each in enumerate(args) if each.endswith("]")), None)
        if at is not None and "--" not in args[:at]:
            name, options = words_of_cell(args[at])
            args = [name, *options, *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Tool:
    """A vendor's profiler.

    Attributes:
        install: how to get it.
        command: prefix of pytest's command, given a folder and a name for the file.
        suffix: of its file.
        reader: what opens that file.

    """

    install: str
    command: Callable[[Path, str], list[str]]
    suffix: str
    reader: str


# What nsys records, before it makes its report of it.
_RAW = ".qdstrm"

# Options: `nsys profile --help` (Nsight Systems 2024 and later). rocprofv3 could not be tried; its
# own parsers, of ROCm 6.2 and of the newest source, take these. Its documentation since 10 calls
# pftrace written directly deprecated, for features that are not asked for here; rocpd, from which
# it is to be converted, came with 7.0.
_TOOLS = {
    "nsys": Tool(
        "it is part of NVIDIA Nsight Systems (package nsight-systems-cli, or the CUDA toolkit)",
        lambda folder, name: [
            "nsys", "profile", "--trace=cuda,nvtx,osrt", f"--output={folder / name}",
            "--force-overwrite=true",
        ],
        ".nsys-rep",
        "open in Nsight Systems, or `nsys stats FILE`",
    ),
    "rocprofv3": Tool(
        "it is part of ROCm 6.2 or later (package rocprofiler-sdk), in /opt/rocm/bin",
        lambda folder, name: [
            "rocprofv3", "--hip-trace", "--kernel-trace", "--memory-copy-trace", "--marker-trace",
            "--output-format", "pftrace", "-d", str(folder), "-o", name, "--",
        ],
        ".pftrace",
        _PERFETTO,
    ),
}  # fmt: skip


@with_options(without=("workload", "profile", "causes"), defaults=_DEFAULTS)
@click.command(cls=_Tracing)
@click.argument("name", type=WorkloadName(), metavar="NAME|CELL")
@click.option(
    "--tool", type=click.Choice([_TORCH, *_TOOLS]), default=_TORCH, show_default=True,
    help="torch: the traced pass, for Perfetto; nsys or rocprofv3: the vendor's tool, which must "
    "be on PATH, around a run of 20 iterations in one process (the tool's own overhead is in the "
    "run's figures)",
)  # fmt: skip
@click.option("--csv", is_flag=True, help="also write the events as CSV, next to the trace")
def trace(name: str, tool: str, csv: bool, **given: Any) -> int:
    """Trace one workload's iterations into one file.

    NAME is a workload, or a CELL's id as in tables and records, such as 'moe[cpu-s8-native-eager]',
    which then sets the options. The file shows requests (one per --iterations), launches by
    thread, kernels by stream with an arrow from each launch, times off the CPU and who ran
    instead, interrupts, and clocks; how much depends on this process's privileges. Requests above
    P95 and P99 show their cause. In a vendor's trace, tagged launches (see `hwq list`) are ranges
    of that name, and each rank started by torchrun writes its own file.
    """
    asked = settings_of(given)
    folder = asked.profile_dir
    given = {**with_parameters([name], given), "workload": name}
    vendor = _TOOLS.get(tool)
    began = time.time()
    if vendor is None:
        environment = {PICTURES: WITH_CSV if csv else "1"}
        status = run_suite(plugin_arguments(given, _DEFAULTS), environment=environment)
        written, reader = "trace-*.json", _PERFETTO
    else:
        _check(tool, vendor, asked.device, given, csv)
        folder.mkdir(parents=True, exist_ok=True)
        status = run_suite(
            plugin_arguments({**given, "isolation": "none"}, _DEFAULTS_OF_TOOLS),
            before=vendor.command(folder, _file_name(name, given["streams"])),
            environment={NAMED_RANGES: "1"},
        )
        written, reader = f"*{vendor.suffix}", vendor.reader
    traces = _written(folder, written, began)
    for path in traces:
        click.echo(f"trace: {path} ({reader})")
    for path in _written(folder, "trace-*.csv", began) if vendor is None else ():
        click.echo(f"events: {path}")
    if not traces:
        click.echo(f"no trace was written to {folder}; the output above says why", err=True)
        for path in _written(folder, f"*{_RAW}", began):
            click.echo(
                f"{path} was: what nsys recorded; the QdstrmImporter of a whole Nsight Systems "
                "makes a .nsys-rep of it, and the copy of nsys in Nsight Compute has none",
                err=True,
            )
    return status


def _check(tool: str, vendor: Tool, device: str, given: dict[str, Any], csv: bool) -> None:
    """Refuse what a vendor's tool cannot trace, before anything starts.

    Raises:
        click.UsageError: with the reason.

    """
    if shutil.which(tool) is None:
        raise click.UsageError(f"--tool {tool}: no {tool} on PATH; {vendor.install}")
    if not capabilities_of(device).runs_kernels:
        raise click.UsageError(
            f"--tool {tool}: {device} is a model, which runs no kernels: use --tool torch"
        )
    if csv:
        raise click.UsageError(f"--csv: {tool} writes a file of its own: use --tool torch")
    if given["isolation"] == "process":
        raise click.UsageError(
            f"--tool {tool} sees the process that it starts: leave out --isolation process"
        )


def _file_name(name: str, streams: str | None) -> str:
    of_streams = streams and f"s{streams.replace(',', '_')}"
    rank = rank_of_process()
    return "-".join(filter(None, (name, of_streams, None if rank is None else f"rank{rank}")))


def words_of_cell(text: str) -> tuple[str, list[str]]:
    """Return a cell id's workload, and the options that measure the cell.

    Raises:
        HwqError: if it is no id, or names what no option of this command sets.

    """
    found = _CELL.fullmatch(text)
    if found is None:
        raise HwqError(
            f"{text!r} is no cell's id; such as hetero_kernels[cuda-s8-native-eager], in quotes"
        )
    if found["name"] not in WORKLOADS:
        raise HwqError(
            f"{found['name']!r} is no workload of the suite (see `hwq list`); trace a test of your "
            "own with `pytest TEST --hwq-causes=always`"
        )
    options = [
        f"--device={found['device']}", f"--streams={found['streams']}",
        f"--scheduler={found['scheduler']}", f"--dispatch={found['dispatch']}",
    ]  # fmt: skip
    if found["sync_mode"]:
        options.append(f"--sync-mode={found['sync_mode']}")
    if found["cache"]:
        options.append(f"--cache={found['cache']}")
    return found["name"], [*options, *_of_variant(found["variant"] or "")]


def _of_variant(text: str) -> list[str]:
    """Return the options for the remaining parts of a cell's id."""
    options: list[str] = []
    for part in text.split("-") if text else []:
        ranks = _RANKS.fullmatch(part)
        if ranks:
            options.append(f"--ranks={ranks[1]}")
        elif part in SIZES:
            options.append(f"--size={part}")
        elif "=" in part:
            options.append(f"--param={part}")
        elif options and options[-1].startswith("--param="):
            # A value with a hyphen, such as 1e-3.
            options[-1] += f"-{part}"
        else:
            raise HwqError(f"what {part!r} in the cell's id asks for is to be given as options")
    return options


def _written(folder: Path, pattern: str, began: float) -> list[Path]:
    """Return the files that this command wrote."""
    found = folder.rglob(pattern)
    return sorted(path for path in found if path.stat().st_mtime >= began - 1)
