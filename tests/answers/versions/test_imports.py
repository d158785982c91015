"""Which code a side's processes run, for every layout and every kind of install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_hwqueue.answers.versions.imports import (
    REPORTS,
    OtherCode,
    SideImports,
    Tree,
    read_reports,
    setup_for,
)
from pytest_hwqueue.answers.versions.variants import SideVariant, side_environment

# Of each layout: the folder that holds the package, and the one where the comparison is started.
LAYOUTS = {
    "flat": (".", "."),
    "src": ("src", "."),
    "packages/x/src": ("packages/x/src", "."),
    "python": ("python", "."),
    "lib": ("lib", "."),
    "started in tests": ("packages/x/src", "tests"),
}
INSTALLS = ("path", "finder", "PYTHONPATH")
FINDER = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "libx":
            return spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, Finder)
"""


class Trees(NamedTuple):
    """The working folder and a side's own, and a Python into which the former is installed."""

    work: Path
    side: Path
    packages: Path
    python: str
    reports: Path

    def write(self, file: str, work: str | None, side: str | None) -> None:
        """Write a file of both, or of one."""
        for tree, text in ((self.work, work), (self.side, side)):
            if text is not None:
                path = tree / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def tree(self, **more: Any) -> Tree:
        """Return the side's tree; the working folder is the one not to take code from."""
        return Tree(str(self.side), str(self.work), (str(self.work),))._replace(**more)

    def run(
        self, script: str, folder: str = ".", tree: Tree | None = None, **variables: str
    ) -> tuple[str, list[OtherCode]]:
        """Run a script as a process of the side; return what it prints, and what it reports."""
        environment = side_environment(
            SideVariant(), (self.side if tree is None else Path(tree.own)) / folder, None,
            tree or self.tree(),
        )  # fmt: skip
        for each in self.reports.iterdir():
            each.unlink()
        done = subprocess.run(
            [self.python, "-c", script], cwd=self.side / folder, check=False, text=True,
            env={**environment, **variables, REPORTS: str(self.reports)}, capture_output=True,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.strip(), read_reports(self.reports).other


@pytest.fixture(scope="module", name="venv")
def _venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture(name="trees")
def _trees(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trees:
    (packages,) = venv.glob("lib/python*/site-packages")
    for each in packages.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    for name in ("work", "side", "reports"):
        (tmp_path / name).mkdir()
        for inside in ("tests",) if name != "reports" else ():
            (tmp_path / name / inside).mkdir()
    # Not those of this process, which may be a comparison's.
    for name in ("PYTHONPATH", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    python = str(venv / "bin" / "python")
    return Trees(tmp_path / "work", tmp_path / "side", packages, python, tmp_path / "reports")


def install(trees: Trees, kind: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Python import the working folder's code as an editable install or a job does."""
    if kind == "path":
        with (trees.packages / "editable.pth").open("a") as file:
            file.write(f"{trees.work / root}\n")
    elif kind == "finder":
        code = FINDER.format(file=str(trees.work / root / "libx" / "__init__.py"))
        (trees.packages / "_libx_finder.py").write_text(code)
        (trees.packages / "editable.pth").write_text("import _libx_finder\n")
    else:
        monkeypatch.setenv("PYTHONPATH", str(trees.work / root))


@pytest.mark.parametrize("kind", INSTALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_side_imports_its_own_code(
    trees: Trees, layout: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = LAYOUTS[layout]
    trees.write(f"{root}/libx/__init__.py", "from libx.inner import V", "from libx.inner import V")
    trees.write(f"{root}/libx/inner.py", "V = 'work'", "V = 'side'")
    install(trees, kind, root, monkeypatch)
    assert trees.run("import libx; print(libx.V)", folder) == ("side", [])
    # The working folder is the other side, and its own.
    both = Tree(str(trees.work), str(trees.work), (str(trees.side),))
    assert trees.run("import libx; print(libx.V)", folder, both) == ("work", [])


@pytest.mark.parametrize("how", ["insert", "addsitedir", "path"])
def test_what_leads_to_other_code_only_later_is_moved_too(trees: Trees, how: str) -> None:
    trees.write("packages/x/src/libx/__init__.py", "V = 'work'", "V = 'side'")
    root = trees.work / "packages" / "x" / "src"
    (trees.packages / "late").mkdir()
    (trees.packages / "late" / "late.pth").write_text(f"{root}\n")
    before = {
        "insert": FINDER.format(file=str(root / "libx" / "__init__.py")),
        "addsitedir": f"import site; site.addsitedir({str(trees.packages / 'late')!r})",
        "path": f"import sys; sys.path.insert(0, {str(root)!r})",
    }
    script = f"{before[how]}\nimport libx; print(libx.V)"
    assert trees.run(script) == ("side", [])
    # Even where nobody has named the tree, which may be another clone.
    unknown = Tree(str(trees.side), str(trees.side))
    assert trees.run(script, tree=unknown) == ("side", [])


def test_a_namespace_package_has_its_parts_from_the_side(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("one", "two"):
        root = f"packages/{part}/src"
        trees.write(f"{root}/ns/{part}.py", "V = 'work'", "V = 'side'")
        install(trees, "path", root, monkeypatch)
    (trees.packages / "ns").mkdir()
    (trees.packages / "ns" / "installed.py").touch()
    script = "import ns.one, ns.two, ns.installed; print(ns.one.V, ns.two.V)"
    assert trees.run(script) == ("side side", [])
    roots = [str(trees.work / f"packages/{part}/src") for part in ("one", "two")]
    (trees.packages / "editable.pth").unlink()
    late = f"import sys; sys.path += {roots!r}; import importlib; importlib.invalidate_caches()"
    assert trees.run(f"{late}\n{script}") == ("side side", [])


def test_code_that_only_the_working_folder_has_is_reported(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.write("build/libx/__init__.py", "V = 'work'", None)
    install(trees, "path", "build", monkeypatch)
    file = str(trees.work / "build" / "libx" / "__init__.py")
    expected = [OtherCode("libx", file)]
    assert trees.run("import libx; print(libx.V)") == ("work", expected)
    # However it gets there.
    script = (
        "import sys; from importlib.util import *\n"
        f"spec = spec_from_file_location('libx', {file!r})\n"
        "sys.modules['libx'] = module_from_spec(spec)\n"
    )
    assert trees.run(script) == ("", expected)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_library_of_the_working_folder_is_reported_and_its_data_is_not(trees: Trees) -> None:
    (trees.work / "kernels").mkdir()
    library, data = (trees.work / "kernels" / name for name in ("kernels.so", "weights"))
    shutil.copy(sys.modules["_ctypes"].__file__ or "", library)
    data.write_bytes(b"x" * 8192)
    script = (
        f"import ctypes, mmap; kept = ctypes.CDLL({str(library)!r})\n"
        f"file = open({str(data)!r}, 'rb')\n"
        "data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    assert trees.run(script) == ("", [OtherCode("kernels.so", str(library))])


def test_a_compiled_module_that_the_side_does_without_is_reported(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "try:\n    import libx.fast\nexcept ImportError:\n    V = 'slow'\nelse:\n    V = 'fast'\n"
    )
    trees.write("src/libx/__init__.py", text, text)
    install(trees, "path", "src", monkeypatch)
    script = "import libx; print(libx.V)"
    assert trees.run(script) == ("slow", [])
    built = trees.work / "src" / "libx" / "fast.so"
    shutil.copy(sys.modules["_ctypes"].__file__ or "", built)
    assert trees.run(script) == ("slow", [OtherCode("libx.fast", str(built), lacking=True)])
    # Of the working folder itself it is no news that another one has none.
    both = Tree(str(trees.work), str(trees.work), (str(trees.side),))
    shutil.move(built, trees.side / "src" / "libx" / "fast.so")
    assert trees.run(script, tree=both) == ("slow", [])


@pytest.mark.parametrize(
    ("environment", "mark"),
    [(".venv", "pyvenv.cfg"), (".tox/py", "pyvenv.cfg"), (".pixi/envs/x", "conda-meta"), ("x", "")],
)
def test_an_environment_in_the_working_folder_is_no_code_of_it(
    trees: Trees, environment: str, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{environment}/lib/{'site-packages' if not mark else 'more'}"
    trees.write(f"{root}/libx/__init__.py", "V = 'installed'", None)
    if mark:
        (trees.work / environment / mark).touch()
    install(trees, "path", root, monkeypatch)
    assert trees.run("import libx; print(libx.V)") == ("installed", [])


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_in_an_environment_is_what_it_leads_to(trees: Trees, what: str) -> None:
    file = "packages/x/src/libx/__init__.py" if what == "folder" else "packages/x/src/libx.py"
    trees.write(file, "V = 'work'", "V = 'side'")
    linked = (trees.work / file).parent if what == "folder" else trees.work / file
    (trees.packages / linked.name).symlink_to(linked)
    script = "import libx; print(libx.V)"
    assert trees.run(script) == ("side", [])
    (trees.side / file).unlink()
    assert trees.run(script)[1] == [OtherCode("libx", str(trees.packages / linked.name) + (
        "/__init__.py" if what == "folder" else ""))]  # fmt: skip


def test_what_was_installed_from_the_working_folder_is_code_of_it(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trees.packages / "libx").mkdir()
    module = trees.packages / "libx" / "__init__.py"
    module.write_text("V = 'copy'")
    info = trees.packages / "libx-1.dist-info"
    info.mkdir()
    recorded = ["libx/__init__.py,sha256=x,1", "_libx_finder.py,,", "editable.pth,,"]
    (info / "RECORD").write_text("\n".join(recorded))
    script = "import libx; print(libx.V)"
    assert trees.run(script) == ("copy", [])
    url = {"url": (trees.work / "packages" / "x").as_uri()}
    (info / "direct_url.json").write_text(json.dumps(url))
    assert trees.run(script) == ("copy", [OtherCode("libx", str(module))])
    # From its own folder it is the side's, and a finder of an editable install is no code.
    (info / "direct_url.json").write_text(json.dumps({"url": trees.side.as_uri()}))
    assert trees.run(script) == ("copy", [])
    (info / "direct_url.json").write_text(json.dumps(url))
    trees.write("lib/libx/__init__.py", "V = 'work'", "V = 'side'")
    install(trees, "finder", "lib", monkeypatch)
    assert trees.run(script) == ("side", [])


def test_what_setup_has_installed_comes_before_the_sides_sources(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.write("packages/x/src/libx/__init__.py", "V = 'work'", "V = 'side'")
    install(trees, "finder", "packages/x/src", monkeypatch)
    set_up = trees.tree(set_up=True)
    script = "import libx; print(libx.V)"
    assert trees.run(script, tree=set_up) == ("side", [])
    (trees.packages / "libx").mkdir()
    (trees.packages / "libx" / "__init__.py").write_text("V = 'built'")
    assert trees.run(script, tree=set_up) == ("built", [])


def test_what_a_run_generates_is_code_of_the_run(trees: Trees) -> None:
    for folder in ("results", "cache"):
        trees.write(f"{folder}/{folder}_made/__init__.py", "", None)
    script = textwrap.dedent(f"""
        import sys
        sys.path += [{str(trees.work / "results")!r}, {str(trees.work / "cache")!r}]
        import results_made, cache_made
    """)
    generated = trees.tree(generated=str(trees.work / "results"))
    _, found = trees.run(script, tree=generated)
    assert [each.what for each in found] == ["cache_made"]
    _, found = trees.run(script, tree=generated, TRITON_CACHE_DIR=str(trees.work / "cache"))
    assert found == []


def test_worktrees_may_lie_in_each_other(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner = SideImports(Tree(str(tmp_path / "inner"), str(tmp_path)))
    outer = SideImports(Tree(str(tmp_path), str(tmp_path), (str(tmp_path / "inner"),)))
    for imports, kinds in ((inner, ["own", "other"]), (outer, ["other", "own"])):
        places = [imports._place(str(each)) for each in (tmp_path / "inner", tmp_path / "x")]
        assert [place.kind for place in places] == kinds


def test_a_sitecustomize_of_the_user_runs_too_and_stays_the_only_one(trees: Trees) -> None:
    (trees.packages / "sitecustomize.py").write_text("MINE = True")
    script = "import sys, sitecustomize; print(sitecustomize.MINE, *sys.path, sep='\\n')"
    printed, _ = trees.run(script)
    assert printed.startswith("True\n")
    assert "startup" not in printed


def test_the_repository_of_this_package_is_compared_like_any_other(trees: Trees) -> None:
    # What runs first is then the working folder's, and none of the code that is compared.
    package = Path(sys.modules[SideImports.__module__].__file__ or "").parents[2]
    place = Path("answers", "versions")
    shutil.copytree(package / place, trees.side / "pytest_hwqueue" / place)
    tree = trees.tree(working=str(package.parent), others=(str(package.parent),))
    assert trees.run("import sitecustomize, colorsys", tree=tree) == ("", [])


def test_a_side_may_compare_by_itself(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(sys.modules[SideImports.__module__].__file__ or "").parent
    shutil.copytree(package, trees.packages / "outer")
    monkeypatch.setenv("PYTHONPATH", str(trees.packages / "outer" / "startup"))
    trees.write("src/libx.py", "", "")
    script = "import hwq_side_imports, libx; print(len(hwq_side_imports.INSTALLED))"
    assert trees.run(script) == ("1", [])


def test_each_process_reports_once_it_has_imported_pytest(trees: Trees) -> None:
    (trees.packages / "pytest.py").touch()
    trees.run("pass")
    assert read_reports(trees.reports) == ([], [], False)
    # A process that was forked reports for itself, and before it is killed if it is asked to.
    script = (
        "import os, signal, pytest\n"
        "if os.fork() == 0:\n"
        "    import hwq_side_imports\n"
        "    hwq_side_imports.report_now()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.wait()\n"
    )
    trees.run(script)
    assert read_reports(trees.reports) == ([], [], True)
    assert len(os.listdir(trees.reports)) == 2


def test_a_source_that_the_working_folder_alone_has_explains_why_a_side_cannot_start(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.write("lib/libx/__init__.py", "V = 'work'", None)
    (trees.side / "lib").mkdir()
    install(trees, "path", "lib", monkeypatch)
    script = "try:\n    import libx\nexcept ImportError:\n    print('none')"
    # Commits differ in what they have: that a side does without is no other code.
    assert trees.run(script) == ("none", [])
    file = str(trees.work / "lib" / "libx" / "__init__.py")
    assert read_reports(trees.reports).lacking == [OtherCode("libx", file, lacking=True)]


def test_what_gives_a_side_its_own_of_a_file(tmp_path: Path) -> None:
    inner = tmp_path / "packages" / "x"
    (inner / "src").mkdir(parents=True)
    file = str(inner / "src" / "x.py")
    assert setup_for(file, str(tmp_path), ".") == "pip install ."
    assert setup_for(file, str(tmp_path), "tests") == "pip install .."
    (inner / "pyproject.toml").touch()
    assert setup_for(file, str(tmp_path), ".") == "pip install ./packages/x"
    assert setup_for(file, str(tmp_path), "tests") == "pip install ../packages/x"
    # What is not in the tree belongs to the whole of it.
    assert setup_for(sys.executable, str(tmp_path), ".") == "pip install ."
    (inner / ".git").touch()
    assert setup_for(file, str(tmp_path), ".") == "git submodule update --init"
