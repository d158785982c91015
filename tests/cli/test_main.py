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

import click
import pytest

from pytest_hwqueue.cli.main import COMMANDS, main
from pytest_hwqueue.options import suite
from pytest_hwqueue.options.of_scenarios import ScenarioPath
from pytest_hwqueue.options.options import OPTIONS
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, workload_class
from tests.cli.conftest import ROOT, Launched, finished, hwq, real

STANDS_AS_ARGUMENT = {
    "run": {"workload"},
    "sweep": {"workload"},
    "trace": {"workload", "profile", "causes"},
}


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


def test_help_the_list_and_a_commands_own_options_need_nothing_heavy() -> None:
    script = (
        "import sys\nfrom pytest_hwqueue.options import suite\n"
        "from pytest_hwqueue.cli.main import main\n"
        "suite.run_pytest = lambda *_: 0\n"
        "asked = [['--help'], ['list'], ['run', 'hetero_kernels', '--streams', '2']]\n"
        "asked += [[each, '--help'] for each in main.list_commands(None)]\n"
        "for given in asked:\n"
        "    try:\n        main(given)\n"
        "    except SystemExit:\n"
        "        print(sorted({'torch', *['numpy', 'rich', 'pydantic'] * (given == ['--help'])}"
        " & set(sys.modules)))"
    )

    status, output, errors = finished(real(script=script))

    assert (status, errors) == (0, "")
    assert [line for line in output.splitlines() if line.startswith("[")] == ["[]"] * (
        3 + len(COMMANDS)
    )


@pytest.mark.parametrize(("line", "options", "last"), [
    ("run tiny_kernel_stress", "workload=tiny_kernel_stress", ""),
    ("run tiny_kernel_stress -- -x -k eager", "workload=tiny_kernel_stress", "-x -k eager"),
    ("run hetero_kernels tiny_kernel_stress --streams 2,4 --sync-mode none --param rounds=3 "
     "--param mm_dim=64 --output all.json --profile",
     "streams=2,4 sync-mode=none workload=hetero_kernels,tiny_kernel_stress param=rounds=3 "
     "param=mm_dim=64 json=all.json profile", ""),
    # Arguments behind two dashes are no names.
    *((f"{each} --seed 7 -- --collect-only", "priority=P0,P1 seed=7", "--collect-only")
      for each in ("run P0,P1", "run P0 P1", "run-priority P0,P1")),
    # Sweep has counts of its own unless told otherwise.
    ("sweep moe", "streams=1,2,4,8,16 workload=moe scaling", ""),
    ("sweep moe --streams 3", "streams=3 workload=moe scaling", ""),
    ("HWQ_STREAMS=5 sweep moe", "workload=moe scaling", ""),
    # All means every mark.
    ("sweep all", "streams=1,2,4,8,16 priority=P0,P1,P2,P3 scaling", ""),
    # A workload's parameters are options of its own. It may stand behind them: the value of --save
    # is no workload to measure, though it is called like one.
    *((f"{each} hetero_kernels --mm-dim 512 --streams 2 --chain-length=3 --param dtype=bf16 "
       "--seed 5", f"streams=2 seed=5 {more}workload=hetero_kernels param=dtype=bf16 "
       "param=hetero_kernels.mm_dim=512 param=hetero_kernels.chain_length=3", "")
      for each, more in (("run", ""), ("sweep", "scaling "), ("profile", "iterations=400 "))),
    ("run --save large_gemm_only --mm-dim 512 hetero_kernels",
     "save=large_gemm_only workload=hetero_kernels param=hetero_kernels.mm_dim=512", ""),
    ("sweep all --priority P1 --streams 4,8", "streams=4,8 priority=P1 scaling", ""),
])  # fmt: skip
def test_options_become_the_plugins_apart_from_the_folder_and_its_settings(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, line: str, options: str, last: str
) -> None:
    words = line.split()
    if words[0].startswith("HWQ_STREAMS="):
        monkeypatch.setenv(*words.pop(0).split("="))
    result = hwq(*words)
    assert result.exit_code == 0, result.output
    expected = [f"--hwq-{option}" for option in options.split()]
    assert sorted(launched.plugin_options) == sorted(expected)
    benchmarks = suite.suite_path()
    assert launched.command[:4] == [sys.executable, "-m", "pytest", str(benchmarks)]
    assert launched.command[len(launched.command) - len(last.split()) :] == last.split()
    apart = {f"--rootdir={benchmarks.parent}", f"--confcutdir={benchmarks}", os.devnull}
    assert apart <= {*launched.command}
    # A file that cannot be imported costs no other file's cells.
    kept = {"--hwq-scaling", "--continue-on-collection-errors", "-rs"}
    assert "all" not in words or kept <= {*launched.command}


