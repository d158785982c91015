"""``hwq comment``: what it posts, what it prints, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main
from tests.pulls.conftest import REPOSITORY, TOKEN, FakeGitHub, fake_github

__all__ = ["fake_github"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_github: FakeGitHub) -> dict[str, str]:
    """The variables of a job on a pull request of the same repository."""
    (tmp_path / "hwqueue.md").write_text("## Hardware queues\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    write_event(tmp_path, REPOSITORY)
    return {
        "GITHUB_ACTIONS": "true", "GITHUB_API_URL": fake_github.url,
        "GITHUB_GRAPHQL_URL": f"{fake_github.url}/graphql", "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"), "GITHUB_TOKEN": TOKEN,
    }  # fmt: skip


def write_event(folder: Path, source: str) -> None:
    head = {"sha": "0123456789abcdef", "repo": {"full_name": source}}
    event = {"pull_request": {"number": 7, "head": head}}
    (folder / "event.json").write_text(json.dumps(event), encoding="utf-8")


def comment(job: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(main, ["comment", *arguments], prog_name="hwq", env=job)


def test_it_posts_once_and_prints_where(job: dict[str, str], fake_github: FakeGitHub) -> None:
    for _ in range(2):
        done = comment(job, "hwqueue.md")
        assert done.exit_code == 0, done.output
        assert done.output.strip() == fake_github.comments[0]["html_url"]
    (body,) = fake_github.bodies()
    assert "## Hardware queues" in body


def test_a_fork_gets_an_explanation_and_no_failure(
    job: dict[str, str], fake_github: FakeGitHub, tmp_path: Path
) -> None:
    write_event(tmp_path, "somebody/queues")
    message = {"message": "Resource not accessible by integration"}
    fake_github.refusals = [(403, {}, message)]
    done = comment(job, "hwqueue.md")
    assert done.exit_code == 0
    assert "the pull request comes from a fork, so GitHub lets the job's token only" in done.output
    assert "::warning title=hwq comment::the pull request comes from a fork" in done.output
    write_event(tmp_path, REPOSITORY)
    fake_github.refusals = [(403, {}, message)]
    done = comment(job, "hwqueue.md")
    assert done.exit_code == 1
    assert "a job needs `permissions: {pull-requests: write}`" in done.output


def test_a_file_that_is_not_there(job: dict[str, str], fake_github: FakeGitHub) -> None:
    done = comment(job, "nowhere.md")
    assert done.exit_code == 4
    assert "pytest --hwq-markdown=nowhere.md writes it" in done.output
    assert fake_github.requests == []
    assert comment(job, "nowhere.md", "--unfinished").exit_code == 0
    assert "**No verdict.**" in fake_github.bodies()[0]


def test_a_dry_run_prints_it(job: dict[str, str], fake_github: FakeGitHub) -> None:
    done = comment({**job, "GITHUB_TOKEN": ""}, "hwqueue.md", "--dry-run", "--name", "h200")
    assert done.exit_code == 0
    assert done.output.startswith("<!-- pytest-hwqueue comment h200 -->\n## Hardware queues\n")
    assert fake_github.requests == []


@pytest.mark.parametrize(("variables", "arguments", "words"), [
    ({"GITHUB_TOKEN": ""}, "", "GITHUB_TOKEN: .* is not valid; give the job's token"),
    ({"GITHUB_EVENT_PATH": ""}, "", "--pull 12"),
    ({}, "--name a|b", r"--name: 'a\|b' is not valid"),
    ({}, "--pull 0", "0 is not in the range"),
    ({"GITHUB_API_URL": "http://api.github.com"}, "", "https:// URL"),
])  # fmt: skip
def test_wrong_usage_is_refused_before_anything_is_sent(
    variables: dict[str, str], arguments: str, words: str, job: dict[str, str],
    fake_github: FakeGitHub,
) -> None:  # fmt: skip
    done = comment({**job, **variables}, "hwqueue.md", *arguments.split())
    assert done.exit_code == 4
    assert re.search(words, " ".join(done.output.split()))
    assert fake_github.requests == []
