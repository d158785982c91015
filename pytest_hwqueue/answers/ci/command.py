"""``hwq init``: what a project and its CI start with."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import click

from pytest_hwqueue.options.suite import suite_path

_TEST, _SCENARIO = "tests/test_tail_latency.py", "tests/tail_latency.hwq.yaml"
_WORKFLOW = ".github/workflows/tail-latency.yml"
_ATTRIBUTES = ".gitattributes"
_STARTER = {
    _TEST: "test_tail_latency.py.txt",
    _SCENARIO: "tail_latency.hwq.yaml.txt",
    _WORKFLOW: "workflow.yml.txt",
    _ATTRIBUTES: "gitattributes.txt",
}
_PACKAGE = (
    "pyproject.toml", "hwq_example/__init__.py", "hwq_example/workload.py", "tests/test_relay.py",
)  # fmt: skip
# What is named, and what that needs, which is kept where it is there.
_WRITTEN = {
    "all": ((_TEST, _SCENARIO, _WORKFLOW), (_ATTRIBUTES,)),
    "test": ((_TEST,), (_ATTRIBUTES,)),
    "scenario": ((_SCENARIO,), (_TEST,)),
    "ci": ((_WORKFLOW,), (_TEST, _SCENARIO, _ATTRIBUTES)),
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

    They go into the project in FOLDER [.]; the workflow goes to the top of its git repository, for
    GitHub to find it. The test measures a small step of torch, alone and beside a neighbour: put
    your own code in its place. The workflow measures pull requests and comments on them
    (docs/ci.md). Without WHAT, all three are written; with it that one, and what it needs that is
    not there yet, such as .gitattributes, which keeps git from changing baselines. A workload is a
    package that adds one to `hwq list`.

    \b
        hwq init
        hwq init scenario
        hwq init workload my-workload

    Exit status: 0; 4, and nothing is written, if a file is there already.
    """
    from pytest_hwqueue.data.safe_files import write_text
    from pytest_hwqueue.parts.processes.git import top_level

    named, needed = _WRITTEN[what]
    top = None
    if _WORKFLOW in named:
        there = next(
            each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir()
        )
        top = top_level(there)
    places = {name: folder / name for name in (*named, *needed)}
    inside = ""
    if top is not None and folder.resolve() != top:
        places[_WORKFLOW] = top / _WORKFLOW
        inside = f"{folder.resolve().relative_to(top).as_posix()}/"
    present = [name for name, place in places.items() if os.path.lexists(place)]
    if not force and (taken := [str(places[name]) for name in present if name in named]):
        raise click.UsageError(
            f"already there: {', '.join(taken)}; nothing was written (--force overwrites; or give "
            "another folder)"
        )
    texts = {name: _text(name) for name in named}
    texts |= {name: _text(name) for name in needed if name not in present}
    for name, text in texts.items():
        moved = name == _WORKFLOW
        write_text(places[name], text.replace("tests/", f"{inside}tests/") if moved else text)
        click.echo(f"wrote {places[name]}")
    if _ATTRIBUTES in present:
        click.echo(f"{places[_ATTRIBUTES]} is kept; so that git changes no baseline, let it have:")
        click.echo(f"  {_text(_ATTRIBUTES).splitlines()[-1]}")
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
