"""Options that commands share: the plugin's, and the gate's."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_hwqueue.data.errors import BadOption, within
from pytest_hwqueue.options.options import OPTIONS, Option, Settings

if TYPE_CHECKING:
    from pytest_hwqueue.data.document.document import Document
    from pytest_hwqueue.judge.baselines.store import Store
    from pytest_hwqueue.judge.judging import Judgement
    from pytest_hwqueue.judge.verdict import GateSettings


def with_options(
    *,
    without: Sequence[str] = (),
    only: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> Callable[[click.Command], click.Command]:
    """Add the plugin's options to a command, ``without`` those that its arguments replace.

    Its help has one line for each, and leaves out rare ones unless the command has few.
    """

    def decorate(command: click.Command) -> click.Command:
        command.params += [
            _click_option(
                option,
                (defaults or {}).get(option.name, option.default),
                hidden=not only and option.rare,
            )
            for option in OPTIONS
            if option.name not in without and (not only or option.name in only)
        ]
        more = "" if only else "; `hwq help advanced` lists those that only few need"
        command.epilog = f"{command.epilog or ''}\n\n`hwq help` explains all options{more}."
        return command

    return decorate


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a command: from its options, else the environment; of no ini file."""

    def source(option: Option[Any]) -> tuple[str, str]:
        text = given.get(option.field)
        if option.repeatable:
            text = "\n".join(text or ())
        if text:
            return f"--{option.name}", "yes" if option.flag else text
        text = os.environ.get(option.variable) or option.default
        return f"environment variable {option.variable}", text

    return Settings(source)


def given_options(given: Mapping[str, Any]) -> Iterator[tuple[Option[Any], tuple[str, ...]]]:
    """Return the options that a command was given, with their values; of a flag ``yes``."""
    for option in OPTIONS:
        value = given.get(option.field)
        if value not in (None, (), False):
            values = value if isinstance(value, tuple) else (value,)
            yield option, ("yes",) if option.flag else values


