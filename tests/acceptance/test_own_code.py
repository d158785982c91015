"""Comparisons of repositories that are installed editable: each side runs its own code, or says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pytest_hwqueue.options.suite import plugin_name
from tests.acceptance.inner import ROOT, commit, left_behind, new_repository, plain_environment
from tests.answers.versions.repositories import git

TEST = """
import libx

def test_kernel(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(libx.NS), streams=1)
"""
FAST, SLOW = "NS = 100_000\n", "NS = 240_000\n"
FINDER = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, {file!r}) if name == "libx" else None
sys.meta_path.insert(0, Finder)
"""
# A comparison of 5 pairs.
SHORT = ("--pairs=5", "--rate=20%", "--device=sim:h200", "--iterations=320", "--warmup=1",
         "--fail-on=p50")  # fmt: skip
HWQ_SHORT = tuple(option.replace("--", "--hwq-", 1) for option in SHORT)
# Of `hwq ab` and `hwq bisect`; the runs of --hwq-against measure in workers.
QUICK = (*SHORT, "--isolation=none")


class Monorepo:
    """A repository whose package lies in packages/x/src, and a Python that has it editable.

    HEAD is 2.4 times as slow as its parent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = new_repository(folder)
        self.scratch = folder.with_name("scratch")
        self.file = folder / "packages" / "x" / "src" / "libx" / "__init__.py"
        self.file.parent.mkdir(parents=True)
        (folder / "packages" / "x" / "pyproject.toml").touch()
        (folder / "tests").mkdir()
        (folder / "tests" / "test_kernel.py").write_text(TEST)
        self.file.write_text(FAST)
        commit(folder, "fast")
        self.file.write_text(SLOW)
        commit(folder, "slow")
        venv = folder.with_name("venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        (self.packages,) = venv.glob("lib/python*/site-packages")
        self.python = str(venv / "bin" / "python")
        behind = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (self.packages / "behind.pth").write_text(f"{behind}{ROOT}\n")

    def install(self, kind: str) -> None:
        """Install the package editable, by a path or a finder."""
        hook = f"{self.file.parents[1]}\n"
        if kind == "finder":
            (self.packages / "_libx.py").write_text(FINDER.format(file=str(self.file)))
            hook = "import _libx\n"
        (self.packages / "editable.pth").write_text(hook)

    def run(self, *arguments: str, inside: str = ".", **variables: str) -> tuple[int, str]:
        """Run a module there; return its status, and all that it said on one line."""
        environment = plain_environment(TMPDIR=str(self.scratch), PYTHONSAFEPATH="1", **variables)
        del environment["PYTHONPATH"]
        done = subprocess.run(
            [self.python, "-m", *arguments], cwd=self.folder / inside, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert left_behind(self.folder) == []
        return done.returncode, " ".join(done.stdout.split())

    def build(self, folder: str) -> str:
        """Return a command that builds a module as a compiler would, into a folder."""
        (self.folder / ".gitignore").write_text(".hwqueue\n__pycache__\n*.so\n")
        return f"printf x > {folder}/built.so"


@pytest.fixture
def monorepo(tmp_path: Path) -> Monorepo:
    return Monorepo(tmp_path / "project")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "inside"), [("path", "."), ("finder", "."), ("path", "tests")])
def test_a_slower_package_is_convicted_however_it_is_installed(
    monorepo: Monorepo, kind: str, inside: str
) -> None:
    monorepo.install(kind)
    test = os.path.relpath(monorepo.folder / "tests" / "test_kernel.py", monorepo.folder / inside)
    status, said = monorepo.run(
        "pytest_hwqueue", "ab", "HEAD~1", ".", *QUICK, "--", test, inside=inside
    )
    assert (status, "1 regression" in said) == (1, True), said


@pytest.mark.slow
def test_a_module_built_in_the_working_folder_alone_is_refused_until_setup_builds_it(
    monorepo: Monorepo,
) -> None:
    monorepo.install("path")
    text = (
        "import importlib.util\n{}if importlib.util.find_spec('libx.built') is None:\n    NS *= 3\n"
    )
    build = monorepo.build("packages/x/src/libx")
    for ns in (FAST, SLOW):
        monorepo.file.write_text(text.format(ns))
        commit(monorepo.folder, ns)
    subprocess.run(build, shell=True, check=True, cwd=monorepo.folder)
    against = ("HEAD~1", ".", *QUICK, "--on", "incomparable:warn")
    status, said = monorepo.run("pytest_hwqueue", "ab", *against, "--", "tests/test_kernel.py")
    assert status == 2, said
    assert "1 incomparable" in said
    assert "side A ran without libx.built" in said
    assert "--setup 'pip install ./packages/x'" in said
    options = ("-p", plugin_name(), "-p", "no:cacheprovider", *HWQ_SHORT, "--hwq-against=HEAD~1",
               "tests/test_kernel.py")  # fmt: skip
    status, said = monorepo.run("pytest", *options, "--hwq-on=incomparable:warn")
    assert (status, "side A ran without libx.built" in said) == (1, True), said
    status, said = monorepo.run("pytest", *options, f"--hwq-setup={build}")
    assert (status, "is a regression against HEAD~1" in said) == (1, True), said
    # So does a bisection, in which no commit could be judged.
    bisect = ("bisect", "tests/test_kernel.py::test_kernel", "HEAD~1", "HEAD")
    status, said = monorepo.run("pytest_hwqueue", *bisect, *QUICK)
    assert (status, "ran without libx.built" in said) == (2, True), said


@pytest.mark.slow
def test_a_package_in_a_submodule_is_fetched_by_setup_also_from_a_hook(
    monorepo: Monorepo, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    allow = ("-c", "protocol.file.allow=always")
    for name, text in (("fast", FAST), ("slow", SLOW)):
        commit(library, name, libx=text)
    project = monorepo.folder
    git(project, *allow, "submodule", "add", "-q", str(library), "third/libx")
    for ref in ("main~1", "main"):
        git(project / "third" / "libx", "checkout", "-q", ref)
        commit(project, f"library {ref}")
    (monorepo.packages / "editable.pth").write_text(f"{project / 'third' / 'libx'}\n")
    hook = project / ".git" / "hooks" / "pre-push"
    setup = "git -c protocol.file.allow=always submodule update --init -q"
    words = ("-m", "pytest_hwqueue", "ab", "HEAD~1", "HEAD", *QUICK, "--setup", f"'{setup}'",
             "--", "tests/test_kernel.py")  # fmt: skip
    hook.write_text(f"#!/bin/sh\nexport GIT_INDEX_FILE=$PWD/.git/index GIT_DIR=$PWD/.git\n"
                    f"exec {monorepo.python} {' '.join(words)} > said 2>&1\n")  # fmt: skip
    hook.chmod(0o755)
    environment = plain_environment(TMPDIR=str(monorepo.scratch), PYTHONSAFEPATH="1")
    del environment["PYTHONPATH"]
    git(tmp_path, "init", "-q", "--bare", "remote")
    done = subprocess.run(
        ["git", "push", "-q", str(tmp_path / "remote"), "main"], cwd=project, env=environment,
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    said = (project / "said").read_text()
    (project / "said").unlink()
    assert done.returncode != 0, said
    assert "1 regression" in said, said
    (session,) = (project / ".hwqueue").glob("ab-*")
    runs = json.loads((session / "ab.json").read_text())["runs"]
    assert {run["other_code"] for run in runs} == {""}
