"""``hwq help``: the options by topic, with the long words that `pytest --help` has no room for."""

from __future__ import annotations

from collections.abc import Callable

import click

from pytest_hwqueue.cli.plugin_options import TABLE
from pytest_hwqueue.settings.options import OPTIONS, Option
from pytest_hwqueue.settings.topics import TOPICS, Topic

_COMPLETION = "completion"
_COMPLETION_TITLE = "commands, options and workloads completed by the shell"
_SHELLS = {
    "bash, in ~/.bashrc": 'eval "$(_HWQ_COMPLETE=bash_source hwq)"',
    "zsh, in ~/.zshrc": 'eval "$(_HWQ_COMPLETE=zsh_source hwq)"',
    "fish, in ~/.config/fish/completions/hwq.fish": "_HWQ_COMPLETE=fish_source hwq | source",
}


@click.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("subject", required=False, metavar="[TOPIC|OPTION|COMMAND]")
@click.pass_context
def help_command(ctx: click.Context, subject: str | None) -> None:
    """Explain the options: all topics, or one topic, option or command in full."""
    formatter = ctx.make_formatter()
    if subject is None:
        _overview(formatter)
    else:
        _explain(ctx, formatter, subject)
    click.echo(formatter.getvalue().rstrip("\n"))


def _overview(formatter: click.HelpFormatter) -> None:
    formatter.write_text(
        "The option --hwq-max-time of pytest is --max-time of hwq, the ini key hwq_max_time and "
        "the environment variable HWQ_MAX_TIME. `hwq help TOPIC` explains a topic's options in "
        "full, `hwq help OPTION` one of them."
    )
    listed = [name for topic in TOPICS for name in (*topic.common, *topic.rare)]
    for topic in TOPICS:
        with formatter.section(f"{topic.name} ({topic.title})"):
            lines = topic.common | topic.rare
            formatter.write_dl([(f"--hwq-{name}", line) for name, line in lines.items()])
    others = [option for option in OPTIONS if option.name not in listed]
    if others:
        with formatter.section("others"):
            formatter.write_dl([(option.command_line, option.help) for option in others])
    with formatter.section("also"):
        formatter.write_dl([(_COMPLETION, _COMPLETION_TITLE)])


def _explain(ctx: click.Context, formatter: click.HelpFormatter, subject: str) -> None:
    """Explain a topic, an option or a command.

    Raises:
        click.UsageError: if there is none of that name; it lists the topics.

    """
    name = subject.lstrip("-").replace("_", "-").lower().removeprefix("hwq-")
    topics = {topic.name: topic for topic in TOPICS}
    group = ctx.parent.command if ctx.parent is not None else None
    # A topic comes before the option of its name, which it explains, too.
    if name in topics:
        _topic(formatter, topics[name])
    elif name == _COMPLETION:
        formatter.write_text(f"{_COMPLETION}: {_COMPLETION_TITLE}. Add the line of your shell.")
        formatter.write_paragraph()
        formatter.write_dl(list(_SHELLS.items()))
    elif name in TABLE:
        _option(formatter, TABLE[name])
    elif isinstance(group, click.Group) and subject in group.commands:
        command = group.commands[subject]
        with click.Context(command, info_name=subject, parent=ctx.parent) as own:
            formatter.write(command.get_help(own))
    else:
        raise click.UsageError(
            f"there is no topic, option or command {subject!r}; topics are "
            f"{', '.join([*topics, _COMPLETION])}",
            ctx,
        )


def _topic(formatter: click.HelpFormatter, topic: Topic) -> None:
    formatter.write_text(f"{topic.name}: {topic.title}")
    for name in (*topic.common, *topic.rare):
        _option(formatter, TABLE[name])


def _option(formatter: click.HelpFormatter, option: Option) -> None:
    metavar = "" if option.flag else f" {option.metavar}"
    with formatter.section(f"{option.command_line}{metavar}"):
        formatter.write_text(option.help_with_default)
        if option.name in _CHOICES:
            formatter.write_paragraph()
            formatter.write_dl(list(_CHOICES[option.name]().items()))


def _modes() -> dict[str, str]:
    from pytest_hwqueue.schedulers.declared import describe_modes

    return describe_modes()


def _noises() -> dict[str, str]:
    from pytest_hwqueue.noise.names import describe_noises

    return describe_noises()


def _faults() -> dict[str, str]:
    from pytest_hwqueue.faults.specification import describe_faults

    return describe_faults()


_CHOICES: dict[str, Callable[[], dict[str, str]]] = {
    "scheduler": _modes, "noise": _noises, "fault": _faults,
}  # fmt: skip
