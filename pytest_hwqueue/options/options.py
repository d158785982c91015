"""Every --hwq-* option, ini key and environment variable in one table, and the frozen Settings.

An option ``--hwq-max-time`` is also the ini key ``hwq_max_time`` and the environment variable
``HWQ_MAX_TIME``; the ``hwq`` command takes the same options without the ``hwq-``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pytest_hwqueue.options import values as read
from pytest_hwqueue.parts.workloads import MAXIMUM_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths

DISPATCHES = ("eager", "graph")
SYNC_MODES = ("per_iteration", "end_only", "none")
CACHES = ("hot", "cold")
SIZES = ("auto", "tiny", "small", "full")
PRIORITIES = ("P0", "P1", "P2", "P3")
ISOLATIONS = ("process", "none")
CAUSES = ("failing", "always", "never")
UNTIL = ("decided", "figures", "end")


Value = TypeVar("Value")


class Option(Generic[Value]):
    """One setting: an attribute of `Settings`, from whose name all its others derive.

    ``line`` stands in lists of options, ``help`` is the documentation users read: ``more``, behind
    the line if it begins with no letter. Of ``rare`` ones `pytest --help` says nothing, only
    `hwq help`.

    Attributes:
        field: the attribute, such as ``max_time``.
        name: such as ``max-time``.
        command_line: such as ``--hwq-max-time``.
        key: the ini key and the attribute in pytest's options, such as ``hwq_max_time``.
        variable: the environment variable, such as ``HWQ_MAX_TIME``.

    """

    # Every pytest session of the environment pays for these classes: tuples and data classes with
    # typed fields take longer to make than the whole table.
    def __init__(
        self, default: str, parse: Callable[[str, str], Value], metavar: str, topic: str,
        line: str, more: str = "", repeatable: bool = False, flag: bool = False, rare: bool = False,
    ) -> None:  # fmt: skip
        self.default, self.parse = default, parse
        self.metavar, self.topic, self.line = metavar, topic, line
        self.help = more if more[:1].isalpha() else line + more
        self.repeatable, self.flag, self.rare = repeatable, flag, rare

    def __set_name__(self, owner: type, field: str) -> None:
        self.field, self.name, self.key = field, field.replace("_", "-"), f"hwq_{field}"
        self.command_line, self.variable = f"--hwq-{self.name}", self.key.upper()

    def __get__(self, settings: Settings, owner: type) -> Value:
        """Return the setting's value."""
        value: Value = settings.value_of(self)
        return value

    def __set__(self, settings: Settings, value: NoReturn) -> NoReturn:
        """Refuse it: settings are read, and stay.

        Raises:
            AttributeError: naming the setting.

        """
        raise AttributeError(f"the setting {self.field!r} was read and stays")

    def line_with(self, default: str) -> str:
        """Return the line, followed by a default."""
        return f"{self.line} [{default}]" if default and not self.flag else self.line

    @property
    def help_with_default(self) -> str:
        """The long help text, followed by the default."""
        return f"{self.help} (default: {self.default or 'none'})"


TOPICS = {
    "streams": "devices, streams, and how work reaches the queues",
    "scheduler": "scheduler modes, and where they are installed",
    "workloads": "what is run: selection, size, parameters",
    "samples": "how much is measured, how often, and for how long",
    "files": "records, reports and traces",
    "causes": "why the slowest iterations are slow",
    "baselines": "runs that are stored, and what is compared with them",
    "gate": "what a comparison calls a regression",
    "noise": "background load on the CPU",
    "testing": "aids for testing the checks themselves",
}
"""Titles of topics. They and their options stand in the order of help texts."""


def by_default(option: Option[Any]) -> tuple[str, str]:
    """Return the source and the text of an option that nobody has given."""
    return option.command_line, option.default


