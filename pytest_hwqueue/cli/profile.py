"""``hwq profile``: a short run of one workload under torch's profiler or the vendor's tool."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pytest_hwqueue.cli.parameters import MeasuringWorkloads, WorkloadName, with_parameters
from pytest_hwqueue.cli.plugin_options import setting, with_options
from pytest_hwqueue.cli.suite import plugin_arguments, run_suite
from pytest_hwqueue.devices.kinds import capabilities_of
from pytest_hwqueue.devices.named_trace import NAMED_RANGES, rank_of_process
from pytest_hwqueue.errors import BadOption

# A trace is read by eye: a few iterations show the pattern, and more only make the file large.
_DEFAULTS = {"iterations": "20"}
_TORCH = "torch"
_PERFETTO = "open in Perfetto, https://ui.perfetto.dev"


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


# Options: `nsys profile --help` (Nsight Systems 2024 and later); rocprofv3's reference of ROCm 6.4
# and 7.1. rocprofv3 could not be tried.
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


@with_options(without=("workload", "profile"), defaults=_DEFAULTS)
@click.command(cls=MeasuringWorkloads)
@click.argument("name", type=WorkloadName(), metavar="NAME")
@click.option(
    "--tool", type=click.Choice([_TORCH, *_TOOLS]), default=_TORCH, show_default=True,
    help="torch: torch.profiler's trace of one pass, for Perfetto; nsys or rocprofv3: the vendor's "
    "tool, which must be on PATH, around the whole short run (in one process; the tool's own "
    "overhead is in the run's figures)",
)  # fmt: skip
@click.pass_context
def profile(ctx: click.Context, /, name: str, tool: str, **given: Any) -> None:
    """Run one workload briefly and write a profiler's trace.

    In the trace, tagged launches (see `hwq list`) are ranges of that name, and torch's names the
    streams by our numbers. Each rank started by torchrun writes its own file.
    """
    try:
        folder = Path(setting("profile-dir", given["profile_dir"]))
        device = setting("device", given["device"])
    except BadOption as error:
        raise click.UsageError(str(error), ctx) from None
    given = {**with_parameters(ctx, [name], given), "workload": name}
    vendor = _TOOLS.get(tool)
    began = time.time()
    if vendor is None:
        status = run_suite(ctx, plugin_arguments({**given, "profile": True}, _DEFAULTS))
        suffix, reader = ".json", _PERFETTO
    else:
        _check(ctx, tool, vendor, device, given)
        folder.mkdir(parents=True, exist_ok=True)
        status = run_suite(
            ctx,
            plugin_arguments({**given, "isolation": "none"}, _DEFAULTS),
            before=vendor.command(folder, _file_name(name, given["streams"])),
            environment={NAMED_RANGES: "1"},
        )
        suffix, reader = vendor.suffix, vendor.reader
    traces = [path for path in folder.rglob(f"*{suffix}") if path.stat().st_mtime >= began - 1]
    for path in sorted(traces):
        click.echo(f"trace: {path} ({reader})")
    if not traces:
        click.echo(f"no trace was written to {folder}; the output above says why", err=True)
    ctx.exit(status)


def _check(ctx: click.Context, tool: str, vendor: Tool, device: str, given: dict[str, Any]) -> None:
    """Refuse what cannot be profiled, before anything starts.

    Raises:
        click.UsageError: with the reason.

    """
    if shutil.which(tool) is None:
        raise click.UsageError(f"--tool {tool}: no {tool} on PATH; {vendor.install}", ctx)
    if not capabilities_of(device).runs_kernels:
        raise click.UsageError(
            f"--tool {tool}: {device} is a model, which runs no kernels: use --tool torch", ctx
        )
    if given["isolation"] == "process":
        raise click.UsageError(
            f"--tool {tool} sees the process that it starts: leave out --isolation process", ctx
        )


def _file_name(name: str, streams: str | None) -> str:
    rank = rank_of_process()
    parts = [name]
    if streams is not None:
        parts.append("s" + streams.replace(",", "_"))
    if rank is not None:
        parts.append(f"rank{rank}")
    return "-".join(parts)
