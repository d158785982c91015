"""What the repository has for GitHub: forms, workflows, and examples of workflows in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue import __version__

_ROOT = Path(__file__).parents[1]
_FORMS = sorted((_ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
_WORKFLOWS = {
    path.name: path.read_text(encoding="utf-8")
    for path in (
        *(_ROOT / ".github" / "workflows").glob("*.yml"),
        _ROOT / "pytest_hwqueue" / "answers" / "ci" / "starter" / "workflow.yml.txt",
    )
}
_CI = (_ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
_WORKFLOWS |= {
    f"docs/ci.md, {number}": text
    for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```", _CI, re.MULTILINE | re.DOTALL))
}
_OURS = "pytest-hwqueue/pytest-hwqueue@"


def steps(workflow: str) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(_WORKFLOWS[workflow])["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def commands(workflow: str) -> list[str]:
    return [step["run"].strip() for step in steps(workflow) if "run" in step]


@pytest.mark.parametrize("path", _FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_github_requires(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form.keys() >= {"name", "description", "body"}
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    for field in form["body"]:
        assert field["type"] in ("input", "textarea")
        assert isinstance(field["attributes"]["label"], str)
        # A box that formats its text as code has no room for files.
        assert not ("Attach" in field["attributes"].get("description", "")
                    and "render" in field["attributes"])  # fmt: skip
    required = {field["id"] for field in form["body"] if field.get("validations")}
    wanted = {"bug": {"command", "version", "doctor"}, "verdict": {"session"}, "feature": set()}
    assert required >= wanted[path.stem]


def test_each_form_is_there_and_the_pull_requests_text_is_short() -> None:
    assert [path.stem for path in _FORMS] == ["bug", "feature", "verdict"]
    template = _ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"
    assert len(template.read_text(encoding="utf-8").splitlines()) <= 15


@pytest.mark.parametrize("workflow", _WORKFLOWS)
def test_a_workflow_pins_its_actions_and_drops_no_waiting_job(workflow: str) -> None:
    found = yaml.safe_load(_WORKFLOWS[workflow])
    # `on` is a boolean of YAML 1.1.
    assert found.keys() == {"name", True, "permissions", "jobs"}
    assert all("concurrency" not in job for job in found["jobs"].values())
    inputs = yaml.safe_load((_ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    for step in steps(workflow):
        uses = step.get("uses", f"{_OURS}main")
        assert re.fullmatch(rf"actions/[\w-]+@v\d+|pypa/[\w-]+@release/v1|{_OURS}main", uses)
        if step.get("uses") == f"{_OURS}main":
            assert step["with"].keys() <= inputs.keys()
    against = "against:" in _WORKFLOWS[workflow]
    assert against == ("fetch-depth: 0" in _WORKFLOWS[workflow])


def test_the_tests_are_those_of_the_readme_on_every_python_it_names() -> None:
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- tests -->\n```bash\n(.*?)\n```", readme, re.DOTALL)
    assert commands("tests.yml") == [block]
    (job,) = yaml.safe_load(_WORKFLOWS["tests.yml"])["jobs"].values()
    pythons = job["strategy"]["matrix"]["python"]
    assert f"![Python {pythons[0]} to {pythons[-1]}]" in readme
    assert len(pythons) == 5


def test_what_those_leave_out_runs_by_the_clock() -> None:
    found = yaml.safe_load(_WORKFLOWS["slow.yml"])
    assert found[True].keys() == {"schedule", "workflow_dispatch"}
    environments = found["jobs"]["slow"]["strategy"]["matrix"]["environment"]
    assert environments == ["tests -- -m slow", "browser", "pytest-main"]
    project = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"not slow and not browser"' in project


def test_a_release_is_checked_and_published_without_a_token() -> None:
    assert "python -m build" in commands("release.yml")
    assert "python -m twine check --strict dist/*" in commands("release.yml")
    publish = yaml.safe_load(_WORKFLOWS["release.yml"])["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    # Attestations are on unless switched off.
    assert "with" not in publish["steps"][-1]
    assert "secrets." not in _WORKFLOWS["release.yml"]


def test_one_version_is_named_everywhere() -> None:
    citation = yaml.safe_load((_ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    changelog = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == __version__
    assert set(re.findall(r"pytest_hwqueue-([\d.]+)-py3", _CI)) == {__version__}
