"""The environment of a side's processes: its code comes first, or its virtual environment."""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

from pytest_hwqueue import suite
from pytest_hwqueue.interleaved.variants import SideVariant
from pytest_hwqueue.processes.groups import last_lines, run


class SideError(RuntimeError):
    """A side cannot be measured; the text says which, why, and what to do."""


def side_environment(variant: SideVariant, folder: Path, venv: Path | None) -> dict[str, str]:
    """Return the environment of a side's processes.

    Args:
        variant: the side's; its variables are added.
        folder: the side's; its code comes first, unless ``venv`` is given.
        venv: a virtual environment with the side's code installed.

    """
    environment = suite.pytest_environment()
    # A summary for each of the runs would bury that of the comparison.
    environment.pop("GITHUB_STEP_SUMMARY", None)
    environment |= {k: v for k, v in variant.environment.items() if k != "PYTHONPATH"}
    paths = [variant.environment.get("PYTHONPATH", "")]
    if venv is None:
        source = folder / "src"
        paths = [
            str(folder), str(source) if source.is_dir() else "", *paths,
            environment.get("PYTHONPATH", ""),
        ]  # fmt: skip
    else:
        environment["VIRTUAL_ENV"] = str(venv)
        environment["PATH"] = os.pathsep.join([str(venv / "bin"), environment.get("PATH", "")])
        environment.pop("PYTHONHOME", None)
    # In a virtual environment the caller's own paths come last (see set_up), not first.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def set_up(name: str, folder: Path, venv: Path, variant: SideVariant, setup: str, log: Path) -> str:
    """Create a side's virtual environment, run a command in it, and return its python.

    Args:
        name: of the side.
        folder: in which the command runs.
        venv: to be made; in it, the packages of the running interpreter are there too.
        variant: the side's.
        setup: shell command.
        log: receives the output.

    Raises:
        SideError: if the environment cannot be made, or the command fails.

    """
    made = run(
        [sys.executable, "-m", "venv", "--system-site-packages", str(venv)], folder,
        suite.pytest_environment(), log,
    )  # fmt: skip
    if made != 0:
        raise SideError(
            f"{name}: no virtual environment could be made (python -m venv ended with "
            f"status {made}):\n{last_lines(log)}"
        )
    # --system-site-packages leads to the packages of the base interpreter only. Those of the
    # running one, which may be a virtual environment itself, follow behind the side's own.
    behind = [f"import site; site.addsitedir({path!r})" for path in _site_packages()]
    behind += [str(Path(path).resolve())
               for path in suite.pytest_environment().get("PYTHONPATH", "").split(os.pathsep)
               if path]  # fmt: skip
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "hwq_behind.pth").write_text("\n".join(behind) + "\n", encoding="utf-8")
    status = run(["/bin/sh", "-c", setup], folder, side_environment(variant, folder, venv), log)
    if status != 0:
        raise SideError(
            f"{name}: --setup ended with status {status} in {folder}:\n{last_lines(log)}\n"
            f"all of it: {log}"
        )
    return str(venv / "bin" / "python")


def _site_packages() -> list[str]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for path in (*site.getsitepackages(), *user) if Path(path).is_dir()]
