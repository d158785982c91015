"""``hwq certify``: what a mode is shown to keep apart, and what not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import BadOption, HwqError
from pytest_hwqueue.data.resources import RESOURCES
from pytest_hwqueue.options import of_scenarios as common
from pytest_hwqueue.options.of_commands import (
    INTERRUPTED,
    UNDECIDED,
    USAGE,
    OutFiles,
    out_file,
    output,
    say,
    settings_of,
    with_options,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_hwqueue.answers.certify.file import CertificateFile
    from pytest_hwqueue.answers.certify.plan import PlacedMode
    from pytest_hwqueue.data.resources import Resource

_OPTIONS = tuple(each for each in common.MEASURING_OPTIONS if each != "weights")
_REFUTED = 1
_RESULT = "certificate.json"
_BOUND = 0.1


@with_options(only=_OPTIONS)
@click.command()
@click.argument("mode", required=False)
@click.option("--claims", metavar="RESOURCE[,...]",
              help="resources that the mode is held to keep apart, besides those that it claims by "
              "itself")  # fmt: skip
@click.option("--resources", metavar="RESOURCE[,...]",
              help=f"measure only these of {', '.join(RESOURCES)}")  # fmt: skip
@click.option("--bound", metavar="SHARE",
              help="a victim that is slower by up to this share of its time alone is kept apart; a "
              "share of the multiprocessors holds up to so much more  "
              f"[default: {_BOUND:.0%}]")  # fmt: skip
@click.option("--waits", metavar="TIME",
              help="also hold the P99 of an urgent kernel's wait beside products to this, such as "
              "1ms")  # fmt: skip
@click.option("--rounds", metavar="N", type=click.IntRange(min=3), default=5, show_default=True,
              help="fresh processes for each kind of window; these take turns, in mirrored "
              "order")  # fmt: skip
@click.option("--duration", metavar="TIME", default="1s", show_default=True, help="of each window")
@click.option("--from", "source", metavar="DIR", type=click.Path(path_type=Path),
              help="measure nothing: use the records in a folder")  # fmt: skip
@out_file("markdown", "also write the certificate to FILE")
@out_file("json", "also write every figure to FILE")
def certify(
    mode: str | None, source: Path | None, **given: Any
) -> int:  # fmt: skip
    """Find whether a mode keeps tenants apart, resource by resource.

    For each resource a victim runs alone and beside a stressor of the same resource, under MODE
    (threads- before it places both in threads of one process). A claim is shown if all of the 95 %
    interval of its slowdown is within the bound, and the stressor does slow the victim under
    native; refuted if none of it is; else not decided. Of what the mode does not claim the figure
    is given.

    \b
        hwq certify threads-green-context:victim=64
        hwq certify mps-partition:victim=70%,stressor=30% --resources multiprocessors,memory
        hwq certify threads-green-context:victim=64 --claims memory --bound 5%
        hwq certify --from .hwqueue/certify-20260101T120000-4711 --markdown certificate.md

    Every window is kept in a folder below --dir, with the scenario that it is of.

    Exit status: 0 if all claims are shown, and there is one; 1 if one is refuted, or the mode
    failed, such as where it is not proven active; 3 if one is not decided, or there is none; 2 if
    interrupted, after printing what there is; 4 for wrong usage or input, also if the mode could
    not be opened.
    """
    from pytest_hwqueue.answers.certify import plan as planned

    files = OutFiles.of(given)
    common.refuse_unwritable(files, "--from certifies from records measured elsewhere")
    asked = _Asked.of(given)
    if source is not None:
        if mode is not None:
            raise BadOption("MODE", mode, "leave it out: the records of --from say of which it is")
        return _report(_again(source, asked), files)
    if mode is None:
        raise click.UsageError("give the MODE to certify, such as threads-green-context:victim=64")
    return _measured(planned.read_mode(mode), asked, given, files)


@dataclass(frozen=True)
class _Asked:
    """What was asked of a mode; None for what was left out.

    Attributes:
        claims: resources that it is held to keep apart.
        resources: that are measured.
        bound: up to which a victim may be slower.
        waits_ms: that an urgent kernel may wait.

    """

    claims: Sequence[Resource] | None
    resources: Sequence[Resource] | None
    bound: float | None
    waits_ms: float | None

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Asked:
        """Read a command's options."""
        from pytest_hwqueue.answers.certify.plan import read_resources
        from pytest_hwqueue.options.values import share

        claims, resources = (
            None if given[name] is None else read_resources(f"--{name}", given[name])
            for name in ("claims", "resources")
        )
        bound, waits = given["bound"], given["waits"]
        return cls(
            claims,
            resources,
            None if bound is None else share(1)("--bound", bound),
            None if waits is None else 1000 * common.seconds("--waits", waits),
        )