def _click_option(option: Option[Any], default: str, *, hidden: bool) -> click.Option:
    """Convert a row of the plugin's table into a command's option."""
    names = [f"--{option.name}", option.field]
    if option.name == "json":
        names.insert(1, "--output")

    def check(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if isinstance(value, str) or option.repeatable:
            try:
                option.parse(f"--{option.name}", "\n".join(value) if option.repeatable else value)
            except BadOption as error:
                raise click.UsageError(str(error), ctx) from None
        return value

    return click.Option(
        names,
        help=as_typed(option.line_with(default)),
        metavar=option.metavar or None,
        multiple=option.repeatable,
        is_flag=option.flag,
        default=False if option.flag else None,
        callback=check,
        hidden=hidden,
    )


_OF_PYTEST = re.compile(r"(\bpytest\s[^`\n]*)|--hwq-")


def as_typed(text: object) -> str:
    """Spell options as `hwq` does, ``--x`` instead of ``--hwq-x``, but for pytest's commands."""
    return _OF_PYTEST.sub(lambda found: found[1] or "--", str(text))


def refusal(error: Exception, status: int) -> click.ClickException:
    """Return what click shows of an error before it exits with a status."""
    refused = click.ClickException(as_typed(error))
    refused.exit_code = status  # type: ignore[misc]
    return refused


REGRESSION, REFUSED, UNDECIDED = 1, 2, 3
INTERRUPTED, USAGE = 2, 4
GATE = ("rate", "min-effect", "detect", "tau")
SOURCE = "a baseline (NAME or DEVICE/NAME), a session's JSON file, or a folder of records"
OUT_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
PASSED_ON = "pytest_hwqueue.cli.passed_on"


def out_file(option: str, text: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return an option that names a file to write."""
    field = "json_file" if option == "json" else option
    return click.option(f"--{option}", field, metavar="FILE", type=OUT_FILE, help=text)


@contextmanager
def interruptible(then: str | None = None, *, by_signal: bool = False) -> Iterator[list[int]]:
    """Let Ctrl-C, a request to terminate and a closed terminal stop what a command measures.

    The yielded list then has the signal's number.

    Args:
        then: what can be done now, or nothing; the command says so and exits. None lets it go on
            with what there is.
        by_signal: it exits with the signal's status, as a shell has it, and not with 2.

    """
    from pytest_hwqueue.parts.processes.reaper import signals_interrupt

    happened: list[int] = []
    try:
        with signals_interrupt():
            yield happened
    except KeyboardInterrupt as interrupt:
        number = int(interrupt.args[0] if interrupt.args else signal.SIGINT)
        happened.append(number)
        if then is not None:
            click.echo(f"interrupted{then and f': {then}'}", err=True)
            raise click.exceptions.Exit(128 + number if by_signal else INTERRUPTED) from None


def say(text: str) -> None:
    """Print a line of the running command's own to the standard error."""
    click.echo(f"hwq {click.get_current_context().command.name}: {text}", err=True)


@dataclass(frozen=True)
class OutFiles:
    """The files that a command is to write; None for none.

    Attributes:
        json: of all figures (--json).
        markdown: of what is printed (--markdown).
        svg: of what it draws (--svg).

    """

    json: Path | None = None
    markdown: Path | None = None
    svg: Path | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> OutFiles:
        """Return those among a command's options."""
        return cls(given.get("json_file"), given.get("markdown"), given.get("svg"))

    def named(self) -> Iterator[tuple[str, Path]]:
        """Yield each with its option."""
        for name in ("json", "markdown", "svg"):
            path: Path | None = getattr(self, name)
            if path is not None:
                yield f"--{name}", path


def output(
    document: Document, files: OutFiles = OutFiles(), as_json: Callable[[], str] | None = None,
    *, kept: Path | None = None, written: Document | None = None,
) -> None:  # fmt: skip
    """Print a document, and write it where --json and --markdown say.

    Printing comes first, so that a file that cannot be written hides no figure.

    Args:
        document: is printed.
        files: where it is written, too.
        as_json: returns the text of --json.
        kept: a file that gets this text in any case.
        written: goes to --markdown in place of what is printed.

    """
    from pytest_hwqueue.data.document.document import markdown
    from pytest_hwqueue.data.document.terminal import print_document
    from pytest_hwqueue.data.safe_files import write_text

    print_document(document)
    texts = [path for path in (files.json, kept) if path]
    if as_json is not None and texts:
        text = as_json()
        for path in texts:
            write_text(path, text)
    if files.markdown is not None:
        write_text(files.markdown, markdown(written or document))


class PassesOn(click.Command):
    """A command that passes arguments after ``--`` to pytest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what comes before ``--``; keep the rest."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[PASSED_ON] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show that arguments may follow ``--``."""
        return [*super().collect_usage_pieces(ctx), "[-- PYTEST_ARGUMENTS...]"]


def combined(
    *options: Callable[[Any], Any],
) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return one decorator that adds several options; help shows the last first."""

    def decorate(command: click.decorators.FC) -> click.decorators.FC:
        for add in options:
            command = add(command)
        return command

    return decorate


def comparison_status(judgement: Judgement, reactions: Mapping[str, str]) -> int:
    """Return the exit status of a comparison.

    Args:
        judgement: its outcome.
        reactions: ``fail`` or another word, by ``inconclusive``, ``no-baseline``, ``incomparable``
            and ``missing``; one not named warns.

    """
    from pytest_hwqueue.judge.verdict import OTHER_CODE

    failing = {verdict for verdict, reaction in reactions.items() if reaction == "fail"}
    if judgement.count("regression"):
        return REGRESSION
    if judgement.count("incomparable") and "incomparable" in failing:
        return REFUSED
    if any(each.verdict.reason == OTHER_CODE for each in judgement.verdicts):
        # Whatever the reactions are: they are to verdicts on the sides' code.
        return REFUSED
    if not judgement.judged:
        # Whatever the reactions are: where nothing was judged nothing can have passed.
        return REFUSED
    undecided = [
        judgement.count("inconclusive") and "inconclusive" in failing,
        judgement.count("no-baseline") and "no-baseline" in failing,
        judgement.missing and "missing" in failing,
    ]
    return UNDECIDED if any(undecided) else 0


def verdicts_text(judgement: Judgement) -> str:
    """Return a comparison's verdicts as the terminal shows them."""
    from pytest_hwqueue.data.document.terminal import make_console
    from pytest_hwqueue.judge.words import render_judgement

    console = make_console()
    return as_typed(render_judgement(judgement, console.width, console.color_system is not None))


def gate_settings(given: Mapping[str, Any]) -> GateSettings:
    """Return the gate's settings from those of its options that a command has."""
    from pytest_hwqueue.judge.verdict import GateSettings

    asked = settings_of(given)
    fields = {name.replace("-", "_"): name for name in GATE if name.replace("-", "_") in given}
    values = {field: getattr(asked, field) for field in fields}
    with within(f"--{', --'.join(fields.values())}"):
        return GateSettings.of_options(**values)


def open_store(folder: Path, *, packaged: bool = False) -> Store:
    """Return the store in a folder, with the baselines that come with the plugin or without."""
    from pytest_hwqueue.judge.baselines.folders import packaged_folder
    from pytest_hwqueue.judge.baselines.store import Store

    return Store(folder, packaged_folder() if packaged else None)
