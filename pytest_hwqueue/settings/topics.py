"""Options by topic, each in one line: what `pytest --help` has room for, and what it leaves out.

`hwq help TOPIC` prints the long words, which stand in the table of options.
"""

from __future__ import annotations


class Topic:
    """Options that belong together, by name, with one line each.

    ``common`` ones are listed by `pytest --help`; of ``rare`` ones and testing aids only
    `hwq help` tells.
    """

    # As for options, every pytest session pays for these.
    def __init__(
        self, name: str, title: str, common: dict[str, str], rare: dict[str, str] | None = None
    ) -> None:
        self.name, self.title = name, title
        self.common, self.rare = common, rare or {}


TOPICS = (
    Topic("streams", "devices, streams, and how work reaches the queues", {
        "device": "what to measure: cpu, cuda[:N], all, sim:h200",
        "streams": "concurrent streams: a count, or a list",
        "dispatch": "how kernels are launched: eager, graph",
        "ranks": "processes that run collectives together",
    }, {
        "sync-mode": "when the host waits for the device",
    }),
    Topic("scheduler", "scheduler modes, and where they are installed", {
        "scheduler": "modes to measure under: mps, xsched, ...",
    }, {
        "xsched-root": "folder in which XSched is installed",
        "preloads": "folders that describe schedulers preload:NAME",
    }),
    Topic("workloads", "what is run: selection, size, parameters", {
        "workload": "only benchmarks of these workloads",
        "priority": "only benchmarks with these marks, such as P0",
        "size": "problem size: tiny, small, full",
        "param": "set a workload's parameter; repeatable",
        "seed": "seed of random choices and input data",
    }, {
        "weights": "folder with the weights of a scenario's models",
    }),
    Topic("samples", "how much is measured, how often, and for how long", {
        "samples": "samples of each cell; P99 needs 368",
        "iterations": "measured iterations of each cell",
        "max-time": "maximum measuring time of a cell, in seconds",
        "timeout": "total time a cell may take, in seconds",
        "budget": "time the session may take, such as 10min",
        "runs": "fresh processes that measure each cell",
        "isolation": "where cells run: in a worker process, or none",
        "lease-timeout": "how long to wait for a device in use",
    }, {
        "warmup": "minimum warm-up iterations",
    }),
    Topic("files", "records, reports and traces", {
        "dir": "folder for records",
        "json": "write the session's records to one file",
        "markdown": "write figures and verdicts as Markdown",
        "report": "write an HTML page to look at",
        "profile": "write a trace of each cell, for Perfetto",
    }, {
        "profile-dir": "folder for the traces of --hwq-profile",
        "commit": "commit under test, where git cannot be asked",
    }),
    Topic("causes", "why the slowest iterations are slow", {
        "causes": "when to explain: failing, always, never",
    }),
    Topic("baselines", "runs that are stored, and what is compared with them", {
        "save": "store the runs as baseline NAME",
        "compare": "fail cells that are worse than a baseline",
        "against": "fail cells that are worse than a commit",
        "baselines": "folder of the stored baselines",
    }, {
        "save-records": "with --hwq-save, also keep whole records",
        "pairs": "runs of each version for --hwq-against",
    }),
    Topic("gate", "what a comparison calls a regression", {
        "fail-on": "figures to compare, such as p99,throughput",
        "detect": "the change that matters: a pass excludes it",
        "rate": "chance that unchanged code fails a session",
        "on-inconclusive": "looks worse, but not beyond doubt",
        "on-no-baseline": "the baseline lacks the cell",
        "on-incomparable": "measured under other conditions",
        "on-missing": "not measured, but in the baseline",
    }, {
        "min-effect": "no change below this is a regression",
        "tau": "how much sessions of unchanged code differ",
        "sentinel": "cell that shows whether the machine changed",
        "allow-env": "also compare across drivers and clock settings",
    }),
    Topic("noise", "background load on the CPU", {
        "noise": "load to measure under: cpu, disk, ...",
    }, {
        "noise-dir": "folder on a disk for the noise `disk`",
        "noise-size": "total size of its files",
    }),
    Topic("testing", "aids for testing the checks themselves", {}, {
        "fault": "plant a fault in every cell",
        "sim-noise": "noise on a simulated device's kernels",
    }),
)  # fmt: skip
"""In the order of help texts."""