def _again(folder: Path, asked: _Asked) -> CertificateFile:
    """Return the certificate of a folder's records, by the session's own terms or by others."""
    from pytest_hwqueue.answers.certify import certificate as made
    from pytest_hwqueue.answers.certify.file import CertificateFile
    from pytest_hwqueue.answers.certify.plan import read_mode
    from pytest_hwqueue.data.metrics.numbers import listed

    records = common.windows_in(folder)
    try:
        # A session that was killed left no result.
        before = CertificateFile.model_validate_json((folder / _RESULT).read_bytes())
    except (OSError, ValueError):
        before = None
    mode = made.mode_of(records) if before is None else read_mode(before.mode)
    if mode is None or not records:
        raise HwqError(f"--from: {folder} has no window of `hwq certify`")
    if before is None:
        claimed = made.claims_of(records, mode)
    else:
        claimed = [each.resource for each in before.resources if each.claimed]
    there = [each.resource for each in before.resources] if before else made.resources_of(records)
    resources = asked.resources or there
    if missing := [each for each in asked.claims or () if each not in resources]:
        raise BadOption(
            "--claims", ",".join(missing), f"what is judged of {folder} is {listed(resources)}"
        )
    terms = made.CertificateTerms(
        mode,
        resources,
        {*mode.claims.apart, *(claimed if asked.claims is None else asked.claims)},
        asked.bound or (before.bound if before else _BOUND),
        asked.waits_ms or (before.wait.bound_ms if before and before.wait else None),
    )
    complete = before is not None and before.complete
    return made.certificate_file(records, terms, complete=complete, device=records[0].device)


def _measured(mode: PlacedMode, asked: _Asked, given: dict[str, Any], files: OutFiles) -> int:
    from pytest_hwqueue.answers.certify import certificate as made
    from pytest_hwqueue.answers.certify.plan import CertifyPlan, least_window_s
    from pytest_hwqueue.data.metrics.numbers import duration, listed
    from pytest_hwqueue.data.records.placement import TenantPlacement
    from pytest_hwqueue.parts.devices.kinds import only_device
    from pytest_hwqueue.parts.schedulers.syntax import (
        Scheduler,
        opened_or_not,
        tenant_requests,
    )

    resources, claims = asked.resources or RESOURCES, asked.claims or ()
    if missing := [each for each in claims if each not in resources]:
        raise BadOption(
            "--claims", ",".join(missing), "name these among --resources, too, or leave that out"
        )
    window_s = common.seconds("--duration", given["duration"])
    if asked.waits_ms is not None and window_s < least_window_s():
        raise BadOption(
            "--duration", given["duration"],
            f"the P99 of --waits takes windows of at least {duration(least_window_s())}",
        )  # fmt: skip
    settings = settings_of(given)
    opened = opened_or_not(str(mode.spec), settings.scheduler_paths(Path()))
    # One that cannot be opened is refused later, with all others.
    if isinstance(opened, Scheduler) and mode.placement not in opened.placements:
        only = listed(sorted(opened.placements))
        written = f"threads-{mode.spec}" if only == TenantPlacement.THREADS else str(mode.spec)
        raise BadOption("MODE", str(mode), f"it needs tenants in {only}: write {written}")
    device = only_device(settings.device)
    contended = device.capabilities.contended
    measured_of = [each for each in resources if each in contended]
    if not measured_of:
        raise BadOption(
            "--resources", ",".join(resources),
            f"tenants of {device.label} contend for {', '.join(contended)}",
        )  # fmt: skip
    claimed = {each for each in resources if each in (*mode.claims.apart, *claims)}
    plan = CertifyPlan(mode, measured_of, claimed, window_s, given["rounds"], asked.waits_ms)
    scenario, text = plan.scenario(Path.cwd())
    if isinstance(opened, Scheduler) and (
        reason := opened.pointless(tenant_requests(scenario.tenants_of(None)))
    ):
        raise BadOption("MODE", str(mode), reason)
    measured = common.measure_rounds(
        common.RoundsPlan(scenario, text, plan.window_s, plan.all_s, plan.rounds), given
    )
    terms = made.CertificateTerms(mode, resources, claimed, asked.bound or _BOUND, asked.waits_ms)
    found = made.certificate_file(
        measured.records, terms, complete=not measured.interrupted, device=device.label
    )
    status = _report(found, files, measured.folder)
    for reason in measured.unopened:
        say(f"requested but not measured: {reason}")
    return INTERRUPTED if measured.interrupted else USAGE if measured.unopened else status


def _report(found: CertificateFile, files: OutFiles, folder: Path | None = None) -> int:
    from pytest_hwqueue.answers.certify.report import certificate_document

    output(certificate_document(found), files, partial(common.figures_json, found),
           kept=folder and folder / _RESULT)  # fmt: skip
    if "refuted" in found.verdicts or found.failures:
        return _REFUTED
    return UNDECIDED if not found.verdicts or "not decided" in found.verdicts else 0
