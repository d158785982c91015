"""The hwq command: its options are the plugin's, its exit status pytest's, its runs apart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue import suite
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.cli.measuring import plugin_arguments
from pytest_hwqueue.doctor import limits
from pytest_hwqueue.settings.options import OPTIONS, Option
from pytest_hwqueue.settings.values import TOPICS
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class

ROOT = Path(suite.__file__).parents[1]
SHORT = ("--device", "cpu", "--streams", "1", "--iterations", "20", "--max-time", "1")
STANDS_AS_ARGUMENT = {
    "run": {"workload"},
    "sweep": {"workload"},
    "trace": {"workload", "profile", "causes"},
}
ROWS = [
    pytest.param(command, option, id=f"{command}-{option.name}")
    for command, arguments in STANDS_AS_ARGUMENT.items()
    for option in OPTIONS
    if option.name not in arguments
]


class Launched:
    """What would have been started, and the status it pretends to end with."""

    def __init__(self) -> None:
        self.command: list[str] = []
        self.environment: dict[str, str] = {}
        self.status = 0

    def __call__(self, command: list[str], environment: dict[str, str]) -> int:
        self.command, self.environment = command, environment
        return self.status

    @property
    def plugin_options(self) -> list[str]:
        return [argument for argument in self.command if argument.startswith("--hwq-")]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    found = Launched()
    monkeypatch.setattr(suite, "run_pytest", found)
    return found


@pytest.fixture
def foreign_project(tmp_path: Path) -> Path:
    """A folder whose own configuration, conftest.py and modules would break any session."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --no-such-option\nfilterwarnings = error\ntestpaths = nowhere\n"
    )
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a foreign conftest.py')")
    (tmp_path / "queue.py").write_text("raise RuntimeError('a foreign module')")
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="hwq", env={"COLUMNS": "200"})


