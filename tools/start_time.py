"""How long starting takes, as ratios to `import torch`, from one interleaved run.

    python tools/start_time.py [--repeats N] [--package FOLDER ...] [--which SCENARIO]

Measures, in turn and ``--repeats`` times, for each checkout (by default that of this file): the
smallest `hwq run`; the same with further runs, each in a fresh process; a session that measures
nothing, with the plugin installed and with `-p no:hwqueue`, in CPU and wall time; and, with
``--which``, `hwq which` on the CPU, per measured case and over its window. Prints medians.
Processes may write bytecode, as installed ones have it, and each command has run once before it
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_RUN = (
    "run", "large_gemm_only", "--device", "cpu", "--streams", "1", "--iterations", "5",
)  # fmt: skip
_FURTHER_RUNS = 5
_STARTS = 25
_WINDOW_S = 2.0


class Measured:
    """Seconds of each thing that was measured, by its name and the checkout."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, label: str, seconds: float) -> None:
        """Keep one more measurement."""
        self.seconds.setdefault((name, label), []).append(seconds)

    def median(self, name: str, label: str) -> float:
        """Return the median, in seconds."""
        return statistics.median(self.seconds[name, label])


def environment(package: Path, folder: Path) -> dict[str, str]:
    """Return an environment in which a checkout is imported, and no other session is waited for."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith(("HWQ_", "PYTEST_"))
    }
    return {**kept, "PYTHONPATH": str(package), "TMPDIR": str(folder)}


def run(arguments: list[str], package: Path, folder: Path, **variables: str) -> tuple[float, float]:
    """Run Python; return wall and CPU time of all its processes, in seconds.

    Raises:
        SystemExit: with what it wrote, if it failed.

    """
    output = folder / "output.txt"
    before, begin = _children_cpu_s(), time.perf_counter()
    with output.open("wb") as file:
        status = subprocess.run(
            [sys.executable, *arguments], cwd=folder, stdout=file, stderr=subprocess.STDOUT,
            env={**environment(package, folder), **variables}, check=False,
        ).returncode  # fmt: skip
    wall, cpu = time.perf_counter() - begin, _children_cpu_s() - before
    if status != 0:
        raise SystemExit(f"{arguments} in {package}:\n{output.read_text(errors='replace')}")
    return wall, cpu


def _children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended, in seconds, to the µs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(packages: dict[str, Path], repeats: int, which: Path | None, folder: Path) -> Measured:
    """Measure everything in turn, ``repeats`` times after one that does not count."""
    measured = Measured()
    hwq = ["-m", "pytest_hwqueue"]
    for repeat in range(repeats + 1 if repeats else 0):
        found = Measured()
        for label, package in packages.items():
            found.add("import torch", "", run(["-c", "import torch"], package, folder)[0])
            one, _ = run([*hwq, *_RUN], package, folder)
            several, _ = run([*hwq, *_RUN, "--runs", str(1 + _FURTHER_RUNS)], package, folder)
            found.add("hwq run", label, one)
            found.add("further run", label, (several - one) / _FURTHER_RUNS)
            if which is not None:
                found.add("which", label, _which(which, package, folder))
        if repeat:
            for (name, label), seconds in found.seconds.items():
                for each in seconds:
                    measured.add(name, label, each)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "test_nothing.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
    _install(folder)
    # Other plugins' time would hide the share of this one.
    others = {point.name for point in metadata.entry_points(group="pytest11")} - {"hwqueue"}
    blocked = [f"-pno:{name}" for name in sorted(others)]
    start = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *blocked, str(empty)]
    for repeat in range(_STARTS + 1):
        for label, package in packages.items():
            path = {"PYTHONPATH": os.pathsep.join((str(package), str(folder)))}
            for name, more in (("with it", []), ("without", ["-p", "no:hwqueue"])):
                wall, cpu = run([*start, *more], package, folder, **path)
                if repeat:
                    measured.add(f"{name}, wall", label, wall)
                    measured.add(f"{name}, CPU", label, cpu)
    return measured


def _install(folder: Path) -> None:
    """Have pytest find the plugin by its entry point, wherever the package is."""
    information = folder / "pytest_hwqueue_started-0.dist-info"
    information.mkdir()
    for name, text in (
        ("METADATA", "Metadata-Version: 2.1\nName: pytest-hwqueue-started\nVersion: 0\n"),
        ("entry_points.txt", "[pytest11]\nhwqueue = pytest_hwqueue.plugin\n"),
        # pytest rewrites the asserts of all modules of a plugin's package.
        ("RECORD", "pytest_hwqueue/__init__.py,,\n"),
    ):
        (information / name).write_text(text, encoding="utf-8")


def _which(scenario: Path, package: Path, folder: Path) -> float:
    """Return the seconds that `hwq which` takes over the window, per case that was measured."""
    arguments = [
        "-m", "pytest_hwqueue", "which", str(scenario), "--device", "cpu", "--rounds", "1",
        "--duration", f"{_WINDOW_S}s", "--json", "which.json", "--dir", "which",
    ]  # fmt: skip
    records = set(folder.glob("which/*/*.json"))
    wall, _ = run(arguments, package, folder)
    made = set(folder.glob("which/*/*.json")) - records
    texts = [path.read_text(encoding="utf-8") for path in made if path.name != "which.json"]
    measured: int = sum(json.loads(text)["status"] != "skipped" for text in texts)
    return wall / measured - _WINDOW_S


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="of each command; 5 unless given; 0 for the plugin alone",
    )
    parser.add_argument("--package", type=Path, action="append", metavar="FOLDER",
                        help="a checkout to measure; repeatable")  # fmt: skip
    parser.add_argument("--which", type=Path, metavar="SCENARIO", help="a scenario for `hwq which`")
    given = parser.parse_args()
    folders = [each.resolve() for each in given.package or [_HERE]]
    packages = {str(folder): folder for folder in folders}
    which = None if given.which is None else given.which.resolve()
    with tempfile.TemporaryDirectory(prefix="hwq-start-") as folder:
        measured = measure(packages, given.repeats, which, Path(folder))
    if given.repeats:
        torch = measured.median("import torch", "")
        print(f"import torch: {torch:.2f} s (median of {given.repeats})")
    for label in packages:
        print(label)
        for name in ("hwq run", "further run") if given.repeats else ():
            seconds = measured.median(name, label)
            print(f"  {name}: {seconds:.2f} s, {seconds / torch:.2f} x import torch")
        if which is not None:
            print(f"  which: {measured.median('which', label):.2f} s a case over its window")
        for time_of in ("CPU", "wall"):
            without = measured.median(f"without, {time_of}", label)
            more = measured.median(f"with it, {time_of}", label) - without
            print(
                f"  plugin: {more * 1e3:.1f} ms of {time_of} time over {without * 1e3:.0f} ms with "
                f"-p no:hwqueue (medians of {_STARTS} starts)"
            )


if __name__ == "__main__":
    main()