class Settings:
    """All settings of a session, checked. Times are in seconds, as the user gave them.

    Only those given are read at once; another is read, or refused as `BadOption`, when it is first
    asked for, since a session that measures nothing need not import what knows devices, modes and
    noises.

    Args:
        source: returns where an option was given, and its text, of one that has no value yet.
        values: of options, by their fields.

    """

    __slots__ = ("_source", "_values")

    # fmt: off
    # What most people come for stands first.
    device = Option("auto", read.device, "DEVICE", "streams",
        "what to measure: cpu, cuda[:N], all, sim:h200",
        "device to measure: auto (an accelerator if there is one, else the CPU), cpu, "
        "cuda[:N], hip[:N] (N counts the visible devices), cuda:MIG-UUID (visible by "
        "CUDA_VISIBLE_DEVICES), all accelerators, or a simulated GPU: sim:h200, sim:mi300x, "
        "sim:FILE.yaml; or a device that an installed package adds")
    streams = Option("auto", read.streams, "N[,N...]", "streams",
        "concurrent streams: a count, or a list",
        f"concurrent streams, 1 to {MAXIMUM_STREAMS}: one count, a list to sweep, or auto (the "
        "workload's recommended count; for your own tests 8, on the CPU at most one per core)")
    scheduler = Option("native", read.schedulers, "MODE[,MODE...]", "scheduler",
        "modes to measure under: mps, xsched, ...",
        "scheduler modes to measure under, each in its own processes and proven active: "
        "native, stream-priority, mps, mps-priority, mps-partition, mps-static, "
        "green-context, env:NAME=VALUE, xsched, xsched-app, preload:NAME, or one that an "
        "installed package adds; a setting may have alternatives, such as "
        "xsched:level=1,threshold=1|2|4")
    budget = Option("", read.duration, "TIME", "samples",
        "time the session may take, such as 10min",
        "time the session may take, such as 90s, 10min or 1h: a test not expected to end in "
        "time is not started, and is listed. Every test runs once before any runs twice; "
        "nothing is cut short once started")
    save = Option("", read.baseline_name, "NAME", "baselines",
        "store the runs as baseline NAME",
        "store each cell's runs in the baseline NAME (under --hwq-baselines, by device)")
    compare = Option("", lambda o, v: v, "NAME", "baselines",
        "fail cells that are worse than a baseline",
        "compare each cell with a baseline: NAME (of this device), DEVICE/NAME, or a session's "
        "JSON file; a cell that got worse fails its test. Undecided cells are measured again, "
        "up to 15 times; a comparison that judges no cell is an error")
    against = Option("", lambda o, v: v, "REF", "baselines",
        "fail cells that are worse than a commit",
        "also measure another commit, alternating with this version in one session, and fail "
        "tests that got worse; with --hwq-compare, only tests that regressed against the "
        "baseline, to confirm the regression")
    report = Option("", read.path, "FILE", "files",
        "write an HTML page to look at",
        "write an HTML report that opens without a network (extra `report`)")
    dispatch = Option("auto", read.some_of(*DISPATCHES, "auto"), "MODE[,MODE...]", "streams",
        "how kernels are launched: eager, graph",
        "how work reaches the queues: eager (every kernel launched from Python), graph "
        "(captured once, replayed; accelerators only), or auto (graph on NVIDIA and simulated "
        "GPUs for workloads that can be captured, else eager; not yet measured on AMD GPUs)")
    ranks = Option("auto", read.integer_or_auto, "N", "streams",
        "processes that run collectives together",
        "processes that run a workload with collectives together, each on its own device: auto "
        "is one per visible accelerator, two on the CPU, one on a simulated device; torchrun's "
        "ranks take precedence")
    sync_mode = Option("per_iteration", read.one_of(*SYNC_MODES), "MODE", "streams",
        "when the host waits for the device",
        "when the host waits: per_iteration (after each), end_only (once, after the last), "
        "none (never inside the measured window); the last two measure the time from one "
        "iteration's end to the next's by device events, a pace and no latency", rare=True)
    cache = Option("hot", read.one_of(*CACHES), "REGIME", "streams",
        "what the device's cache holds: hot, cold",
        "what a GPU's cache holds as an iteration begins: hot (what the one before has left), or "
        "cold (nothing: a buffer of twice the L2 is written before each iteration, outside of what "
        "is measured)", rare=True)
    xsched_root = Option("", read.path, "DIR", "scheduler",
        "folder in which XSched is installed",
        ", with bin/xserver and lib/; by default the environment variable XSCHED_ROOT", rare=True)
    preloads = Option("", read.folders, "DIR[,DIR...]", "scheduler",
        "folders that describe schedulers preload:NAME",
        "folders with the descriptions NAME.yaml of schedulers preload:NAME", rare=True)
    workload = Option("", read.names, "NAME[,NAME...]", "workloads",
        "only benchmarks of these workloads",
        "run only benchmarks of these workloads, by name (see `hwq list`)")
    priority = Option("", lambda o, v: read.some_of(*PRIORITIES)(o, v) if v else (), "P0[,P1…]",
        "workloads",
        "only benchmarks with these marks, such as P0",
        "run only benchmarks with one of these priority marks")
    size = Option("auto", read.one_of(*SIZES), "SIZE", "workloads",
        "problem size: tiny, small, full",
        "problem size: tiny (at most about 20 ms per iteration on two CPU cores), small, full; "
        "auto is full on an accelerator and tiny on the CPU")
    param = Option("", read.parameters, "NAME=VALUE", "workloads",
        "set a workload's parameter; repeatable",
        "set a workload's parameter, such as mm_dim=2048 or large_gemm_only.dtype=bf16; "
        "repeatable", repeatable=True)
    seed = Option("0", read.integer(0), "N", "workloads",
        "seed of random choices and input data",
        "seed of all random choices and input data")
    weights = Option("", read.path, "DIR", "workloads",
        "folder with the weights of a scenario's models",
        ", each in a folder named after it (resnet18, ...) as save_pretrained writes it; by "
        "default they are random, from a seed", rare=True)
    samples = Option("auto", read.integer_or_auto, "N", "samples",
        "samples of each cell; for P99 1000 suffice",
        "samples to measure of each cell's primary latency (a token, a query, a step: see `hwq "
        "list`); for P99's interval 1000 suffice unless they follow each other, for P99.9's "
        "5500. auto is 1000, and in a cell's only run as many more as take 1 s; of launches in "
        "windows it is at least 440, and as many as take 1 s")
    iterations = Option("auto", read.integer_or_auto, "N", "samples",
        "measured iterations of each cell",
        "measured iterations per cell; auto runs enough for --hwq-samples, at least 50")
    max_time = Option("20", read.seconds, "SECONDS", "samples",
        "maximum measuring time of a cell, in seconds",
        "maximum measuring time per cell, in seconds (on a simulated device, of virtual and of "
        "wall time); a safety net, since the number of samples is planned. A compared run may "
        "take three times as long to reach its baseline's samples")
    until = Option("figures", read.one_of(*UNTIL), "WHEN", "samples",
        "scenarios' windows end: decided, figures, end",
        "when the windows of a scenario's tenants end: decided (once goals are decided), figures "
        "(once the urgent tenants also have their P99, with both ends, and the others their "
        "throughput, unless the rest of the time would hardly give it), end (after all of the "
        "duration)", rare=True)
    timeout = Option("300", read.seconds, "SECONDS", "samples",
        "total time a cell may take, in seconds",
        "; a cell that hangs is ended and recorded")
    runs = Option("auto", read.integer_or_auto, "N", "samples",
        "fresh processes that measure each cell",
        "measure every cell in N fresh processes, interleaved: each measures every cell once. "
        "auto is 1; with --hwq-compare as many as each verdict needs (2 to 15; an explicit N "
        "is judged at one look); with --hwq-save 10")
    lean = Option("no", read.flag, "", "samples",
        "measure latency and throughput alone",
        "measure each cell's latency and throughput alone, as a comparison does: no references "
        "for ratios, timeline or queue switch", flag=True, rare=True)
    isolation = Option("process", read.one_of(*ISOLATIONS), "MODE", "samples",
        "where cells run: in a worker process, or none",
        "process: cells run in a worker process, so that a crash, a hang or a device error "
        "costs one cell; none: in pytest's own process (implied by --pdb and --trace)")
    lease_timeout = Option("3600", read.seconds, "SECONDS", "samples",
        "how long to wait for a device in use",
        "how long to wait for a device on which another session measures, in seconds; its "
        "tests then fail. A session keeps its device until it ends")
    warmup = Option("10", read.integer(0), "N", "samples",
        "minimum warm-up iterations",
        "; more follow until the time per iteration is stable", rare=True)
    dir = Option(".hwqueue", read.folder, "DIR", "files",
        "folder for records",
        "; each is written as soon as its cell is measured")
    json = Option("", read.path, "FILE", "files",
        "write the session's records to one file",
        "write all records of the session to one JSON file")
    markdown = Option("", read.path, "FILE", "files",
        "write figures and verdicts as Markdown",
        "write the figures and verdicts as Markdown; under GitHub Actions also to the summary")
    profile = Option("no", read.flag, "", "files",
        "write a trace of each cell, for Perfetto",
        "also write a trace of one pass per cell, for Perfetto", flag=True)
    profile_dir = Option("hwq-profiles", read.folder, "DIR", "files",
        "folder for the traces of --hwq-profile", rare=True)
    commit = Option("", read.commit, "SHA[-dirty]", "files",
        "commit under test, where git cannot be asked",
        "commit of the tree under test, for its records, where that is no git repository, such "
        "as a copy on another machine; else git is asked", rare=True)
    scaling = Option("no", read.flag, "", "files",
        "end with a scaling table of each sweep",
        "end with a scaling table of each workload measured at several numbers of streams, and "
        "write the tables and plots next to the records (as `hwq sweep` does)", flag=True,
        rare=True)
    causes = Option("failing", read.one_of(*CAUSES), "WHEN", "causes",
        "when to explain: failing, always, never",
        "explain why the slowest iterations are slow, from a traced pass separate from the "
        "measured one: failing (rerun a cell whose P95, P99 or P99.9 fails a comparison, or a "
        "scenario that misses a latency goal), always (trace every cell and add the causes to "
        "its record; about 5 s each), never")
    baselines = Option("baselines", read.folder, "DIR", "baselines",
        "folder of the stored baselines")
    save_records = Option("no", read.flag, "", "baselines",
        "with --hwq-save, also keep whole records",
        "with --hwq-save, also keep the whole records of these runs and their timelines in the "
        "baseline's folder records/", flag=True, rare=True)
    setup = Option("", lambda o, v: v, "COMMAND", "baselines",
        "run once in each side, such as 'pip install .'",
        "shell command to run once in each side's folder before it is measured, such as 'pip "
        "install .' or 'git submodule update --init'; each side then has its own virtual "
        "environment")
    pairs = Option("12", read.integer(3), "N", "baselines",
        "runs of each version for --hwq-against",
        "process runs of each version for --hwq-against, unless fewer decide a test", rare=True)
    fail_on = Option("p99", read.some_names, "FIGURE[,FIGURE...]", "gate",
        "figures to compare, such as p99,throughput",
        "figures to compare: p50, p90, p95, p99, p999, throughput, iteration_time, TAG.p99, or "
        "a ratio such as convoy_ratio (at P99) or convoy_ratio.p50")
    detect = Option("20%", read.share(10), "SHARE", "gate",
        "the change that matters: a pass excludes it",
        "the change that matters: a cell passes only if a change of this size is excluded")
    rate = Option("1%", read.share(0.5), "SHARE", "gate",
        "chance that unchanged code fails a session",
        "chance that a session of unchanged code fails a comparison")
    on = Option("incomparable:fail", read.reactions, "VERDICT:REACTION[,...]", "gate",
        "which verdicts pass, warn or fail",
        "whether a verdict lets its cell pass, warn or fail: inconclusive (looks worse, but not "
        "beyond doubt), no-baseline (the baseline lacks the cell), incomparable (measured under "
        "other conditions than the baseline), missing (in the baseline, but not measured); such "
        "as missing:fail,inconclusive:pass. One that is not named warns, but incomparable "
        "fails; repeatable", repeatable=True)
    min_effect = Option("5%", read.or_auto(read.share(10)), "SHARE", "gate",
        "no change below this is a regression; or auto",
        ": in each cell as little as its baseline's noise lets the gate find, from 1% to 5%; 2% "
        "takes runs that differ by 0.5% or less, and `hwq ab`, --hwq-against or a baseline of 4 or "
        "more sessions that differ by 0.25% or less; verdicts say what each cell can detect",
        rare=True)
    tau = Option("auto", read.or_auto(read.share_or_0), "SHARE", "gate",
        "how much sessions of unchanged code differ",
        " (standard deviation), if you know: 0.5% with locked clocks on one host, 1% without; "
        "`hwq baseline calibrate` measures it; auto: what 4 or more sessions of the baseline "
        "show, with fewer 2%", rare=True)
    sentinel = Option("", lambda o, v: v, "CELL", "gate",
        "cell that shows whether the machine changed",
        "id of a cell that does not contain the product (a fixed kernel): if it changed along "
        "with the whole suite, the machine has changed and nothing is compared", rare=True)
    allow_env = Option("no", read.flag, "", "gate",
        "also compare across drivers and clock settings",
        "also compare runs with other driver, framework and clock settings", flag=True, rare=True)
    noise = Option("none", read.noises, "NOISE[,NOISE...]", "noise",
        "load to measure under: cpu, disk, ...",
        "background load on this machine's CPU: also measure each test under it, alternating "
        "with the quiet test in each of --hwq-runs: cpu, network, disk, heavy, optimised, "
        "isolated, a description NAME.yaml, one that an installed package adds, or none")
    noise_dir = Option("", read.path, "DIR", "noise",
        "folder on a disk for the noise `disk`",
        "folder on the disk that the noise `disk` loads, such as that of your data; by default "
        "--hwq-dir. Its files of 1 GiB are removed afterwards", rare=True)
    fault = Option("", read.faults, "slower:PERCENT", "testing",
        "make every cell slower on purpose",
        "make every cell slower, to check that the gate fails: each kernel on a simulated "
        "device, elsewhere each launch, and the requests of a scenario's first tenant; records "
        "say so and are never stored as a baseline; repeatable", repeatable=True, rare=True)
    sim_noise = Option("", read.noise, "NAME=AMPLITUDE,...", "testing",
        "noise on a simulated device's kernels",
        "noise on a simulated device's kernels, seeded by --hwq-seed or seed=N: session, run "
        "and jitter, each a factor within 1 ± AMPLITUDE, such as run=0.05,jitter=0.1", rare=True)
    # fmt: on

    def __init__(
        self, source: Callable[[Option[Any]], tuple[str, str]] = by_default, **values: Any
    ) -> None:
        self._source, self._values = source, values

    def value_of(self, option: Option[Any]) -> Any:
        """Return an option's value; read its text when it is first asked for."""
        if option.field not in self._values:
            self._values[option.field] = option.parse(*self._source(option))
        return self._values[option.field]

    def as_dict(self) -> dict[str, Any]:
        """Return the values of all fields."""
        return {option.field: self.value_of(option) for option in OPTIONS}

    def scheduler_paths(self, folder: Path) -> SchedulerPaths:
        """Where schedulers find their files; paths are relative to ``folder``, pytest's root."""
        from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths

        root = None if self.xsched_root is None else folder / self.xsched_root
        return SchedulerPaths(root, tuple(folder / each for each in self.preloads))


OPTIONS: tuple[Option[Any], ...] = tuple(
    each for each in vars(Settings).values() if isinstance(each, Option)
)
BY_NAME = {option.name: option for option in OPTIONS}
