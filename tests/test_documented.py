"""What the README and the pages show is run: from an installed wheel, in an empty folder.

The commands of a page's console blocks run in order, in one folder, on a simulated H200. ``# exit
status N`` behind a command is the status it has to end with; else it is 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.inner import ROOT, plain_environment

pytestmark = pytest.mark.slow

PAGES = [
    "README.md",
    *(str(each.relative_to(ROOT)) for folder in ("docs", "docs/tutorials")
      for each in sorted((ROOT / folder).glob("*.md")) if each.name != "decisions.md"),
]  # fmt: skip
GPU = "needs a GPU"
PIP = "downloads; the fixture installs"
LOAD = "needs stress-ng, iperf3 or fio"
# What cannot run here: how commands of a page begin, and why.
LEFT_OUT = {
    "docs/ab.md": {'hwq ab --a "--scheduler native"': "is decided after all 24 runs only"},
    "README.md": {"pip install": PIP},
    "docs/distributed.md": {"torchrun": "needs eight GPUs, or two machines"},
    "docs/fleet.md": {
        "hwq fleet check --out": GPU,
        "hwq fleet run": "needs the extra fleet: tests/answers/fleet/test_cluster.py",
        "ray start": "needs the extra fleet",
    },
    "docs/history.md": {
        "pip install": PIP,
        "hwq history": "needs the extra history",
        "hwq bisect": "needs versions of which one is slower: tests/acceptance/test_bisect.py",
    },
    "docs/launch_contention.md": {
        "hwq sweep launch_contention --streams 1,2,4,8,16,32,64 --launchers": GPU,
        "pytest benchmarks": "needs a clone",
        "hwq run launch_contention --streams 8 --scheduler": GPU,
        "hwq which launching.hwq.yaml": GPU,
    },
    "docs/noise.md": {"hwq run": LOAD},
    "docs/report.md": {"pip install": PIP},
    "docs/schedulers.md": {
        "pytest my_tests --hwq-scheduler=native,stream-priority,mps": GPU,
        "pip install": PIP,
        "CUDA_VISIBLE_DEVICES=MIG": "needs a GPU with MIG",
    },
    "docs/start.md": {"pip install": PIP, "pip wheel": PIP},
    "docs/suite.md": {
        "hwq run grad_accum --ranks 4": "a simulated device has one rank: docs/distributed.md",
        "hwq trace moe --tool nsys": "needs nsys",
        "torchrun": "needs eight GPUs",
        "hwq doctor": "examines real devices, and refuses this test's simulated one",
    },
}
# Settings that make a page short.
SHORT = {
    "docs/ab.md": {"HWQ_PRIORITY": "P0", "HWQ_SIZE": "tiny"},
    "docs/distributed.md": {"HWQ_DEVICE": "cpu", "HWQ_MAX_TIME": "1"},
    "docs/report.md": {"HWQ_SIZE": "tiny"},
    "docs/scenarios.md": {"HWQ_SIZE": "tiny"},
    "docs/schedulers.md": {"HWQ_MAX_TIME": "5"},
    "docs/suite.md": {"HWQ_SIZE": "tiny"},
    "docs/which.md": {"HWQ_SIZE": "tiny"},
}
COMMIT = "git add . && git commit -qm more"
# What a page's commands need, as commands.
PREPARED = {
    "docs/ab.md": f"""
        git init -qb main && {COMMIT} && cp -r . ../old && git checkout -qb feature
        echo >> tests/test_latency.py && {COMMIT}""",
    "docs/baselines.md": """
        hwq run P0 --save next --runs 2 --output session.json
        for session in 1 2; do hwq run P0 --runs 3 --save aa; done""",
    "docs/causes.md": "hwq run P0 --save main --runs 3",
    "docs/ci.md": "git init -qb main",
    "docs/fleet.md": "hwq fleet check --device sim:h200 --count 2 --out checks/today",
    "docs/report.md": """
        hwq run P0 --save main --runs 3
        mv .hwqueue/2* .hwqueue/20260101T120000-4711""",
    "docs/preempt.md": """
        hwq preempt --schedulers threads-native --lengths 4ms,6ms,8ms --rounds 3 --requests 460
        mv .hwqueue/preempt-* .hwqueue/preempt-20260101T120000-4711""",
    "docs/certify.md": """
        hwq certify native --resources copies --rounds 3 || true
        mv .hwqueue/certify-* .hwqueue/certify-20260101T120000-4711""",
    "docs/start.md": "git init -qb main",
    "docs/which.md": """
        hwq which high_load --size tiny
        mv .hwqueue/which-* .hwqueue/which-20260101T120000-4711""",
}


def block(page: str, language: str, containing: str = "") -> str:
    """Return the first block of a page in a language that contains a text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next(each for each in blocks if containing in each)


