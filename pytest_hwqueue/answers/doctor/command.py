"""``hwq doctor``: whether this machine is fit to measure on, and its limits."""

from __future__ import annotations

from typing import Any

import click

from pytest_hwqueue.options.of_commands import (
    OutFiles,
    out_file,
    output,
    say,
    settings_of,
    with_options,
)


@with_options(only=("device", "dir"))
@click.command()
@out_file("json", "also write all results to FILE")
@click.option(
    "--quick",
    is_flag=True,
    help="take fewer samples, of shorter kernels on the CPU; refuse figures that need more",
)
def doctor(quick: bool, **given: Any) -> int:
    """Check this machine, and measure its limits.

    It begins with versions and devices.

    Ends with exit status 1 if a check found a problem, and 0 otherwise.
    """
    from pytest_hwqueue.answers.doctor.checks import describe_machine
    from pytest_hwqueue.answers.doctor.diagnosis import as_json, diagnose
    from pytest_hwqueue.answers.doctor.report import diagnosis_document, machine_document

    output(machine_document(describe_machine()))
    asked = settings_of(given)
    diagnosis = diagnose(asked.device, asked.dir, quick=quick, progress=say)
    output(diagnosis_document(diagnosis), OutFiles.of(given), lambda: as_json(diagnosis))
    return 1 if diagnosis.has_problem else 0
