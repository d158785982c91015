"""``hwq`` itself: its commands, and their help.

Measuring commands end with pytest's own exit status: 0 all measured, 1 failed cells, 2 interrupted,
3 internal error, 4 wrong usage, 5 nothing selected. Those that compare have their own
(`options`).
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import click

from pytest_hwqueue import __version__
from pytest_hwqueue.cli.ab import ab, bisect
from pytest_hwqueue.cli.baselines import baseline, compare
from pytest_hwqueue.cli.ci import init
from pytest_hwqueue.cli.fleet import fleet
from pytest_hwqueue.cli.measuring import (
    MeasuringWorkloads,
    WorkloadName,
    plugin_arguments,
    run_suite,
    sweep,
    with_parameters,
)
from pytest_hwqueue.cli.options import (
    INTERRUPTED,
    PASSED_ON,
    REFUSED,
    USAGE,
    Asked,
    PassesOn,
    out_file,
    output,
    refusal,
    say,
    with_options,
)
from pytest_hwqueue.cli.report import history, report
from pytest_hwqueue.cli.scenario import scenario
from pytest_hwqueue.cli.trace import trace
from pytest_hwqueue.cli.which import capacity, which
from pytest_hwqueue.errors import HwqError, meant
from pytest_hwqueue.settings.options import BY_NAME, OPTIONS, PRIORITIES, TOPICS, Option
from pytest_hwqueue.suite import shipped
from pytest_hwqueue.workloads.registry import WORKLOADS

_ADVANCED = "advanced"
_ADVANCED_TITLE = "options that only few need; commands' own help leaves them out"
_COMPLETION = "completion"
_COMPLETION_TITLE = "commands, options and workloads completed by the shell"
_SHELLS = {
    "bash, in ~/.bashrc": 'eval "$(_HWQ_COMPLETE=bash_source hwq)"',
    "zsh, in ~/.zshrc": 'eval "$(_HWQ_COMPLETE=zsh_source hwq)"',
    "fish, in ~/.config/fish/completions/hwq.fish": "_HWQ_COMPLETE=fish_source hwq | source",
}


@click.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[TOPIC|OPTION|COMMAND|TERM]")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain the options, by topic, or one option, command or term."""
    formatter = ctx.make_formatter()
    if words:
        _explain(ctx, formatter, " ".join(words))
    else:
        _overview(formatter)
    click.echo(formatter.getvalue().strip("\n"))


def _overview(formatter: click.HelpFormatter) -> None:
    formatter.write_text(
        "The option --hwq-max-time of pytest is --max-time of hwq, the ini key hwq_max_time and "
        "the environment variable HWQ_MAX_TIME. `hwq help TOPIC` explains a topic's options in "
        "full, `hwq help OPTION` one of them, `hwq help TERM` a word of the glossary."
    )
    for topic, title in TOPICS.items():
        with formatter.section(f"{topic} ({title})"):
            formatter.write_dl([(each.command_line, each.line) for each in _options_of(topic)])
    with formatter.section("also"):
        formatter.write_dl([
            (_ADVANCED, _ADVANCED_TITLE), (_COMPLETION, _COMPLETION_TITLE),
            ("TERM", ", ".join(_terms())),
        ])  # fmt: skip