TEST = block("README.md", "python").replace("1 ms", "1 s")
# Goals that the simulated device meets, whatever the scheduler.
MINE = (
    (
        block("docs/capacity.md", "yaml")
        .replace(
            "[native, mps-priority]",
            """
  processes: [native, "xsched:level=1,threshold=1|8"]
  threads: [native, stream-priority, "green-context:high=32"]""",
        )
        .partition("goals:")[0]
    )
    + "goals: [high.p50 < 1 s]\n"
)
# Files that a page's commands need: those that it shows, where it does.
FILES = {
    "docs/ab.md": {
        "tests/test_latency.py": TEST.replace("\n\ndef", "import pytest\n\n\n@pytest.mark.P0\ndef"),
    },
    "docs/capacity.md": {"shared.hwq.yaml": block("docs/capacity.md", "yaml")},
    "docs/scenarios.md": {
        "my.hwq.yaml": MINE,
        "wrong.hwq.yaml": block("docs/scenarios.md", "yaml").replace("resnet18", "resnet17"),
    },
    "docs/schedulers.md": {
        "my_tests/test_mine.py": TEST,
        "my.hwq.yaml": MINE,
        "mine.hwq.yaml": MINE,
    },
    "docs/tutorials/scheduler.md": {
        "mine.hwq.yaml": block("docs/tutorials/scheduler.md", "yaml"),
    },
    # Each scheduler would take two minutes of simulating.
    "docs/which.md": {
        "mix.hwq.yaml": block("docs/which.md", "yaml", "name: mix").replace("60s", "6s"),
    },
}
# What is of a clone, as a page says.
CLONE = {
    "docs/schedulers.md": ["examples/schedulers", "examples/test_own_code.py"],
    "docs/which.md": ["baselines/nvidia-h200/co-location/high_load-mps"],
}


def commands(page: str) -> list[str]:
    """Return the commands of a page's console blocks, each with the lines that continue it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", "\n".join(blocks), re.MULTILINE)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A wheel of the checkout, installed beside what it depends on."""
    wheels, site = (tmp_path_factory.mktemp(each) for each in ("wheels", "site"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    for arguments in (
        ["wheel", *offline, "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)],
        ["install", *offline, "--find-links", str(wheels), "--target", str(site), "pytest-hwqueue"],
    ):
        subprocess.run([*pip, *arguments], check=True)
    who = (f"GIT_{role}_{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))
    return plain_environment(
        PYTHONPATH=str(site),
        PATH=os.pathsep.join((f"{site}/bin", f"{Path(sys.executable).parent}", os.environ["PATH"])),
        HWQ_DEVICE="sim:h200",
        # A P99 needs 368; the default is 1000.
        HWQ_SAMPLES="400",
        GIT_EDITOR="echo baseline >", **dict.fromkeys(who, "n@example.org"),
        PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0", PIP_TARGET=str(site),
    )  # fmt: skip


@pytest.mark.parametrize("page", [each for each in PAGES if commands(each)])
def test_the_commands_of_a_page_run(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for name, text in FILES.get(page, {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in CLONE.get(page, ()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", command], cwd=folder, env=environment | SHORT.get(page, {}),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip

    prepared = run(PREPARED.get(page, "true"))
    assert prepared.returncode == 0, prepared.stdout
    wrong = []
    for command in commands(page):
        if command.startswith(tuple(LEFT_OUT.get(page, ()))):
            continue
        # What pages show was measured on a GPU.
        done = run(command.replace("[cuda-", "[sim:h200-"))
        stated = re.search(r"# .*\bexit status (\d+)", command)
        if done.returncode != int(stated[1] if stated else 0):
            wrong.append(f"$ {command}\n{done.stdout}exit status {done.returncode}")
    assert not wrong, "\n\n".join(wrong)


def test_whatever_is_left_out_is_there() -> None:
    """An entry that matches nothing would hide the next command that begins so."""
    for page, begin in ((page, begin) for page, left in LEFT_OUT.items() for begin in left):
        assert any(each.startswith(begin) for each in commands(page)), (page, begin)
    for page in (*PREPARED, *FILES, *CLONE, *SHORT):
        assert commands(page), page
