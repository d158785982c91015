"""``hwq`` itself: the table of its commands, those of other packages, and the exit status of all.

A command's module is imported when it is called, so that help and every other command start without
it. Measuring commands end with pytest's own exit status: 0 all measured, 1 failed cells, 2
interrupted, 3 internal error, 4 wrong usage, 5 nothing selected. Those that compare have their own
(`options`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import click

from pytest_hwqueue import __version__
from pytest_hwqueue.data.errors import BadInput, HwqError, meant
from pytest_hwqueue.data.extensions import Registry, origin, package
from pytest_hwqueue.options.of_commands import INTERRUPTED, REFUSED, USAGE, refusal


class ListedCommand(NamedTuple):
    """A command: where it is, its line in the help, which is its own first, and if it leads."""

    module: str
    attribute: str
    line: str
    leads: bool = False

    def command(self) -> click.Command:
        """Import it."""
        module = import_module(f"pytest_hwqueue.{self.module}")
        command: click.Command = getattr(module, self.attribute)
        return command


COMMANDS = {
    # What most people come for, in the order in which they need it.
    "doctor": ListedCommand(
        "answers.doctor.command",
        "doctor",
        "Check this machine, and measure its limits.",
        leads=True,
    ),
    "run": ListedCommand(
        "options.measuring",
        "run",
        "Measure workloads by name, or all of P0, P1, P2 or P3.",
        leads=True,
    ),
    "ab": ListedCommand(
        "answers.versions.command",
        "ab",
        "Measure two versions or variants in turn: is the second worse?",
        leads=True,
    ),
    "compare": ListedCommand(
        "answers.baselines.command",
        "compare",
        "Compare stored runs: the newer B with the older A.",
        leads=True,
    ),
    "baseline": ListedCommand(
        "answers.baselines.command",
        "baseline",
        "Record, list, show, move and prune stored baselines.",
        leads=True,
    ),
    "which": ListedCommand(
        "answers.which.command",
        "which",
        "Compare schedulers on a scenario: goals met, and the cost.",
        leads=True,
    ),
    "capacity": ListedCommand(
        "answers.which.command",
        "capacity",
        "Find the greatest arrival rate at which all goals hold.",
        leads=True,
    ),
    "preempt": ListedCommand(
        "answers.preempt.command",
        "preempt",
        "Find how long an urgent kernel waits behind a victim's.",
        leads=True,
    ),
    "certify": ListedCommand(
        "answers.certify.command",
        "certify",
        "Find whether a mode keeps tenants apart, resource by resource.",
        leads=True,
    ),
    "report": ListedCommand(
        "answers.page.command", "report", "Write stored records as one HTML page.", leads=True
    ),
    # And the others by name.
    "bisect": ListedCommand(
        "answers.versions.command",
        "bisect",
        "Find the commit between GOOD and BAD that made NAME slower.",
    ),
    "fleet": ListedCommand(
        "answers.fleet.command",
        "fleet",
        "Measure every GPU of a cluster, and find the one that is slow.",
    ),
    "help": ListedCommand(
        "cli.help", "help_command", "Explain the options, by topic, or one option, command or term."
    ),
    "history": ListedCommand(
        "answers.history.command",
        "history",
        "Show a baseline's sessions over time, and what changed.",
    ),
    "init": ListedCommand(
        "answers.ci.command",
        "init",
        "Write a first test, a scenario and a workflow, or a workload.",
    ),
    "list": ListedCommand(
        "options.measuring",
        "list_workloads",
        "List the workloads: what they measure, and on how many streams.",
    ),
    "scenario": ListedCommand(
        "answers.scenarios.command", "scenario", "Inspect scenario files (*.hwq.yaml)."
    ),
    "sweep": ListedCommand(
        "options.measuring", "sweep", "Measure workloads over several numbers of streams."
    ),
    "trace": ListedCommand(
        "answers.trace.command", "trace", "Trace one workload's iterations into one file."
    ),
}

# Other names of commands, which the help does not list.
_ALIASES = {"run-priority": "run", "diff": "compare", "info": "doctor", "profile": "trace"}


def _adopt(point: EntryPoint, command: Any) -> Callable[[], click.Command]:
    if not isinstance(command, click.Command):
        raise BadInput(f"{origin(point)} names {command!r}, which is no command of click's")
    return lambda: command


_ALL = Registry[Callable[[], click.Command]](
    "pytest_hwqueue.commands",
    {name: COMMANDS[_ALIASES.get(name, name)].command for name in (*COMMANDS, *_ALIASES)},
    _adopt,
)

# Status 1 of these says that something got worse, so nothing else ends with it.
_COMPARING = ("ab", "baseline", "bisect", "compare", "history")


def _docstring(function: Callable[..., Any]) -> str | None:
    """Read a function's docstring in its source; None without it."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:
        return None
    (found,) = ast.parse(source).body
    return ast.get_docstring(found) if isinstance(found, ast.FunctionDef) else None


