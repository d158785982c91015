"""``hwq init``, ``comment`` and ``badge``: what a project and its CI start with and show."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import click

from pytest_hwqueue.cli.options import say
from pytest_hwqueue.errors import BadInput, GitHubError, translated
from pytest_hwqueue.suite import suite_path


@click.command()
@click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "-o", "--output", metavar="BADGE", type=click.Path(dir_okay=False, path_type=Path),
    help="the file to write, instead of the standard output",
)  # fmt: skip
def badge(file: Path, output: Path | None) -> None:
    """Write the verdict as a badge.

    FILE is a session's JSON file (--hwq-json) or one that `hwq compare --json` wrote. The badge,
    the JSON for an endpoint badge of shields.io, is red after a regression or a failed run, green
    only if every cell passed, and grey if nothing was judged.

    \b
        hwq badge session.json -o badge.json

    Exit status: 0 if it is written, whatever it says; 4 for wrong usage or input.
    """
    from pytest_hwqueue.records.files import write_text
    from pytest_hwqueue.reports.judgement_file import badge as badge_of
    from pytest_hwqueue.reports.judgement_file import read_compared

    text = json.dumps(badge_of(read_compared(file)), ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


_FORK = (
    "the pull request comes from a fork, so GitHub lets the job's token only read: no comment was "
    "posted. The job's summary has the verdicts; docs/ci.md shows a second workflow that may "
    "comment."
)


@click.command()
@click.argument("file", metavar="FILE.md", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--pull", metavar="NUMBER", type=click.IntRange(min=1),
    help="the pull request [that of the job's event]",
)  # fmt: skip
@click.option("--repository", metavar="OWNER/NAME", help="its repository [GITHUB_REPOSITORY]")
@click.option(
    "--name", metavar="WORD", default="hwqueue", show_default=True,
    help="tells the comments of several jobs on one pull request apart",
)  # fmt: skip
@click.option(
    "--unfinished", is_flag=True,
    help="if FILE.md is not there, comment that the session ended without a verdict",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="print the comment instead of posting it")
def comment(
    file: Path, pull: int | None, repository: str | None, name: str, unfinished: bool,
    dry_run: bool,
) -> int:  # fmt: skip
    """Post a session's Markdown on its pull request.

    The Markdown is what --hwq-markdown wrote. There is one comment: the next run updates it. In a
    job of GitHub Actions, GITHUB_TOKEN is all that it needs (`permissions: {pull-requests:
    write}`); elsewhere give --pull and --repository.

    \b
        pytest --hwq-compare=main --hwq-markdown=hwqueue.md
        hwq comment hwqueue.md

    Exit status: 0 if the comment is there, or cannot be because the pull request comes from a fork;
    1 if GitHub refuses or does not answer; 4 for wrong usage or input.
    """
    from pytest_hwqueue.pulls.comment import GitHub, comment_text, find_pull_request, publish

    try:
        found = find_pull_request(os.environ, pull, repository)
        text = comment_text(_read(file, unfinished), found, name)
        if dry_run:
            click.echo(text, nl=False)
            return 0
        github = GitHub(
            os.environ.get("GITHUB_API_URL") or "https://api.github.com",
            os.environ.get("GITHUB_TOKEN", ""), os.environ.get("GITHUB_GRAPHQL_URL", ""),
        )  # fmt: skip
        url = publish(github, found, name, text)
    except GitHubError as error:
        if error.status == 403 and error.retry_s is None and found.fork:
            _warn(f"{_FORK} ({error})")
            return 0
        say(str(error))
        return error.exit_status
    click.echo(url)
    return 0


def _read(file: Path, unfinished: bool) -> str | None:
    if unfinished and not file.exists():
        return None
    remedy = f"pytest --hwq-markdown={file} writes it"
    with translated(BadInput, f"cannot read {file}", OSError, ValueError, remedy=remedy):
        return file.read_text(encoding="utf-8")


def _warn(text: str) -> None:
    """Print a warning; in a job of GitHub Actions it becomes an annotation, too."""
    from pytest_hwqueue.reports.outcome import annotation

    say(text)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(annotation("warning", "hwq comment", text))


_TEST, _SCENARIO = "tests/test_tail_latency.py", "tests/tail_latency.hwq.yaml"
_WORKFLOW = ".github/workflows/tail-latency.yml"
_STARTER = {
    _TEST: "test_tail_latency.py.txt",
    _SCENARIO: "tail_latency.hwq.yaml.txt",
    _WORKFLOW: "workflow.yml.txt",
}
_PACKAGE = (
    "pyproject.toml", "hwq_example/__init__.py", "hwq_example/workload.py", "tests/test_relay.py",
)  # fmt: skip
# What is named, and what that needs, which is kept where it is there.
_WRITTEN = {
    "all": ((_TEST, _SCENARIO, _WORKFLOW), ()),
    "test": ((_TEST,), ()),
    "scenario": ((_SCENARIO,), (_TEST,)),
    "ci": ((_WORKFLOW,), (_TEST, _SCENARIO)),
    "workload": (_PACKAGE, ()),
}
_SIMULATED = "HWQ_DEVICE=sim:h200 needs no GPU"
# What is printed where a file was written.
_NEXT = (
    (_TEST, f"""\
