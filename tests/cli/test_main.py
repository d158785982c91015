"""The hwq command: its options are the plugin's, its exit status pytest's, its runs apart."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from importlib import metadata
from pathlib import Path

import click
import pytest

from pytest_hwqueue import suite
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.cli.measuring import plugin_arguments
from pytest_hwqueue.doctor import limits
from pytest_hwqueue.settings.options import OPTIONS
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from tests.cli.conftest import ROOT, Launched, finished, hwq, real

SHORT = ("--device", "cpu", "--streams", "2", "--iterations", "20", "--max-time", "1")
STANDS_AS_ARGUMENT = {
    "run": {"workload"},
    "sweep": {"workload"},
    "trace": {"workload", "profile", "causes"},
}


@pytest.fixture
def foreign_project(tmp_path: Path) -> Path:
    """A folder whose own configuration, conftest.py and modules would break any session."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --no-such-option\nfilterwarnings = error\ntestpaths = nowhere\n"
    )
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a foreign conftest.py')")
    (tmp_path / "queue.py").write_text("raise RuntimeError('a foreign module')")
    return tmp_path


def squeezed(text: str) -> str:
    """Without white space: where click breaks a line does not matter."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("command", STANDS_AS_ARGUMENT)
def test_every_common_option_is_there_with_its_line_and_default(command: str) -> None:
    text = squeezed(hwq(command, "--help").output)
    own = {"sweep": {"streams": "1,2,4,8,16"}, "trace": {"iterations": "400"}}.get(command, {})

    assert "`hwqhelp`explainsalloptions" in text
    for option in OPTIONS:
        if option.name in STANDS_AS_ARGUMENT[command]:
            continue
        if option.rare:
            assert f"--{option.name}" not in re.split(r"[\s\[=]", text)
            continue
        default = own.get(option.name, option.default)
        shown = f" [{default}]" if default and not option.flag else ""
        line = option.line.replace("--hwq-", "--")
        assert squeezed(f"{line}{shown}") in text, option.name
        assert f"--{option.name}" in text


def test_verbose_is_handed_to_pytest(launched: Launched) -> None:
    assert hwq("run", "large_gemm_only", "--device", "cpu").exit_code == 0
    assert "-v" not in launched.command
    for arguments in (("run", "-v", "large_gemm_only"), ("run", "P0", "--verbose")):
        assert hwq(*arguments).exit_code == 0
        assert "-v" in launched.command


def test_help_and_a_commands_own_options_need_nothing_heavy() -> None:
    script = (
        "import sys\nfrom pytest_hwqueue import suite\nfrom pytest_hwqueue.cli.main import main\n"
        "suite.run_pytest = lambda *_: 0\n"
        "for given in (['--help'], ['run', 'hetero_kernels', '--streams', '2', '--profile']):\n"
        "    try:\n        main(given)\n"
        "    except SystemExit:\n"
        "        print(sorted({'torch', *['numpy', 'rich', 'pydantic'] * ('--help' in given)}"
        " & set(sys.modules)))"
    )

    status, output, errors = finished(real(script=script))

    assert (status, errors) == (0, "")
    assert [line for line in output.splitlines() if line.startswith("[")] == ["[]", "[]"]


def test_version() -> None:
    assert metadata.version("pytest-hwqueue") in hwq("--version").output


@pytest.mark.parametrize("arguments", [
    ("run", "no_such_workload"),
    ("sweep", "no_such_workload"),
    ("trace", "no_such_workload"),
    ("run", "tiny_kernel_stress", "no_such_workload"),
])  # fmt: skip
def test_an_unknown_workload_is_refused_and_the_known_are_listed(
    launched: Launched, arguments: tuple[str, ...]
) -> None:
    result = hwq(*arguments)

    assert result.exit_code == 4
    assert "no_such_workload" in result.output
    assert all(name in result.output for name in WORKLOADS)
    assert not launched.commands


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
    (("sweep", "all", "--mm-dim", "64"), "options where it is named alone"),
    (("doctor", "--device", "all"), "one device at a time"),
    (("doctor", "--device", "sim:h200"), "real devices only"),
    (("doctor", "--device", "cuda:99"), "visible here"),
])  # fmt: skip
def test_wrong_usage_ends_with_pytests_status_for_it(
    launched: Launched, arguments: tuple[str, ...], says: str
) -> None:
    result = hwq(*arguments)

    assert result.exit_code == 4
    assert says in result.output
    assert not launched.commands


def test_options_become_the_plugins(launched: Launched) -> None:
    result = hwq(
        "run", "hetero_kernels", "tiny_kernel_stress", "--streams", "2,4", "--sync-mode", "none",
        "--param", "rounds=3", "--param", "mm_dim=64", "--output", "all.json", "--profile",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert launched.plugin_options == [
        "--hwq-streams=2,4", "--hwq-sync-mode=none",
        "--hwq-workload=hetero_kernels,tiny_kernel_stress", "--hwq-param=rounds=3",
        "--hwq-param=mm_dim=64",
        "--hwq-json=all.json", "--hwq-profile",
    ]  # fmt: skip


def test_options_not_given_are_left_to_the_plugin(launched: Launched) -> None:
    hwq("run", "tiny_kernel_stress")

    assert launched.plugin_options == ["--hwq-workload=tiny_kernel_stress"]


def test_the_command_stands_apart_from_the_folder_it_is_started_in(launched: Launched) -> None:
    hwq("run", "tiny_kernel_stress", "--", "-x", "-k", "eager")

    benchmarks = suite.suite_path()
    assert launched.command[:4] == [sys.executable, "-m", "pytest", str(benchmarks)]
    assert launched.command[-3:] == ["-x", "-k", "eager"]
    for argument in (f"--rootdir={benchmarks.parent}", f"--confcutdir={benchmarks}", os.devnull):
        assert argument in launched.command


@pytest.mark.parametrize(
    "names", [["run", "P0,P1"], ["run", "P0", "P1"], ["run-priority", "P0,P1"]]
)
def test_arguments_behind_two_dashes_are_not_names(launched: Launched, names: list[str]) -> None:
    result = hwq(*names, "--seed", "7", "--", "--collect-only")

    assert result.exit_code == 0, result.output
    assert launched.plugin_options == ["--hwq-priority=P0,P1", "--hwq-seed=7"]
    assert launched.command[-1] == "--collect-only"


def test_sweep_has_counts_of_its_own_unless_told_otherwise(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    hwq("sweep", "tiny_kernel_stress")
    assert "--hwq-streams=1,2,4,8,16" in launched.plugin_options
    hwq("sweep", "tiny_kernel_stress", "--streams", "3")
    assert "--hwq-streams=3" in launched.plugin_options
    monkeypatch.setenv("HWQ_STREAMS", "5")
    hwq("sweep", "tiny_kernel_stress")
    assert launched.plugin_options == ["--hwq-workload=tiny_kernel_stress"]


def test_all_means_every_mark(launched: Launched) -> None:
    assert hwq("sweep", "all").exit_code == 0
    assert launched.plugin_options == ["--hwq-streams=1,2,4,8,16", "--hwq-priority=P0,P1,P2,P3"]
    # A file that cannot be imported costs no other file's cells.
    kept = {"pytest_hwqueue.plugin.session_reports", "--continue-on-collection-errors", "-rs"}
    assert kept <= {*launched.command}
    assert hwq("sweep", "all", "--priority", "P1", "--streams", "4,8").exit_code == 0
    assert launched.plugin_options == ["--hwq-streams=4,8", "--hwq-priority=P1"]


def test_all_selects_every_workload_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("sweep", "all", "--streams", "4", "--device", "sim:h200")
    status, output, errors = finished(real(*arguments, "--", "--collect-only", "-q"))

    assert status == 0, output + errors
    tests = [line for line in output.splitlines() if "::" in line]
    named = [line.partition("[")[0].rpartition("::test_")[2] for line in tests]
    assert sorted(named) == sorted(WORKLOADS)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 5])
def test_the_exit_status_is_pytests(launched: Launched, status: int) -> None:
    launched.status = status

    assert hwq("run", "tiny_kernel_stress").exit_code == status


def test_a_default_of_a_command_yields_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HWQ_SEED", raising=False)
    assert plugin_arguments({"seed": None}, {"seed": "1"}) == ["--hwq-seed=1"]
    monkeypatch.setenv("HWQ_SEED", "2")
    assert plugin_arguments({"seed": None}, {"seed": "1"}) == []
    assert plugin_arguments({"seed": "3"}, {"seed": "1"}) == ["--hwq-seed=3"]


def test_list() -> None:
    result = hwq("list")

    assert result.exit_code == 0, result.output
    for text in (*WORKLOADS, "latency_sensitive", "P0", "2–128", "kernels/s", "small, large"):
        assert text in result.output
    assert "chain_length" not in result.output


def test_list_verbose_has_parameters_by_size() -> None:
    lines = [line.split() for line in hwq("list", "--verbose").output.splitlines()]

    rows = [[cell for cell in line if cell != "│"] for line in lines if "mm_dim" in line]
    assert rows[0][:7] == ["mm_dim", "int", "≥", "1", "256", "1024", "4096"]
    assert any("alternating" in line and "random" in line for line in lines)


def test_list_verbose_has_all_that_a_workload_declares() -> None:
    output = hwq("list", "--verbose").output

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
    result = hwq("info", "--device", "cpu", "--quick", "--dir", str(tmp_path))

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

    result = hwq("run", "tiny_kernel_stress")

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
    process = real(script=script)
    try:
        _wait_for(told)
        if to_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) == 41
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_run_for_real_in_a_foreign_project(
    foreign_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign_project)
    arguments = ("run", "hetero_kernels", "--mm-dim", "64", *SHORT, "--output", "all.json")
    status, output, errors = finished(real(*arguments, PYTEST_ADDOPTS="--no-such-option"))

    assert status == 0, output + errors
    (record,) = json.loads((foreign_project / "all.json").read_text())["records"]
    assert (record["status"], record["iterations"]) == ("ok", 20)
    assert record["setting"]["parameters"]["mm_dim"] == 64
    assert (foreign_project / ".hwqueue").is_dir()


@pytest.mark.slow
def test_sweep_for_real_skips_counts_outside_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("sweep", "hetero_kernels", "--streams", "1,2", "--device", "cpu")
    status, output, errors = finished(real(*arguments, "--iterations", "5", "--max-time", "1"))

    assert status == 0, output + errors
    assert "1 passed, 1 skipped" in output
    assert "hetero_kernels takes 2 to 128 streams (--hwq-streams=1)" in output
    assert "hetero_kernels: no scaling, measured at 1 count of streams" in output


def test_ctrl_c_for_real_ends_as_pytest_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("run", "tiny_kernel_stress", "--device", "cpu", "--streams", "1")
    process = real(*arguments, "--iterations", "1000000", "--max-time", "100")
    try:
        # Its session file is there once measuring begins.
        _wait_for(tmp_path / ".hwqueue")
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        status, output, errors = finished(process)
        assert status == 2, output + errors
    finally:
        process.kill()
        process.communicate()


def test_main_is_a_click_group() -> None:
    assert isinstance(main, click.Group)
    assert set(main.commands) == {
        "list", "run", "sweep", "doctor", "compare",
        "baseline", "ab", "scenario", "which", "capacity", "trace",
        "report", "history", "bisect", "help", "init", "comment", "badge", "fleet",
    }  # fmt: skip


def _wait_for(path: Path, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.02)
