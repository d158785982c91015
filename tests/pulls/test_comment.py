"""One comment on a pull request: posted once, updated ever after, and never too long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.errors import BadOption, GitHubError
from pytest_hwqueue.pulls.comment import (
    MOST_BYTES,
    GitHub,
    PullRequest,
    comment_text,
    marker,
    publish,
)
from tests.pulls.conftest import REPOSITORY, Answer, FakeGitHub

PULL = PullRequest(
    REPOSITORY, 7, commit="0123456789abcdef", run_url="https://github.example/octo/queues/runs/1"
)
SERVER_ERROR: Answer = (502, {}, "<html>bad gateway</html>")


def no_wait(seconds: float) -> None:
    raise AssertionError(f"waited for {seconds} s")


def text(markdown: str = "## Hardware queues", name: str = "hwqueue") -> str:
    return comment_text(markdown, PULL, name)


def test_the_second_run_updates_what_the_first_has_posted(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    fake_github.add("looks good", "a-person")
    first = publish(github, PULL, "hwqueue", text("one"), sleep=no_wait)
    second = publish(github, PULL, "hwqueue", text("two"), sleep=no_wait)
    assert first == second == fake_github.comments[1]["html_url"]
    assert fake_github.bodies() == ["looks good", text("two")]


def test_it_is_found_behind_several_pages(github: GitHub, fake_github: FakeGitHub) -> None:
    fake_github.page = 2
    for number in range(5):
        fake_github.add(f"remark {number}", "a-person")
    fake_github.add(text("old"))
    fake_github.add("the last remark", "a-person")
    publish(github, PULL, "hwqueue", text("new"), sleep=no_wait)
    assert fake_github.bodies()[5] == text("new")
    assert len(fake_github.comments) == 7


def test_comments_of_other_names_and_people_are_left_alone(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    others = [
        fake_github.add(text("another job's", "h200"))["body"],
        fake_github.add(text("pretends to be ours"), "a-person")["body"],
        fake_github.add(f"> {text('quotes ours')}")["body"],
    ]
    publish(github, PULL, "hwqueue", text("ours"), sleep=no_wait)
    assert fake_github.bodies() == [*others, text("ours")]


@pytest.mark.parametrize("login", ["a-maintainer", "an-app[bot]"])
def test_the_token_of_a_person_or_an_app_finds_its_own(
    login: str, github: GitHub, fake_github: FakeGitHub
) -> None:
    fake_github.login = login
    publish(github, PULL, "hwqueue", text("one"), sleep=no_wait)
    publish(github, PULL, "hwqueue", text("two"), sleep=no_wait)
    assert fake_github.bodies() == [text("two")]


def test_of_two_jobs_at_once_one_comment_stays(github: GitHub, fake_github: FakeGitHub) -> None:
    def another_job_is_quicker(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/comments"):
            fake_github.before_answer = lambda method, path: None
            fake_github.add(text("theirs"))

    fake_github.before_answer = another_job_is_quicker
    publish(github, PULL, "hwqueue", text("ours"), sleep=no_wait)
    assert fake_github.bodies() == [text("ours")]


def test_of_several_the_oldest_stays_and_another_job_may_delete_the_rest_first(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    def is_gone(method: str, path: str) -> None:
        if method == "DELETE":
            fake_github.refusals.append((404, {}, {"message": "Not Found"}))

    kept, other = (fake_github.add(text(body)) for body in ("older", "newer"))
    fake_github.before_answer = is_gone
    url = publish(github, PULL, "hwqueue", text("ours"), sleep=no_wait)
    assert fake_github.bodies() == [text("ours"), other["body"]]
    assert url == kept["html_url"]


def test_a_list_that_lags_behind_does_not_repeat_the_comment(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    def list_is_old(method: str, path: str) -> None:
        if method == "GET" and fake_github.comments:
            fake_github.before_answer = lambda method, path: None
            fake_github.refusals.append((200, {}, []))

    fake_github.before_answer = list_is_old
    url = publish(github, PULL, "hwqueue", text("ours"), sleep=no_wait)
    assert fake_github.bodies() == [text("ours")]
    assert url == fake_github.comments[0]["html_url"]


def test_an_answer_that_got_lost_does_not_repeat_the_comment(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    def posts_and_breaks(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/comments"):
            fake_github.before_answer = lambda method, path: None
            fake_github.add(text("ours"))
            fake_github.refusals.append(SERVER_ERROR)

    fake_github.before_answer = posts_and_breaks
    waits: list[float] = []
    publish(github, PULL, "hwqueue", text("ours"), sleep=waits.append)
    assert len(waits) == 1
    assert fake_github.bodies() == [text("ours")]


def test_a_short_rate_limit_is_waited_for_and_a_long_one_is_not(
    github: GitHub, fake_github: FakeGitHub
) -> None:
    slow_down = {"message": "You have exceeded a secondary rate limit."}
    fake_github.refusals = [(403, {"Retry-After": "3"}, slow_down), (429, {}, slow_down)]
    waits: list[float] = []
    publish(github, PULL, "hwqueue", text(), sleep=waits.append)
    # Without a header GitHub asks for a minute.
    assert waits == [3, 60]

    fake_github.refusals = [(403, {"Retry-After": "3600"}, slow_down)]
    with pytest.raises(GitHubError, match=r"rate limit is used up until .* UTC"):
        publish(github, PULL, "hwqueue", text(), sleep=no_wait)


def test_it_gives_up_after_three_attempts(github: GitHub, fake_github: FakeGitHub) -> None:
    fake_github.refusals = [SERVER_ERROR] * 4
    waits: list[float] = []
    with pytest.raises(GitHubError, match="HTTP 502, Bad Gateway"):
        publish(github, PULL, "hwqueue", text(), sleep=waits.append)
    assert len(waits) == 2
    assert fake_github.refusals == [SERVER_ERROR]
    assert fake_github.comments == []


def test_the_comment_says_where_it_comes_from() -> None:
    first, rest = text("## Hardware queues on `x`").split("\n", 1)
    assert first == marker("hwqueue") == "<!-- pytest-hwqueue comment hwqueue -->"
    assert rest.startswith("## Hardware queues on `x`\n\n<sub>hwqueue (pytest-hwqueue) · ")
    assert f"commit 0123456789 · [run]({PULL.run_url})</sub>" in rest


def test_a_session_without_markdown_replaces_an_older_verdict() -> None:
    shown = comment_text(None, PULL, "hwqueue")
    assert "**No verdict.** The session ended before it wrote any figures" in shown


@pytest.mark.parametrize("name", ["", "a -->", "a\nb", "x" * 61])
def test_a_name_that_would_break_the_marker_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match=r"--name: .* give a word"):
        marker(name)


def test_a_long_one_is_cut_after_a_row_and_folds_are_closed() -> None:
    rows = "\n".join(f"| `cell {number}` | +1.0 % ≥ |" for number in range(5000))
    long = f"## Verdicts\n\n| ❌ |\n\n<details><summary>passes</summary>\n\n{rows}\n\n</details>"
    shown = text(long)
    assert MOST_BYTES - 200 < len(shown.encode()) <= MOST_BYTES
    assert "| ❌ |" in shown
    assert shown.count("<details>") == shown.count("</details>") == 1
    assert re.search(r"% ≥ \|\n\n</details>\n\n\*Shortened to what fits", shown)
    assert text("short") == f"{marker('hwqueue')}\nshort\n\n{shown[shown.index('<sub>') :]}"


@given(st.lists(st.sampled_from(["<details>", "</details>", "é" * 9_000, "x" * 30_000, ""])))
def test_no_comment_is_longer_than_github_takes(lines: list[str]) -> None:
    shown = text("\n".join(lines))
    assert len(shown) <= len(shown.encode()) <= 65_536