Measure on this machine; {_SIMULATED}:
  pytest {_TEST}"""),
    (_SCENARIO, f"""\
With a neighbour on the same device:
  pytest {_SCENARIO}"""),
    (_TEST, f"""\
Store a baseline, and compare with it:
  pytest {_TEST} --hwq-save=main --hwq-runs=10
  pytest {_TEST} --hwq-compare=main"""),
    (_WORKFLOW, "Once the workflow is committed, pull requests are measured."),
    (_PACKAGE[0], f"""\
Install it, then measure its workload, and test it; {_SIMULATED}:
  pip install --no-deps .
  hwq run relay
  pytest {_PACKAGE[-1]}"""),
)  # fmt: skip


@click.command()
@click.argument("what", type=click.Choice(tuple(_WRITTEN)), default="all")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--force", is_flag=True, help="overwrite files that are there")
def init(what: str, folder: Path, force: bool) -> None:
    """Write a first test, a scenario and a workflow, or a workload.

    They go into the project in FOLDER [.]. The test measures a small step of torch, alone and
    beside a neighbour: put your own code in its place. The workflow measures pull requests and
    comments on them (docs/ci.md). Without WHAT, all three are written; with it that one, and what
    it needs that is not there yet. A workload is a package that adds one to `hwq list`.

    \b
        hwq init
        hwq init scenario
        hwq init workload my-workload

    Exit status: 0; 4, and nothing is written, if a file is there already.
    """
    from pytest_hwqueue.records.files import write_text

    named, needed = _WRITTEN[what]
    there = [name for name in (*named, *needed) if os.path.lexists(folder / name)]
    if not force and (taken := [str(folder / name) for name in there if name in named]):
        raise click.UsageError(
            f"already there: {', '.join(taken)}; nothing was written (--force overwrites; or give "
            "another folder)"
        )
    texts = {name: _text(name) for name in named}
    texts |= {name: _text(name) for name in needed if name not in there}
    for name, text in texts.items():
        write_text(folder / name, text)
        click.echo(f"wrote {folder / name}")
    if folder != Path():
        click.echo(f"In {folder}:")
    for name, text in _NEXT:
        if name in texts:
            click.echo(text)


def _text(name: str) -> str:
    """Return the text of a file that `init` writes."""
    if name in _STARTER:
        source = files(__package__) / "starter" / _STARTER[name]
        return source.read_text(encoding="utf-8")
    # Next to the suite: inside an installed package as well as in a clone.
    text = (suite_path().parent / "examples/extension" / name).read_text(encoding="utf-8")
    if name != _PACKAGE[0]:
        return text
    # Of the example's additions the workload alone.
    parts = text.split("\n\n")
    kept = (each.strip() for each in parts if "entry-points" not in each or "workloads" in each)
    return "\n\n".join(kept) + "\n"
