"""``hwq help``: options by topic, one option, one command, and the words of the glossary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from pytest_hwqueue.data.errors import meant
from pytest_hwqueue.data.shipped import shipped
from pytest_hwqueue.options.options import BY_NAME, OPTIONS, TOPICS, Option

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
        commands = group.list_commands(ctx) if isinstance(group, click.Group) else ()
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
    from pytest_hwqueue.parts.schedulers.declaration import describe_modes

    return describe_modes()


def _noises() -> dict[str, str]:
    from pytest_hwqueue.data.noise_names import describe_noises

    return describe_noises()


_CHOICES: dict[str, Callable[[], dict[str, str]]] = {"scheduler": _modes, "noise": _noises}