def _explain(ctx: click.Context, formatter: click.HelpFormatter, subject: str) -> None:
    """Explain a term, and a topic, an option or a command.

    Raises:
        click.UsageError: if there is none of that name; it lists the topics and the terms.

    """
    terms = _terms()
    # Of P50, P95, P99 and P99.9, which share an entry, each is found.
    found = [term for term in terms if subject.lower() in term.lower().split(", ")]
    for term in found:
        formatter.write_text(f"{term}: {terms[term]}")
    name = subject.lstrip("-").replace("_", "-").lower().removeprefix("hwq-")
    group = ctx.parent.command if ctx.parent is not None else None
    # A topic comes before the option of its name, which it explains, too.
    if name in TOPICS:
        formatter.write_paragraph()
        formatter.write_text(f"{name}: {TOPICS[name]}")
        for option in _options_of(name):
            _option(formatter, option)
    elif name == _ADVANCED:
        formatter.write_text(f"{_ADVANCED}: {_ADVANCED_TITLE}.")
        rare = (option for option in OPTIONS if option.rare)
        formatter.write_dl([(option.command_line, option.line) for option in rare])
    elif name == _COMPLETION:
        formatter.write_text(f"{_COMPLETION}: {_COMPLETION_TITLE}. Add the line of your shell.")
        formatter.write_paragraph()
        formatter.write_dl(list(_SHELLS.items()))
    elif name in BY_NAME:
        _option(formatter, BY_NAME[name])
    elif isinstance(group, click.Group) and (command := group.get_command(ctx, subject)):
        formatter.write_paragraph()
        with click.Context(command, info_name=subject, parent=ctx.parent) as own:
            formatter.write(command.get_help(own))
    elif not found:
        topics = (*TOPICS, _ADVANCED, _COMPLETION)
        options = (option.name for option in OPTIONS)
        commands = group.commands if isinstance(group, click.Group) else ()
        near = meant(subject.lower(), (*topics, *terms, *commands, *options))
        raise click.UsageError(
            f"there is no topic, option, command or term {subject!r}; {near}topics are "
            f"{', '.join(topics)}; terms are {', '.join(terms)}"
        )


def _terms() -> dict[str, str]:
    """Return the entries of docs/glossary.md, by term; of links their text or their page.

    Scheduler modes, which that page takes from the code, are terms, too.
    """
    file = shipped("glossary.md", "docs/glossary.md")
    text = "" if file is None else file.read_text(encoding="utf-8")
    text = re.sub(r"\(\[[^]]*\]\(([^)#]+)[^)]*\)\)", r"(docs/\1)", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    terms = dict(re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE))
    return terms | {name.partition("[")[0]: told for name, told in _modes().items()}


def _options_of(topic: str) -> list[Option[Any]]:
    return [option for option in OPTIONS if option.topic == topic]


def _option(formatter: click.HelpFormatter, option: Option[Any]) -> None:
    metavar = "" if option.flag else f" {option.metavar}"
    with formatter.section(f"{option.command_line}{metavar}"):
        formatter.write_text(option.help_with_default)
        if option.name in _CHOICES:
            formatter.write_paragraph()
            formatter.write_dl(list(_CHOICES[option.name]().items()))


def _modes() -> dict[str, str]:
    from pytest_hwqueue.schedulers.declaration import describe_modes

    return describe_modes()


def _noises() -> dict[str, str]:
    from pytest_hwqueue.noise.names import describe_noises

    return describe_noises()


_CHOICES: dict[str, Callable[[], dict[str, str]]] = {"scheduler": _modes, "noise": _noises}


# Other names of commands, which the help does not list.
_ALIASES = {"run-priority": "run", "diff": "compare", "info": "doctor", "profile": "trace"}


# What most people come for, in the order in which they need it.
_FRONT = ("doctor", "run", "ab", "compare", "baseline", "which", "capacity", "report")


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


class _Commands(click.Group):
    """Gives wrong usage pytest's exit status: click's own, 2, is pytest's "interrupted"."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, with its help also where ``python -OO`` has dropped docstrings."""
        for each in (cmd, *(cmd.commands.values() if isinstance(cmd, click.Group) else ())):
            if each.help is None and each.callback is not None:
                each.help = _docstring(each.callback)
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        more = [name for name in self.list_commands(ctx) if name not in _FRONT]
        room = formatter.width - 6 - max(map(len, self.commands))
        for title, names in (("Commands", _FRONT), ("More commands", more)):
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(room)) for name in names]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = USAGE  # type: ignore[misc]
            raise

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