def hwq(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, in a folder of his own."""
    return subprocess.run(
        [sys.executable, "-c", "from pytest_hwqueue.cli.main import main; main(prog_name='hwq')",
         *arguments],
        cwd=folder, env=user_environment(**more), capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip


def user_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HWQ_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **more}


def squeezed(text: str) -> str:
    """Without white space: where click breaks a line does not matter."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize(("command", "option"), ROWS)
def test_every_common_option_is_there_with_its_line_and_default(
    command: str, option: Option
) -> None:
    text = squeezed(invoke(command, "--help").output)
    common = {name: line for topic in TOPICS for name, line in topic.common.items()}

    assert "`hwqhelp`explainsalloptions" in text
    if option.name not in common:
        assert f"--{option.name}" not in re.split(r"[\s\[=]", text)
        return
    assert f"--{option.name}" in text
    default = {
        "sweep": {"streams": "1,2,4,8,16"}, "trace": {"iterations": "400"},
    }.get(command, {}).get(option.name, option.default)  # fmt: skip
    shown = f" [{default}]" if default and not option.flag else ""
    assert squeezed(common[option.name].replace("--hwq-", "--") + shown) in text


def test_verbose_is_handed_to_pytest(launched: Launched) -> None:
    assert invoke("run", "large_gemm_only", "--device", "cpu").exit_code == 0
    assert "-v" not in launched.command
    for arguments in (("run", "-v", "large_gemm_only"), ("run", "P0", "--verbose")):
        assert invoke(*arguments).exit_code == 0
        assert "-v" in launched.command


def test_help_needs_nothing_heavy() -> None:
    script = (
        "import sys\nfrom pytest_hwqueue.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print(sorted({'torch', 'numpy', 'rich', 'pydantic'} & set(sys.modules)))"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], env=user_environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    assert found.stdout.splitlines()[-1] == "[]"


def test_version() -> None:
    assert "0.1.0" in invoke("--version").output


@pytest.mark.parametrize("arguments", [
    ("run", "no_such_workload"),
    ("sweep", "no_such_workload"),
    ("trace", "no_such_workload"),
    ("run", "tiny_kernel_stress", "no_such_workload"),
])  # fmt: skip
def test_an_unknown_workload_is_refused_and_the_known_are_listed(
    launched: Launched, arguments: tuple[str, ...]
) -> None:
    result = invoke(*arguments)

    assert result.exit_code == 4
    assert "no_such_workload" in result.output
    assert all(name in result.output for name in WORKLOADS)
    assert launched.command == []


@pytest.mark.parametrize(("arguments", "says"), [
    (("run", "tiny_kernel_stress", "--streams", "many"), "--streams: 'many' is not valid"),
    (("run", "tiny_kernel_stress", "--param", "mm_dim"), "give NAME=VALUE"),
    (("run", "tiny_kernel_stress", "--sync-mode", "sometimes"), "choose from per_iteration"),
    (("run", "tiny_kernel_stress", "--no-such"), "No such option"),
    (("run", "P0,P7"), "is not one of 'P0', 'P1'"),
    (("run", "P0", "large_gemm_only"), "not both"),
    (("run", "P0", "--priority", "P1"), "not both"),
    (("run", "P0", "--mm-dim", "64"), "where it is named alone"),
    (("run",), "Missing argument"),
    (("no-such-command",), "No such command"),
    (("doctor", "--device", "all"), "one device at a time"),
    (("doctor", "--device", "sim:h200"), "real devices only"),
    (("doctor", "--device", "cuda:99"), "visible here"),
])  # fmt: skip
def test_wrong_usage_ends_with_pytests_status_for_it(
    launched: Launched, arguments: tuple[str, ...], says: str
) -> None:
    result = invoke(*arguments)

    assert result.exit_code == 4
    assert says in result.output
    assert launched.command == []


def test_options_become_the_plugins(launched: Launched) -> None:
    result = invoke(
        "run", "hetero_kernels", "tiny_kernel_stress", "--streams", "2,4", "--sync-mode", "none",
        "--param", "rounds=3", "--param", "mm_dim=64", "--output", "all.json", "--profile",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert launched.plugin_options == [
        "--hwq-streams=2,4", "--hwq-sync-mode=none", "--hwq-param=rounds=3",
        "--hwq-param=mm_dim=64", "--hwq-workload=hetero_kernels,tiny_kernel_stress",
        "--hwq-json=all.json", "--hwq-profile",
    ]  # fmt: skip


def test_options_not_given_are_left_to_the_plugin(launched: Launched) -> None:
    invoke("run", "tiny_kernel_stress")

    assert launched.plugin_options == ["--hwq-workload=tiny_kernel_stress"]


def test_the_command_stands_apart_from_the_folder_it_is_started_in(launched: Launched) -> None:
    invoke("run", "tiny_kernel_stress", "--", "-x", "-k", "eager")

    benchmarks = suite.suite_path()
    assert launched.command[:4] == [sys.executable, "-m", "pytest", str(benchmarks)]
    assert launched.command[-3:] == ["-x", "-k", "eager"]
    for argument in (f"--rootdir={benchmarks.parent}", f"--confcutdir={benchmarks}", os.devnull):
        assert argument in launched.command


@pytest.mark.parametrize(
    "names", [["run", "P0,P1"], ["run", "P0", "P1"], ["run-priority", "P0,P1"]]
)
def test_arguments_behind_two_dashes_are_not_names(launched: Launched, names: list[str]) -> None:
    result = invoke(*names, "--seed", "7", "--", "--collect-only")

    assert result.exit_code == 0, result.output
    assert launched.plugin_options == ["--hwq-priority=P0,P1", "--hwq-seed=7"]
    assert launched.command[-1] == "--collect-only"


def test_sweep_has_counts_of_its_own_unless_told_otherwise(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("sweep", "tiny_kernel_stress")
    assert "--hwq-streams=1,2,4,8,16" in launched.plugin_options
    invoke("sweep", "tiny_kernel_stress", "--streams", "3")
    assert "--hwq-streams=3" in launched.plugin_options
    monkeypatch.setenv("HWQ_STREAMS", "5")
    invoke("sweep", "tiny_kernel_stress")
    assert launched.plugin_options == ["--hwq-workload=tiny_kernel_stress"]


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 5])
def test_the_exit_status_is_pytests(launched: Launched, status: int) -> None:
    launched.status = status

    assert invoke("run", "tiny_kernel_stress").exit_code == status


def test_a_default_of_a_command_yields_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HWQ_SEED", raising=False)
    assert plugin_arguments({"seed": None}, {"seed": "1"}) == ["--hwq-seed=1"]
    monkeypatch.setenv("HWQ_SEED", "2")
    assert plugin_arguments({"seed": None}, {"seed": "1"}) == []
    assert plugin_arguments({"seed": "3"}, {"seed": "1"}) == ["--hwq-seed=3"]


def test_list() -> None:
    result = invoke("list")

    assert result.exit_code == 0, result.output
    for text in (*WORKLOADS, "latency_sensitive", "P0", "2–128", "kernels/s", "small, large"):
        assert text in result.output
    assert "chain_length" not in result.output


def test_list_verbose_has_parameters_by_size() -> None:
    lines = [line.split() for line in invoke("list", "--verbose").output.splitlines()]

    rows = [[cell for cell in line if cell != "│"] for line in lines if "mm_dim" in line]
    assert rows[0][:7] == ["mm_dim", "int", "≥", "1", "256", "1024", "4096"]
    assert any("alternating" in line and "random" in line for line in lines)


def test_list_verbose_has_all_that_a_workload_declares() -> None:
    output = invoke("list", "--verbose").output

    for name in WORKLOADS:
        found = workload_class(name)
        block = output[f"\n{output}".index(f"\n{name}: ") :]
        block = squeezed(block[: block.index("┏")])
        limits = found.stream_range
        processes = "severalprocesses" if found.collective else "oneprocess"
        for text in (
            squeezed(f"{name}: {found.description}"), f"family{found.family},mark{found.mark}",
            f"{limits.least}–{limits.most}streams,{limits.recommended}recommended;{processes}",
            f"tags:{','.join(found.tags) or 'none'}", *map(squeezed, found.units),
            *(squeezed(f"{ratio.name}: {ratio.description}") for ratio in found.ratios),
        ):  # fmt: skip
            assert text in block, f"{name}: {text} not in {block}"


def test_info_is_another_name_of_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_KERNEL_NS", 100_000)
    result = invoke("info", "--device", "cpu", "--quick", "--dir", str(tmp_path))

    assert result.exit_code in (0, 1), result.output
    for text in ("pytest-hwqueue", metadata.version("torch"), "Device cpu", "cores", "Checks"):
        assert text in result.output


def test_the_suite_of_an_installation_comes_first(tmp_path: Path) -> None:
    package = tmp_path / "pytest_hwqueue"
    (package / "benchmarks").mkdir(parents=True)

    assert suite.suite_path(package) == package / "benchmarks"


def test_a_foreign_folder_beside_an_installation_is_not_the_suite(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()

    with pytest.raises(suite.SuiteNotFound, match=r"neither .* nor .*; install"):
        suite.suite_path(tmp_path / "pytest_hwqueue")


def test_a_missing_suite_is_wrong_usage(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise suite.SuiteNotFound("the benchmark suite is missing")

    monkeypatch.setattr(suite, "suite_path", missing)

    result = invoke("run", "tiny_kernel_stress")

    assert result.exit_code == 4
    assert "the benchmark suite is missing" in result.output


def test_the_plugin_is_loaded_once_whether_installed_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = metadata.EntryPoint("hwqueue", "pytest_hwqueue.plugin", "pytest11")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    assert suite.pytest_command([])[5] == "hwqueue"
    assert suite.pytest_environment({}) == {"PYTHONSAFEPATH": "1"}

    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert suite.pytest_command([])[5] == "pytest_hwqueue.plugin"
    paths = suite.pytest_environment({"PYTHONPATH": "theirs"})["PYTHONPATH"]
    assert paths == f"{ROOT}{os.pathsep}theirs"


def test_another_sessions_environment_stays_out() -> None:
    given = {"PYTEST_ADDOPTS": "-x", "PYTEST_XDIST_WORKER": "gw0", "HWQ_SEED": "1"}

    kept = suite.pytest_environment(given)

    assert kept["HWQ_SEED"] == "1"
    assert not {"PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"} & set(kept)


def test_a_command_that_a_signal_ended_has_the_shells_status() -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert suite.run_pytest([sys.executable, "-c", script], os.environ) == 137


def test_a_command_that_was_interrupted_while_it_started_was_interrupted() -> None:
    script = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"

    with pytest.raises(KeyboardInterrupt):
        suite.run_pytest([sys.executable, "-c", script], os.environ)


@pytest.mark.parametrize(("number", "to_group"), [
    pytest.param(signal.SIGINT, True, id="Ctrl-C"),
    pytest.param(signal.SIGTERM, False, id="SIGTERM"),
])  # fmt: skip
def test_a_signal_reaches_the_command_once(
    tmp_path: Path, number: signal.Signals, to_group: bool
) -> None:
    told = tmp_path / "told"
    command = (
        "import pathlib, signal, sys, time\n"
        "times = []\n"
        f"signal.signal({int(number)}, lambda *_: times.append(1))\n"
        f"pathlib.Path({str(told)!r}).touch()\n"
        "end = time.monotonic() + 20\n"
        "while not times and time.monotonic() < end: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"  # for a second one to come
        "sys.exit(40 + len(times))\n"
    )
    script = (
        "import os, sys\nfrom pytest_hwqueue.suite import run_pytest\n"
        f"sys.exit(run_pytest([sys.executable, '-c', {command!r}], os.environ))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=user_environment(), start_new_session=True
    )
    try:
        _wait_for(told)
        if to_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) == 41
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_run_for_real_in_a_foreign_project(foreign_project: Path) -> None:
    found = hwq(
        foreign_project, "run", "tiny_kernel_stress", *SHORT, "--output", "all.json",
        PYTEST_ADDOPTS="--no-such-option",
    )  # fmt: skip

    assert found.returncode == 0, found.stdout + found.stderr
    session: dict[str, Any] = json.loads((foreign_project / "all.json").read_text())
    (record,) = session["records"]
    assert record["status"] == "ok"
    assert record["iterations"] == 20
    assert (foreign_project / ".hwqueue").is_dir()


@pytest.mark.slow
def test_sweep_for_real_skips_counts_outside_the_range(tmp_path: Path) -> None:
    found = hwq(
        tmp_path, "sweep", "hetero_kernels", "--streams", "1,2", "--device", "cpu",
        "--iterations", "5", "--max-time", "1",
    )  # fmt: skip

    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed, 1 skipped" in found.stdout
    assert "hetero_kernels takes 2 to 128 streams (--hwq-streams=1)" in found.stdout
    assert "hetero_kernels: no scaling, measured at 1 count of streams" in found.stdout


def test_ctrl_c_for_real_ends_as_pytest_does(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest_hwqueue", "run", "tiny_kernel_stress", "--device", "cpu",
             "--streams", "1", "--iterations", "1000000", "--max-time", "100"],
            cwd=tmp_path, env=user_environment(), stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        # Its session file is there once measuring begins.
        _wait_for(tmp_path / ".hwqueue")
        time.sleep(3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 2, output.read_text()
    finally:
        process.kill()
        process.wait()


def test_main_is_a_click_group() -> None:
    assert isinstance(main, click.Group)
    assert set(main.commands) == {
        "list", "run", "sweep", "doctor", "compare",
        "baseline", "ab", "scenario", "which", "capacity", "trace",
        "report", "history", "bisect", "help", "init", "comment", "badge", "fleet",
    }  # fmt: skip


def _write(path: Path) -> Path:
    path.write_text("{}")
    return path


def _wait_for(path: Path, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.02)
