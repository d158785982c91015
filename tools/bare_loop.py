"""A plain torch loop beside a tenant of the same model: what the tenant's loop adds, as Markdown.

    python -m tools.bare_loop MODEL [MODEL ...] [--batch N] [--arrival "constant: 20/s"]

Each model runs in fresh processes, in turns: a loop as one writes it by hand (``model(inputs)``,
then ``torch.cuda.synchronize()``; on the default stream, timed from the call) and a scenario's only
tenant. Both have the same seeded weights, inputs, numeric format and arrivals. A column compares
the tenant with the loop, and one the loop of each further model with that of the first: so a
difference between two harnesses falls into what the model is (transformers' ResNet or
torchvision's), and what the loop adds. Quantiles are compared within a round, as means over rounds
with a 95 % interval; the target is a P50 within 2 %. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.data.document.notes import Notes
from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.latency import LatencySummary, summarise_latency
from pytest_hwqueue.data.metrics.numbers import figure, percent, printed
from pytest_hwqueue.data.noise_names import NONE
from pytest_hwqueue.data.records.plan import Colocation, Tenant
from pytest_hwqueue.engine.tenants.arrivals import parse_arrival, schedule
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.judge.losses import paired_losses
from pytest_hwqueue.parts.devices.kinds import choose_devices, open_device
from pytest_hwqueue.parts.devices.lease import lease
from pytest_hwqueue.parts.schedulers.syntax import open_scheduler
from pytest_hwqueue.parts.workloads.tenants.shapes import find_model, missing_package, model_shape
from tools.noise_table import print_table

_TARGET = 0.02
# As in a session, a window whose load generator was late is measured again.
_ATTEMPTS = 3
_NAME = "only"
_PERCENTILES = ("p50", "p99")
_HEAD = (
    "model", "n a round", "loop, P50 ms", "loop, P99 ms", "tenant, P50 ms", "tenant, P99 ms",
    "tenant's P50 longer [95 %]", "P99 longer [95 %]", "P50 within 2 %",
    "loop's P50 longer than the first's [95 %]",
)  # fmt: skip

# By model and side, the summary of each round.
_Rounds = Mapping[tuple[str, str], Sequence[LatencySummary]]


def main() -> None:
    """Measure in turns and print the table."""
    given = _arguments()
    if given.samples is not None:
        _loop_by_hand(given.models[0], given)
        return
    try:
        for model in given.models:
            find_model(model)
        if missing := missing_package(given.models):
            raise HwqError(missing)
        parse_arrival(given.arrival, Path())
        rounds: dict[tuple[str, str], list[LatencySummary]] = {}
        for number in range(given.rounds):
            turns = [(model, side) for model in given.models for side in ("loop", "tenant")]
            for model, side in turns if number % 2 == 0 else reversed(turns):
                measure = _loop if side == "loop" else _tenant
                summary = summarise_latency(measure(model, given, number))
                rounds.setdefault((model, side), []).append(summary)
                # All of it takes minutes: what was measured stands here if the rest is cut off.
                print(
                    f"round {number + 1} of {given.rounds}: {model}, {side}: n {summary.n:,}, "
                    f"P50 {_middle([summary], 'p50')}, P99 {_middle([summary], 'p99')} ms",
                    file=sys.stderr,
                    flush=True,
                )
    except HwqError as error:
        sys.exit(str(error))
    print(f"{given.device}, batch {given.batch}, {given.arrival}, {given.rounds} rounds\n")
    rows, notes = table(given.models, rounds)
    print_table(_HEAD, rows, notes.lines(len(rows)))


def table(models: Sequence[str], rounds: _Rounds) -> tuple[list[list[str]], Notes]:
    """Return a row for each model, and why figures are missing."""
    notes, rows = Notes(), []
    for model in models:
        loop, tenant = rounds[model, "loop"], rounds[model, "tenant"]
        added = {name: _longer(loop, tenant, name) for name in _PERCENTILES}
        than_first = _longer(rounds[models[0], "loop"], loop, "p50")
        for name, estimate in added.items():
            notes.note(estimate, f"tenant's {name.upper()} longer", model)
        rows.append(
            [
                model,
                f"{min(each.n for each in (*loop, *tenant)):,}",
                *(_middle(side, name) for side in (loop, tenant) for name in _PERCENTILES),
                *(str(printed(added[name], percent)) for name in _PERCENTILES),
                _within(added["p50"]),
                "" if model == models[0] else str(printed(than_first, percent)),
            ]
        )
    return rows, notes


def _longer(
    before: Sequence[LatencySummary], after: Sequence[LatencySummary], name: str
) -> Estimate:
    values = {
        side: [getattr(each, name).value for each in found]
        for side, found in ((NONE, before), ("after", after))
    }
    found = paired_losses(values, higher_is_worse=True)["after"]
    if found.n:
        return found
    # Each round has the same number of requests, more or less, and lacks the same.
    return found.without_value(getattr(before[0], name).refused)


def _middle(side: Sequence[LatencySummary], name: str) -> str:
    known = [value for each in side if (value := getattr(each, name).value) is not None]
    return str(figure(statistics.median(known))) if known else "—"


def _within(added: Estimate) -> str:
    if added.interval is None:
        return "undecided"
    low, high = added.interval
    if low >= -_TARGET and high <= _TARGET:
        return "yes"
    return "no" if low > _TARGET or high < -_TARGET else "undecided"


def _loop(model: str, given: argparse.Namespace, number: int) -> Sequence[int]:
    """Run the loop by hand in a process of its own; return its latencies in ns."""
    with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
        file = Path(folder) / "samples.json"
        options = (f"--{name}={getattr(given, name)}" for name in _SHARED)
        command = [sys.executable, "-m", "tools.bare_loop", model, *options]
        done = subprocess.run(
            [*command, f"--seed={given.seed + number}", f"--samples={file}"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise HwqError(f"{model}: the loop by hand ended with {done.returncode}: {done.stderr}")
        samples: list[int] = json.loads(file.read_text(encoding="utf-8"))
    return samples


def _tenant(model: str, given: argparse.Namespace, number: int) -> Sequence[int]:
    """Run the tenant alone; return its latencies in ns, in order of arrival."""
    plan = _plan(model, given, given.seed + number)
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="hwq-") as folder:
            record = TenantSet(open_scheduler("native"), lambda *_: None, Path(folder)).once(plan)
        if record.status == "ok":
            return record.tenants[0].latency_ns
        if record.status != "invalid":
            break
    raise HwqError(f"{model}: its tenant is {record.status}: {record.reason}")


def _plan(model: str, given: argparse.Namespace, seed: int) -> Colocation:
    tenant = Tenant(
        _NAME, model=model, batch=given.batch, arrival=given.arrival, size=given.size,
        parameters={"dtype": given.dtype},
    )  # fmt: skip
    return Colocation(
        "bare_loop", (tenant,), duration_s=given.seconds, warmup_s=given.warmup, seed=seed,
        device=given.device,
    )  # fmt: skip


def _loop_by_hand(model: str, given: argparse.Namespace) -> None:
    """Write the latencies of a plain torch loop in ns."""
    import torch

    from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
    from pytest_hwqueue.parts.workloads.numerics import set_precision
    from pytest_hwqueue.parts.workloads.tenants.models import seeded_model
    from pytest_hwqueue.parts.workloads.tenants.shapes import model_family

    device = open_device(given.device)
    place, family = device.torch_device, model_family(model)
    size = given.size
    if size == "auto":
        size = "tiny" if device.capabilities.host else "full"
    shape = model_shape(model, size, {"dtype": given.dtype})
    if device.capabilities.host:
        # As a stream of the host's.
        torch.set_num_threads(1)
    net = seeded_model(family, size, given.seed, TORCH_TYPES[shape.dtype]).to(place)
    if shape.dtype in ("fp32", "tf32"):
        set_precision(shape.dtype)
    generator = torch.Generator().manual_seed(given.seed)
    run = family.forward(net, given.batch, shape, generator)
    due_ns = schedule(
        parse_arrival(given.arrival, Path()),
        _plan(model, given, given.seed).tenant_seed(_NAME),
        round(given.seconds * 1e9),
    )

    def request() -> int:
        begin_ns = time.perf_counter_ns()
        run()
        if place.type != "cpu":
            torch.cuda.synchronize(place)
        return time.perf_counter_ns() - begin_ns

    samples = []
    with lease(str(device.lease_key), on_wait=print), torch.inference_mode():
        warm_ns = time.perf_counter_ns() + round(given.warmup * 1e9)
        while time.perf_counter_ns() < warm_ns:
            request()
        begin_ns = time.perf_counter_ns()
        if due_ns is None:
            while time.perf_counter_ns() < begin_ns + given.seconds * 1e9:
                samples.append(request())
        for when_ns in due_ns or ():
            time.sleep(max(0, begin_ns + when_ns - time.perf_counter_ns()) / 1e9)
            samples.append(request())
    given.samples.write_text(json.dumps(samples), encoding="utf-8")


_SHARED = ("device", "batch", "size", "dtype", "arrival", "seconds", "warmup")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="such as resnet18")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", choices=("auto", "tiny", "full"), default="auto")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--arrival", default="closed", help='or "constant: 20/s"')
    parser.add_argument("--seconds", type=float, default=20.0, help="of a side in a round")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    # The loop by hand alone, in the process that the tool starts for it.
    parser.add_argument("--samples", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.batch < 1 or given.rounds < 1 or given.seconds <= 0:
        parser.error("--batch and --rounds are at least 1, --seconds is above 0")
    given.device = choose_devices(given.device)[0].label
    return given


if __name__ == "__main__":
    main()