@main.command("list")
@click.option("--verbose", "-v", is_flag=True,
              help="also show everything that each declares, with its parameters")  # fmt: skip
def list_workloads(verbose: bool) -> None:
    """List the workloads: what they measure, and on how many streams.

    With --verbose, also show whether a workload needs several processes, what its ratios mean, and
    its parameters with types, bounds and defaults at each size.
    """
    from pytest_hwqueue.reports.listing import workloads_document

    output(workloads_document(verbose=verbose))


@with_options(without=("workload",))
@main.command(cls=MeasuringWorkloads)
@click.argument(
    "names", nargs=-1, required=True, type=WorkloadName(*PRIORITIES), metavar="NAME|P0..."
)
def run(names: tuple[str, ...], **given: Any) -> int:
    """Measure workloads by name, or all of P0, P1, P2 or P3.

    `hwq list` names them. The parameters of a single workload are options too: `hwq run
    hetero_kernels --mm-dim 2048` (`hwq run NAME --help` lists them).
    """
    marks = [name for name in names if name not in WORKLOADS]
    if marks and (len(marks) < len(names) or given["priority"]):
        raise click.UsageError("name workloads or priority marks, not both")
    given = with_parameters(names, given)
    kind = "priority" if marks else "workload"
    return run_suite(plugin_arguments({**given, kind: ",".join(names)}))


@baseline.command(cls=PassesOn, context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("measured", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="NAME|P0... [OPTIONS OF hwq run]")  # fmt: skip
@click.option("--sessions", metavar="N", type=click.IntRange(min=1), default=5, show_default=True,
              help="sessions to record, one after the other")  # fmt: skip
@click.pass_context
def record(ctx: click.Context, name: str, measured: tuple[str, ...], sessions: int) -> int:
    """Record the baseline NAME in several sessions: `hwq run ... --save NAME` for each.

    A single session cannot show how much sessions differ; spread over days or boots, they show
    more: repeat the command then. Each cell runs twice in a session unless you give --runs.

        hwq baseline record main P0 --streams 8

    Exit status: that of the first session that fails, which ends the recording; what was stored
    stays.
    """
    given = run.make_context("hwq run", [*measured]).params
    more = [f"--save={name}", *["--runs=2"] * (given["runs"] is None)]
    passed_on = ["--", *ctx.meta[PASSED_ON]]
    noise = Asked(given).sim_noise
    for number in range(1, sessions + 1):
        say(f"session {number} of {sessions}")
        # With one seed, simulated sessions would all be the first.
        own = [f"--sim-noise={noise},seed={number}"] if noise and "seed=" not in noise else []
        status = run.main([*measured, *more, *own, *passed_on], "hwq run", standalone_mode=False)
        if status:
            return int(status)
    return 0


@with_options(only=("device", "dir"))
@main.command()
@out_file("json", "also write all results to FILE")
@click.option("--quick", is_flag=True, help="take fewer samples; refuse figures that need more")
def doctor(quick: bool, **given: Any) -> int:
    """Check this machine, and measure its limits.

    It begins with versions and devices.

    Ends with exit status 1 if a check found a problem, and 0 otherwise.
    """
    from pytest_hwqueue.doctor import as_json, diagnose
    from pytest_hwqueue.doctor.checks import describe_machine
    from pytest_hwqueue.reports.doctor import diagnosis_document, machine_document

    output(machine_document(describe_machine()))
    asked = Asked(given)
    diagnosis = diagnose(asked.device, asked.dir, quick=quick, progress=say)
    output(diagnosis_document(diagnosis), given, lambda: as_json(diagnosis))
    return 1 if diagnosis.has_problem else 0


for _command in (
    init, ab, compare, baseline, scenario, sweep, trace, which, capacity,
    report, history, bisect, fleet, help_command,
):  # fmt: skip
    main.add_command(_command)
