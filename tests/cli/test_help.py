"""hwq help: every option is explained in full, and the shell completes what it may."""

from __future__ import annotations

import re

import pytest
from click.testing import Result

from pytest_hwqueue.cli.main import COMMANDS
from pytest_hwqueue.data.noise_names import describe_noises
from pytest_hwqueue.data.shipped import shipped
from pytest_hwqueue.options.options import OPTIONS, TOPICS
from pytest_hwqueue.parts.schedulers.declaration import describe_modes
from tests.cli.conftest import finished, hwq, real


def explained(*subject: str) -> Result:
    return hwq("help", *subject, columns=80)


def squeezed(text: str) -> str:
    """Without white space: where click breaks a line does not matter."""
    return re.sub(r"\s+", "", text)


def test_the_overview_fits_and_names_each_option_once() -> None:
    found = explained()
    assert found.exit_code == 0
    assert max(map(len, found.output.splitlines())) <= 80
    for option in OPTIONS:
        assert len(re.findall(rf"^  {option.command_line} ", found.output, re.MULTILINE)) == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_explains_its_options_in_full(topic: str) -> None:
    text = squeezed(explained(topic).output)
    for option in OPTIONS:
        told = squeezed(option.help_with_default) in text
        assert told == (option.topic == topic), option.name


@pytest.mark.parametrize(
    ("subject", "described"), [("scheduler", describe_modes), ("noise", describe_noises)]
)
def test_every_choice_is_explained(subject: str, described: object) -> None:
    text = squeezed(explained(subject).output)
    assert callable(described)
    for name, words in described().items():
        assert squeezed(name + words) in text


def test_an_option_is_explained_by_any_of_its_names() -> None:
    for option in OPTIONS:
        for name in (option.command_line, f"--{option.name}", option.key, option.variable):
            found = explained(name)
            assert found.exit_code == 0, found.output
            assert squeezed(option.help_with_default) in squeezed(found.output), name


@pytest.mark.parametrize("name", ["doctor", "diff"])
def test_a_command_is_explained_as_it_explains_itself(name: str) -> None:
    own = hwq(name, "--help", columns=80).output
    assert explained(name).output.strip() == own.strip()


def test_a_term_is_explained_as_the_glossary_has_it() -> None:
    told = (
        "tenant: a model, a workload, a function or a server that shares the device in a scenario,"
    )
    assert " ".join(explained("tenant").output.split()) == f"{told} with its own arrivals"
    for subject, begins in (
        (("Closed", "Loop"), "closed loop: arrivals in which the next request starts when"),
        (("p99.9",), "P50, P95, P99, P99.9: the time below which"),
        (("blind",), "blind: said of a cell whose runs are too noisy or too few to rule out"),
        (("mps-priority",), "mps-priority: MPS; tenants of priority 0"),
        # A term that names something else, too, comes before it.
        (("sentinel",), "sentinel: a cell without the product's code"),
        (("noise",), "noise: background load on the CPU (docs/noise.md) noise: background load"),
        (("baseline",), "baseline: stored runs with which new ones are compared Usage: hwq"),
    ):
        found = explained(*subject)
        assert found.exit_code == 0
        assert " ".join(found.output.split()).startswith(begins)
        assert not re.search(r"\]\(|\n\n\n", found.output)


def test_every_row_of_the_glossary_is_a_term_and_an_unknown_one_lists_them() -> None:
    path = shipped("glossary.md", "docs/glossary.md")
    assert path is not None
    page = path.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)[1:]
    assert len(rows) > 30
    refused = " ".join(explained("tennant").output.split())
    assert "no topic, option, command or term 'tennant'; did you mean tenant? topics" in refused
    assert ", ".join(rows) in refused.partition("terms are ")[2]


def test_what_only_few_need_is_listed_apart() -> None:
    listed = re.findall(r"^(--hwq-\S+) ", explained("advanced").output, re.MULTILINE)
    assert listed == [option.command_line for option in OPTIONS if option.rare]
    assert "--hwq-sync-mode" in listed


def test_commands_that_lead_come_first_wherever_the_table_has_them() -> None:
    leading = [name for name, each in COMMANDS.items() if each.leads]
    assert leading == ["doctor", "run", "ab", "compare", "baseline", "which", "capacity", "preempt",
                       "certify", "report"]  # fmt: skip
    listed = hwq("--help").output.partition("\nCommands:")[2]
    shown = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert shown == [*leading, *sorted(COMMANDS.keys() - set(leading))]


@pytest.mark.parametrize("command", [("run",), ("sweep",)])
def test_what_most_need_stands_first(command: tuple[str, ...]) -> None:
    options = re.findall(r"^  --([\w-]+)", hwq(*command, "--help", columns=80).output, re.MULTILINE)
    front = ["device", "streams", "scheduler", "budget", "save", "compare", "against", "report"]
    assert options[:8] == front


def test_other_names_of_commands_are_not_listed() -> None:
    listed = hwq("--help").output
    for name in ("run-priority", "diff", "info"):
        assert f"  {name} " not in listed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_for_completion_are_those_that_click_offers(shell: str) -> None:
    assert f"_HWQ_COMPLETE={shell}_source hwq" in explained("completion").output
    words = {"COMP_WORDS": "hwq run large_g", "COMP_CWORD": "2" if shell != "fish" else "large_g"}
    status, output, _ = finished(real(**words, _HWQ_COMPLETE=f"{shell}_complete"))
    assert status == 0
    assert "large_gemm_only" in output
    assert "moe" not in output
