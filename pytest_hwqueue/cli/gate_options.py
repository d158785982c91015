"""Shared by ``hwq compare`` and ``hwq baseline``: exit statuses and the gate's options."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.cli.plugin_options import parsed_setting
from pytest_hwqueue.errors import BadOption

if TYPE_CHECKING:
    from pytest_hwqueue.baselines.store import Store
    from pytest_hwqueue.gate.settings import GateSettings
    from pytest_hwqueue.verdicts.judging import Judgement

REGRESSION, REFUSED, UNDECIDED = 1, 2, 3
GATE = ("rate", "min-effect", "detect", "tau")
SOURCE = "a baseline (NAME or DEVICE/NAME), a session's JSON file, or a folder of records"


class InputRefused(click.ClickException):
    """Something the user named cannot be used."""

    exit_code = REFUSED


class OwnStatus(click.Command):
    """A command that exits with status 1 only deliberately.

    Its group gives wrong usage pytest's status, 4; Python and click exit with 1 when something
    breaks or is interrupted.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and report errors here instead of in the group."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            ctx.exit(REFUSED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; wrong input and failures end with a refusal."""
        from pytest_hwqueue.errors import BaselineError, RecordError
        from pytest_hwqueue.verdicts.judging import UnknownFigure

        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.show()
        except (BaselineError, RecordError, UnknownFigure, BadOption) as error:
            raise InputRefused(str(error).replace("--hwq-", "--")) from None
        except (click.Abort, KeyboardInterrupt):
            click.echo("aborted", err=True)
        except (click.ClickException, click.exceptions.Exit):
            raise
        # A failure of ours would end with status 1, which says that something got worse.
        except Exception:
            traceback.print_exc()
        ctx.exit(REFUSED)


def comparison_status(judgement: Judgement, policies: Mapping[str, str]) -> int:
    """Return the exit status of a comparison.

    Args:
        judgement: its outcome.
        policies: ``fail`` or another word, by ``inconclusive``, ``no-baseline``, ``incomparable``
            and ``missing``.

    """
    failing = {name for name, policy in policies.items() if policy == "fail"}
    if judgement.count("regression"):
        return REGRESSION
    if judgement.count("incomparable") and "incomparable" in failing:
        return REFUSED
    if not judgement.judged:
        # Whatever the policies say: where nothing was judged nothing can have passed.
        return REFUSED
    undecided = [
        judgement.count("inconclusive") and "inconclusive" in failing,
        judgement.count("no-baseline") and "no-baseline" in failing,
        judgement.missing and "missing" in failing,
    ]
    return UNDECIDED if any(undecided) else 0


def gated_figures(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the figures that --fail-on asks for."""
    figures: tuple[str, ...] = parsed_setting("fail-on", given["fail_on"])
    return figures


def gate_settings(given: Mapping[str, Any]) -> GateSettings:
    """Return the gate's settings from those of its options that a command has."""
    from pytest_hwqueue.gate.settings import GateSettings

    fields = {name.replace("-", "_"): name for name in GATE if name.replace("-", "_") in given}
    values = {field: parsed_setting(name, given[field]) for field, name in fields.items()}
    try:
        return GateSettings(**values)
    except ValueError as error:
        raise InputRefused(f"--{', --'.join(fields.values())}: {error}") from None


def open_store(given: str | None, *, packaged: bool = False) -> Store:
    """Return the store in the folder of --baselines.

    Args:
        given: the folder; None for its default.
        packaged: whether the baselines that come with the plugin are found too.

    """
    from pytest_hwqueue.baselines.folders import packaged_folder
    from pytest_hwqueue.baselines.store import Store

    return Store(parsed_setting("baselines", given), packaged_folder() if packaged else None)
