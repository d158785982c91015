"""Published tables are what their stored records say, and a page that says otherwise is found."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from pytest_hwqueue.judge.runs import ProcessRun

ROOT = Path(__file__).parents[2]
BLOCK = """\
# A page

## Rebuilt

<!-- rebuilt: python -m tools.reference_table
  nvidia-h200/reference -->
<!-- end -->

## By hand

Words stay.
"""
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.fixture(name="pages")
def _pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    from tools import results_pages

    return results_pages


@pytest.fixture(name="page")
def _page(tmp_path: Path) -> Path:
    page = tmp_path / "results" / "page.md"
    page.parent.mkdir()
    page.write_text(BLOCK)
    return page


@pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(), reason="a source distribution has only the reference baselines"
)
def test_every_published_table_is_what_its_records_say(
    pages: ModuleType,
) -> None:
    with pytest.raises(SystemExit) as ended:
        pages.main(["--check"])
    assert ended.value.code == 0, ended.value.code


def test_a_page_is_rewritten_once_and_then_agrees(pages: ModuleType, page: Path) -> None:
    assert pages.rebuild([page], check=False) == []
    text = page.read_text()
    assert "\n| tiny_kernel_stress | burst | 8 | graph |" in text
    assert text.endswith("<!-- end -->\n\n## By hand\n\nWords stay.\n")
    assert pages.rebuild([page], check=True) == []


def test_a_figure_that_the_records_do_not_have_fails_with_a_diff(
    pages: ModuleType, page: Path
) -> None:
    pages.rebuild([page], check=False)
    right = next(line for line in page.read_text().splitlines() if line.startswith("| moe |"))
    wrong = right.replace(" (", " (0", 1)
    page.write_text(page.read_text().replace(right, wrong))
    with pytest.raises(SystemExit) as ended:
        pages.main(["--check", str(page)])
    assert f"\n-{wrong}\n" in str(ended.value.code)
    assert f"\n+{right}\n" in str(ended.value.code)
    assert wrong in page.read_text()


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("<!-- end -->", "", "page.md: each <!-- rebuilt: COMMAND --> needs its own"),
        ("nvidia-h200/reference", "nvidia-h200/absent", "page.md:5: its command failed"),
        ("python -m tools.reference_table", "rm -r", "page.md:5: rm -r nvidia-h200"),
        ("python -m tools.reference_table", "hwq absent", "page.md:5: its command failed: 4"),
    ],
)
def test_what_is_wrong_in_a_page_is_named_with_its_place(
    pages: ModuleType, page: Path, before: str, after: str, why: str
) -> None:
    page.write_text(BLOCK.replace(before, after))
    with pytest.raises(pages.PageError, match=why):
        pages.rebuild([page], check=True)


def test_a_table_without_records_must_say_so(pages: ModuleType, page: Path) -> None:
    said = f"{pages.NO_RECORDS} measured by a machine that is gone.\n"
    page.write_text(f"# A page\n## One\n{said}### Part\n{TABLE}## Two\n{TABLE}")
    (problem,) = pages.rebuild([page], check=True)
    assert "page.md:9: this table is not rebuilt from records" in problem
    page.write_text(f"# A page\n{said}## One\n{TABLE}## Two\n{TABLE}")
    assert pages.rebuild([page], check=True) == []


def test_an_interval_in_the_text_must_be_in_a_rebuilt_table(pages: ModuleType, page: Path) -> None:
    # Its cells are of one session, and so have intervals.
    page.write_text(page.read_text().replace("nvidia-h200/reference", "sim-h200/reference"))
    pages.rebuild([page], check=False)
    low, high = re.findall(r"\[([\d.]+), ([\d.]+)\]", page.read_text())[0]
    words = f"Words of 1 ms \\[{low}, {high}\\] and \\[{low}, {high}1\\]"
    page.write_text(page.read_text().replace("Words", words))
    number = page.read_text().splitlines().index(f"{words} stay.") + 1
    assert pages.rebuild([page], check=True) == [
        f"{page}:{number}: no table of this page that is rebuilt from records has [{low}, {high}1]"
    ]
    page.write_text(page.read_text().replace("Words", f"{pages.NO_RECORDS} of theirs.\n\nWords"))
    assert pages.rebuild([page], check=True) == []


def test_an_interval_is_over_runs_or_over_several_sessions(pages: ModuleType) -> None:
    from tools.reference_table import interval

    assert interval([ProcessRun(5.0, 400, "a")]) is None
    one = [ProcessRun(value, 400, "a") for value in (5.0, 6.0, 5.5)]
    logs = np.log([run.value for run in one])
    expected = np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
    assert interval(one) == pytest.approx(tuple(expected))
    two = [*one, ProcessRun(9.0, 400, "b")]
    assert interval(two) is None  # two sessions say too little about a spread
    means = np.array([logs.mean(), np.log(9.0), np.log(7.0)])
    expected = np.exp(stats.t.interval(0.95, 2, means.mean(), stats.sem(means)))
    assert interval([*two, ProcessRun(7.0, 400, "c")]) == pytest.approx(tuple(expected))