def test_the_exit_status_is_pytests_and_verbose_is_handed_on(launched: Launched) -> None:
    for status in range(6):
        launched.status = status
        assert hwq("run", "tiny_kernel_stress").exit_code == status
        assert "-v" not in launched.command
    for arguments in (("run", "-v", "large_gemm_only"), ("run", "P0", "--verbose")):
        hwq(*arguments)
        assert "-v" in launched.command


@pytest.mark.parametrize("line", [
    "sweep all --streams 4 --device sim:h200 -- --collect-only -q",
    pytest.param("run hetero_kernels --mm-dim 64 --streams 2 --device cpu --iterations 20 "
                 "--max-time 1 --output all.json", marks=pytest.mark.slow),
    pytest.param("sweep hetero_kernels --streams 1,2 --device cpu --iterations 5 --max-time 1",
                 marks=pytest.mark.slow),
])  # fmt: skip
def test_it_measures_in_a_foreign_project(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose own configuration, conftest.py and modules would break any session."""
    ini = "[pytest]\naddopts = --no-such-option\nfilterwarnings = error\ntestpaths = nowhere\n"
    (tmp_path / "pytest.ini").write_text(ini)
    for name in ("conftest.py", "queue.py"):
        (tmp_path / name).write_text(f"raise RuntimeError('a foreign {name}')")
    monkeypatch.chdir(tmp_path)
    status, output, errors = finished(real(*line.split(), PYTEST_ADDOPTS="--no-such-option"))

    assert status == 0, output + errors
    if "all" in line.split():
        tests = [each for each in output.splitlines() if "::" in each]
        named = [each.partition("[")[0].rpartition("::test_")[2] for each in tests]
        assert sorted(named) == sorted(WORKLOADS)
    elif line.startswith("run"):
        (record,) = json.loads((tmp_path / "all.json").read_text())["records"]
        assert (record["status"], record["iterations"]) == ("ok", 20)
        assert record["setting"]["parameters"]["mm_dim"] == 64
        assert (tmp_path / ".hwqueue").is_dir()
    else:
        assert "1 passed, 1 skipped" in output
        assert "hetero_kernels takes 2 to 128 streams (--hwq-streams=1)" in output
        assert "hetero_kernels: no scaling, measured at 1 count of streams" in output


def test_the_suite_of_an_installation_comes_first_and_a_missing_one_is_wrong_usage(
    tmp_path: Path, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, found = tmp_path / "pytest_hwqueue", suite.suite_path
    # A foreign folder beside an installation is not the suite.
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(suite, "suite_path", lambda: found(package))
    result = hwq("run", "tiny_kernel_stress")
    assert result.exit_code == 4
    assert re.search(r"neither .* nor .*; install", " ".join(result.output.split()))
    (package / "benchmarks").mkdir(parents=True)
    assert found(package) == package / "benchmarks"


def test_a_command_that_a_signal_ended_has_the_shells_status() -> None:
    ends = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), {})"
    assert suite.run_pytest([sys.executable, "-c", ends.format(9)], os.environ) == 137
    # Interrupted while it started.
    with pytest.raises(KeyboardInterrupt):
        suite.run_pytest([sys.executable, "-c", ends.format(2)], os.environ)


def test_ctrl_c_while_pythons_own_beginning_lasts_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begins = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "sitecustomize.py").write_text(begins, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--version", "--hwq-isolation=none"]
    with pytest.raises(KeyboardInterrupt):
        suite.run_pytest(command, os.environ | {"PYTHONPATH": str(tmp_path)})
    assert capfd.readouterr() == ("", "")


def test_list_verbose_has_all_that_a_workload_declares() -> None:
    output = hwq("list", "--verbose").output

    for name in WORKLOADS:
        found = workload_class(name)
        block = output[f"\n{output}".index(f"\n{name}\n") :]
        block = squeezed(block[: block.index("─")])
        limits = found.stream_range
        processes = "severalprocesses" if found.collective else "oneprocess"
        for text in (
            squeezed(f"{name}{found.description}"), f"family{found.family},mark{found.mark}",
            f"{limits.least}–{limits.most}streams,{limits.recommended}recommended;{processes}",
            f"tags:{','.join(found.tags) or 'none'}", *map(squeezed, found.units),
            *(squeezed(f"{ratio.name}: {ratio.description}") for ratio in found.ratios),
        ):  # fmt: skip
            assert text in block, f"{name}: {text} not in {block}"
    brief = hwq("list").output
    for text in (*WORKLOADS, "latency_sensitive", "P0", "2–128", "kernels/s", "small, large"):
        assert text in brief
    assert "chain_length" not in brief
    rows = [line.split() for line in output.splitlines() if "mm_dim" in line]
    assert rows[0] == ["mm_dim", "256", "1024", "4096"]
    assert "rows and columns of the large product (int ≥ 1)" in output
    assert metadata.version("pytest-hwqueue") in hwq("--version").output


def test_a_misspelt_command_is_answered_with_what_was_meant() -> None:
    for wrong, meant in (
        ("whihc", "which"),
        ("basline", "baseline"),
        ("run-priorty", "run-priority"),
    ):
        refused = hwq(wrong)
        assert refused.exit_code == 4
        assert f"no command is '{wrong}'; did you mean {meant}?" in refused.output


def test_the_table_of_commands_has_each_ones_own_line_and_imports_none() -> None:
    context = click.Context(main)
    for name, entry in COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=1000) == entry.line
    script = (
        "import sys\nfrom pytest_hwqueue.cli.main import COMMANDS, main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print([e.module for e in COMMANDS.values() if f'pytest_hwqueue.{e.module}' in "
        "sys.modules])"
    )
    status, output, errors = finished(real(script=script))
    assert (status, errors, output.splitlines()[-1]) == (0, "", "[]")


def test_info_is_another_name_of_doctor(tmp_path: Path) -> None:
    result = hwq("info", "--device", "cpu", "--quick", "--dir", str(tmp_path))

    assert result.exit_code in (0, 1), result.output
    for text in ("pytest-hwqueue", metadata.version("torch"), "Device cpu", "cores", "Checks"):
        assert text in result.output


def test_the_plugin_is_loaded_once_whether_installed_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = metadata.EntryPoint("hwqueue", "pytest_hwqueue.plugin", "pytest11")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    assert suite.pytest_command([])[5] == "hwqueue"
    assert suite.pytest_environment({}) == {"PYTHONSAFEPATH": "1"}

    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert suite.pytest_command([])[5] == "pytest_hwqueue.plugin"
    # Another session's environment stays out.
    given = {"PYTEST_ADDOPTS": "-x", "PYTEST_XDIST_WORKER": "gw0", "HWQ_SEED": "1"}
    kept = suite.pytest_environment(given | {"PYTHONPATH": "theirs"})
    assert kept["PYTHONPATH"] == f"{ROOT}{os.pathsep}theirs"
    assert (kept["HWQ_SEED"], given.keys() & kept.keys()) == ("1", {"HWQ_SEED"})


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
        "import os, sys\nfrom pytest_hwqueue.options.suite import run_pytest\n"
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


# test_interrupted.py has the command's end, tests/acceptance/test_measuring.py the session's.
@pytest.mark.slow
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


def _wait_for(path: Path, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} never appeared"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("answers.page.render", "torch"),  # `hwq report`
        ("options.listing", "scipy"),  # `hwq list`
        ("plugin.scenario_items", "rich"),  # scenario files that pytest collects
    ],
)
def test_nothing_is_loaded_that_takes_longer_than_the_work(module: str, heavy: str) -> None:
    code = f"import sys, pytest_hwqueue.{module}; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_suites_scenarios_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        f"{suite.suite_path() / 'scenarios/solo.hwq.yaml'}: "
        in hwq("scenario", "check", "solo").output
    )
    refused = hwq("which", "high_lod")
    assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "no file high_lod, and the suite's scenarios are batch_sweep, " in refused.output
    # A file of one's own comes first.
    (tmp_path / "solo").write_text("name: mine\n")
    assert "solo:1: duration" in hwq("scenario", "check", "solo").output
    named = ScenarioPath().shell_complete(click.Context(main), click.Argument(["file"]), "high")
    assert [each.value for each in named] == ["high_load", "high_load_targets", "high"]
