"""``hwq preempt``: how long an urgent kernel waits behind a victim's kernels, under each mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import BadOption, HwqError
from pytest_hwqueue.options import of_scenarios as common
from pytest_hwqueue.options.of_commands import (
    INTERRUPTED,
    USAGE,
    OutFiles,
    out_file,
    output,
    say,
    settings_of,
    with_options,
)

if TYPE_CHECKING:
    from pytest_hwqueue.answers.preempt.file import PreemptFile
    from pytest_hwqueue.answers.preempt.plan import PreemptPlan

# Tenants have no weights, and a victim's kernels have the length that is asked for at any size.
_OPTIONS = tuple(each for each in common.MEASURING_OPTIONS if each not in ("size", "weights"))
_MODES = "native,threads-native,threads-stream-priority"
_NOTHING_SHOWN = 1


@with_options(only=_OPTIONS)
@click.command()
@click.option("--schedulers", metavar="MODE[,MODE...]", default=_MODES, show_default=True,
              help="modes, as in scenario files; threads- before one places both tenants in "
              "threads of one process")  # fmt: skip
@click.option("--lengths", metavar="TIME[,TIME...]", default="50us,200us,1ms,4ms",
              show_default=True, help="of the victim's kernels, at least three")  # fmt: skip
@click.option("--waves", metavar="N[,N...]", default="4", show_default=True,
              help="how many times as many blocks each of these kernels has as the device holds at "
              "once; 0: one block, which leaves room")  # fmt: skip
@click.option("--depths", metavar="N[,N...]", default="1", show_default=True,
              help="how many kernels the victim enqueues at once, such as 1,8")  # fmt: skip
@click.option("--rounds", metavar="N", type=click.IntRange(min=3), default=5, show_default=True,
              help="fresh processes for each victim under each mode; modes and victims take turns, "
              "in mirrored order")  # fmt: skip
@click.option("--requests", metavar="N", type=click.IntRange(min=1), default=500,
              show_default=True, help="of the urgent tenant in each round")  # fmt: skip
@click.option("--from", "source", metavar="DIR", type=click.Path(path_type=Path),
              help="measure nothing: use the records in a folder")  # fmt: skip
@out_file("svg", "also draw the waits to FILE; needs the extra report")
@out_file("markdown", "also write the tables to FILE")
@out_file("json", "also write every figure to FILE")
def preempt(
    schedulers: str, lengths: str, waves: str, depths: str, source: Path | None, **given: Any
) -> int:
    """Find how long an urgent kernel waits behind a victim's.

    A tiny kernel arrives at random moments beside a victim that runs kernels of a given length
    without a pause. From the P99 of its wait over several lengths follows each mode's law: it waits
    for the kernel under way, for all that is in flight, no longer than some time whatever the
    victim, or by no straight line. Slope and intercept have intervals over rounds.

    \b
        hwq preempt
        hwq preempt --schedulers native,mps,mps-priority --depths 1,8
        hwq preempt --from .hwqueue/preempt-20260101T120000-4711 --svg waits.svg

    Every window is kept in a folder below --dir, with the scenario that it is of.

    Exit status: 0 if a law was found, whatever it says; 1 if none was; 2 if interrupted, after
    printing what there is; 4 for wrong usage or input, also if a mode could not be opened.
    """
    from pytest_hwqueue.answers.preempt import plan as planned
    from pytest_hwqueue.answers.preempt.laws import preempt_file

    files = OutFiles.of(given)
    common.refuse_unwritable(files, "--from draws from records measured elsewhere")
    if source is not None:
        records = common.windows_in(source)
        found = preempt_file(records, complete=_was_complete(source))
        if not found.laws:
            raise HwqError(f"--from: {source} has no window of `hwq preempt`")
        return _report(found, files)
    if given["requests"] < planned.least_requests():
        raise BadOption(
            "--requests", str(given["requests"]),
            f"give at least {planned.least_requests()}: P99 takes four fifths of them, and some "
            "find one of their own before them",
        )  # fmt: skip
    plan = planned.PreemptPlan(
        schedulers=planned.read_schedulers(schedulers),
        lengths_us=planned.read_lengths(lengths),
        waves=planned.read_numbers("--waves", waves, 0, planned.MOST_WAVES),
        depths=planned.read_numbers("--depths", depths, 1, 1000),
        requests=given["requests"],
        rounds=given["rounds"],
    )
    plan.refuse_endless()
    plugins = {name: value for name, value in given.items() if name not in _OWN}
    return _measured(plan, plugins, files)


def _was_complete(folder: Path) -> bool:
    """Whether a session has measured all that it was to; one that was killed left no result."""
    from pytest_hwqueue.answers.preempt.file import PreemptFile

    try:
        return PreemptFile.model_validate_json((folder / _RESULT).read_bytes()).complete
    except (OSError, ValueError):
        return False


_RESULT = "preempt.json"
_OWN = ("rounds", "requests", "svg", "markdown", "json_file")


def _measured(plan: PreemptPlan, given: dict[str, Any], files: OutFiles) -> int:
    from pytest_hwqueue.answers.preempt import plan as planned
    from pytest_hwqueue.answers.preempt.laws import preempt_file
    from pytest_hwqueue.parts.devices.kinds import only_device

    device = only_device(settings_of(given).device)
    if device.capabilities.host and any(plan.waves):
        raise BadOption(
            "--waves", ",".join(map(str, plan.waves)),
            "the CPU has no kernel that fills it; give --waves 0, or an accelerator",
        )  # fmt: skip
    scenario, text = plan.scenario(Path.cwd())
    measured = common.measure_rounds(
        common.RoundsPlan(
            scenario,
            text,
            plan.window_s,
            plan.urgent_s,
            plan.rounds,
            # How long the victim's kernels are takes one round of the victim alone.
            first=planned.finds_length,
        ),
        given,
    )
    found = preempt_file(measured.records, complete=not measured.interrupted)
    status = _report(found, files, measured.folder)
    for reason in measured.unopened:
        say(f"requested but not measured: {reason}")
    return INTERRUPTED if measured.interrupted else USAGE if measured.unopened else status


def _report(found: PreemptFile, files: OutFiles, folder: Path | None = None) -> int:
    from pytest_hwqueue.answers.preempt.report import preempt_document, preempt_svg
    from pytest_hwqueue.data.safe_files import write_text

    output(preempt_document(found), files, partial(common.figures_json, found),
           kept=folder and folder / _RESULT)  # fmt: skip
    if files.svg is not None:
        drawn = preempt_svg(found)
        if drawn is None:
            click.echo(f"no request was served, so {files.svg} is not drawn", err=True)
        else:
            write_text(files.svg, drawn)
    measured = any(law.verdict != "not measured" for law in found.laws)
    return 0 if measured else _NOTHING_SHOWN
