"""The part of the plugin that exists only in `hwq sweep`: resumes sweeps and plots scaling.

Cells measured by an earlier sweep are skipped, and their records join this session's, so that every
table, plot and file has all cells; each record taken over names the session that measured it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Generator, Mapping
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue import __version__
from pytest_hwqueue.devices.fingerprint import CUDA_QUEUE_SETTINGS, HIP_QUEUE_SETTINGS
from pytest_hwqueue.plugin.session import attach_records
from pytest_hwqueue.plugin.state import REFUSED, SETTINGS, WORKER_KEY
from pytest_hwqueue.ranks.launched import launched_rank
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.suite import suite_path

if TYPE_CHECKING:
    from pytest_hwqueue.plugin.session import MeasuringSession
    from pytest_hwqueue.sweeps.earlier import EarlierSweep

_OPTION = "--hwq-resume"
_MEASURING = "hwqueue-measuring"
# Where records are, what is written next to them, and how long a cell may take change no figure.
_FREE = ("dir", "json", "commit", "markdown", "report", "timeout", "lease_timeout", "budget")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES")  # fmt: skip
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option that `hwq sweep --resume` sets."""
    parser.getgroup("hwqueue").addoption(
        _OPTION, action="store_true", help="continue the last sweep of the same settings"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register in the session itself, not in its worker processes."""
    if WORKER_KEY not in getattr(config, "workerinput", {}):
        resume = config.getoption("hwq_resume")
        if resume:
            _refuse_resuming(config, config.stash[SETTINGS])
        config.pluginmanager.register(Sweeping(config, resume), "hwqueue-sweeping")


class Sweeping:
    """One session of a sweep."""

    def __init__(self, config: pytest.Config, resume: bool) -> None:
        self._config = config
        self._resume = resume
        self._earlier: EarlierSweep | None = None
        # Paths of the records taken over, by the tests that have measured them.
        self._taken: dict[str, list[Path]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip cells that the earlier sweep has measured.

        Raises:
            pytest.UsageError: if there is nothing to resume, with the reason.

        """
        if not self._resume:
            return
        from pytest_hwqueue.errors import RecordError
        from pytest_hwqueue.plugin.session import provenance
        from pytest_hwqueue.sweeps.earlier import NothingToResume, last_sweep

        settings = self._config.stash[SETTINGS]
        folder = self._config.invocation_params.dir / settings.dir
        commit = provenance(self._config).git_commit
        try:
            earlier = last_sweep(folder, depends_on(settings, commit, os.environ), commit)
        except (NothingToResume, RecordError) as error:
            raise _nothing_runs(items, str(error)) from None
        possible = [item for item in items if REFUSED not in item.stash]
        done = [item for item in possible if item.nodeid in earlier.measured]
        if len(done) == len(possible):
            raise _nothing_runs(
                items,
                f"nothing is left to measure: session {earlier.session} of the same settings has "
                f"all {len(done)} cells; leave out {_OPTION} to measure them again",
            )
        for item in done:
            reason = f"measured in session {earlier.session}"
            item.stash[REFUSED] = reason
            item.add_marker(pytest.mark.skip(reason=reason))
            self._taken[item.nodeid] = []
        self._earlier = earlier

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Take over the earlier sweep's records before anything is measured.

        The next `--resume` then needs only this session, whenever it ends.
        """
        session = self._session()
        if session is not None and not self._config.option.collectonly:
            from pytest_hwqueue.errors import RecordError
            from pytest_hwqueue.plugin.session import provenance
            from pytest_hwqueue.sweeps.earlier import begin_sweep, take_over

            try:
                if self._earlier is not None:
                    session.problems += self._earlier.unreadable
                    for nodeid in self._taken:
                        records = self._earlier.measured[nodeid]
                        self._taken[nodeid] = take_over(
                            session.folder, records, self._earlier.session
                        )
                commit = provenance(self._config).git_commit
                dependencies = depends_on(session.settings, commit, os.environ)
                begin_sweep(session.folder, session.started, dependencies)
            except RecordError as error:
                raise pytest.UsageError(f"--hwq-dir: {error}") from None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the earlier sweep's records to the report of a skipped test."""
        report = yield
        if call.when == "setup":
            paths = self._taken.get(item.nodeid, [])
            attach_records(report, [{"path": str(path)} for path in paths])
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Write the scaling tables and plots next to the records, and print where they are."""
        session = self._session()
        if session is None or not session.records:
            return
        from pytest_hwqueue.errors import RecordError
        from pytest_hwqueue.reports.scaling_files import write_scaling
        from pytest_hwqueue.sweeps.earlier import FOLDER

        try:
            lines = write_scaling(session.folder / FOLDER, session.records)
        except RecordError as error:
            lines = [str(error)]
        for line in lines:
            terminalreporter.write_line(line)
        if exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
            terminalreporter.write_line(
                "not every cell was measured: the same command with --resume measures the others"
            )

    def _session(self) -> MeasuringSession | None:
        measuring = self._config.pluginmanager.get_plugin(_MEASURING)
        return None if measuring is None else measuring.session


def depends_on(
    settings: Settings, commit: str | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return what a sweep's figures depend on, as far as known before a device is opened.

    Args:
        settings: of the session; all count except those that change no figure.
        commit: checked out in the suite's folder.
        environment: this process's variables.

    """
    known = {
        f"--hwq-{name.replace('_', '-')}": _text(value)
        for name, value in settings.as_dict().items()
        if name not in _FREE
    }
    known |= {
        "pytest-hwqueue": __version__,
        "commit": commit or "",
        "files of plugin and suite": _code(),
        "torch": metadata.version("torch"),
        "Python": platform.python_version(),
        "host": platform.node(),
        "kernel": platform.release(),
    }
    for name, file in (("NVIDIA driver", _NVIDIA_DRIVER), ("AMD driver", _AMD_DRIVER)):
        if file.exists():
            known[name] = file.read_text(encoding="utf-8").strip()
    for name in (*CUDA_QUEUE_SETTINGS, *HIP_QUEUE_SETTINGS, *_DEVICES):
        if name in environment:
            known[name] = environment[name]
    return known


def _nothing_runs(items: list[pytest.Item], reason: str) -> pytest.UsageError:
    """Return the error that ends a session; drop its tests, so that it leaves no folder."""
    items.clear()
    return pytest.UsageError(f"{_OPTION}: {reason}")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return "" if value is None else str(value)


def _code() -> str:
    """Digest the plugin's and the suite's files, since a commit omits uncommitted changes."""
    digest = sha256()
    for folder in (Path(__file__).parents[1], suite_path()):
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\0".encode())
            digest.update(sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _refuse_resuming(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be continued in another session."""
    reason = None
    if settings.save or settings.compare or settings.against or (settings.runs or 1) > 1:
        reason = (
            "the runs of a cell are interleaved in one session: leave out --hwq-runs, --hwq-save, "
            "--hwq-compare, --hwq-against"
        )
    elif config.getoption("dist", "no") != "no":
        reason = "one process must see all cells: leave out xdist's -n"
    elif launched_rank(os.environ) is not None:
        reason = "the ranks of torchrun could skip different cells: let the suite start its own"
    if reason is not None:
        raise pytest.UsageError(f"{_OPTION}: {reason}")