def _of_others() -> tuple[dict[str, EntryPoint], str]:
    """Return other packages' commands by name, and why there are none if one cannot be used."""
    try:
        return _ALL.added, ""
    except BadInput as error:
        return {}, str(error)


class _Commands(click.Group):
    """Gives wrong usage pytest's exit status: click's own, 2, is pytest's "interrupted"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*COMMANDS, *_of_others()[0]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, with its help also where ``python -OO`` has dropped docstrings.

        Raises:
            BadInput: naming the package whose command cannot be used.

        """
        try:
            load = _ALL.get(cmd_name)
        except BadInput:
            # The shell that completes a word shows no error.
            if ctx.resilient_parsing:
                return None
            raise
        if load is None:
            return None
        command = load()
        own = command.commands.values() if isinstance(command, click.Group) else ()
        for each in (command, *own):
            if each.help is None and each.callback is not None:
                each.help = _docstring(each.callback)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = meant(name, _ALL)
            raise click.UsageError(f"no command is {name!r}; {near}`hwq --help` lists them", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each command with its line; of other packages', which are not imported, whose."""
        lines = {name: each.line for name, each in COMMANDS.items()}
        added, unusable = _of_others()
        lines |= {name: f"from {package(point)}" for name, point in added.items()}
        leading = [name for name, each in COMMANDS.items() if each.leads]
        more = [name for name in self.list_commands(ctx) if name not in leading]
        room = formatter.width - 6 - max(map(len, lines))
        for title, names in (("Commands", leading), ("More commands", more)):
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, click.Command(name, help=lines[name]).get_short_help_str(room))
                        for name in names
                    ]
                )
        if unusable:
            formatter.write_paragraph()
            formatter.write_text(f"No command of another package can be used: {unusable}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = USAGE  # type: ignore[misc]
            raise
        except BadInput as error:
            # Of the help, which lists other packages' commands.
            raise refusal(error, USAGE) from None

    def invoke(self, ctx: click.Context) -> None:
        """Run the command, and exit with the status that it returns or that its error has."""
        try:
            ctx.exit(super().invoke(ctx) or 0)
        except KeyboardInterrupt:
            # click's own status would be 1, a regression's.
            click.echo("hwq: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except click.UsageError as error:
            error.exit_code = self._usage(ctx)  # type: ignore[misc]
            raise
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            own = self._usage(ctx) == REFUSED
            if isinstance(error, BrokenPipeError) and not own:
                raise  # click ends without a word
            if isinstance(error, HwqError | OSError):
                status = REFUSED if own else getattr(error, "exit_status", USAGE)
                raise refusal(error, status) from None
            if not own:
                raise
            # A failure of ours would end with status 1, which says that something got worse.
            if isinstance(error, click.Abort):
                click.echo("aborted", err=True)
            else:
                traceback.print_exc()
            ctx.exit(REFUSED)

    def _usage(self, ctx: click.Context) -> int:
        """Return the status of wrong usage: of commands that compare, 1 says that one got worse."""
        name = ctx.invoked_subcommand or ""
        return REFUSED if _ALIASES.get(name, name) in _COMPARING else USAGE


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hwq")
def main() -> None:
    """Measure whether a GPU's queue scheduling keeps tail latency.

    Options are also environment variables: --max-time is HWQ_MAX_TIME. Arguments after -- go to
    pytest. The exit status is pytest's: 0 all measured, 1 failed cells, 2 interrupted, 4 wrong
    usage, 5 nothing selected. Commands that compare stored runs or commits document their own.
    `hwq help` explains the options by topic.
    """


if main.help is None and main.callback is not None:
    main.help = _docstring(main.callback)
