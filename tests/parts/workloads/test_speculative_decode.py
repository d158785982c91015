"""speculative_decode: the large model's greedy tokens, and acceptance that is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.inference.speculative_decode import SpeculativeDecode
from pytest_hwqueue.parts.workloads.workload import Setup

from .cells import WAIT, Counts, Run, make

pytest.importorskip("transformers")

DEEP = {"draft_tokens": 3, "rounds": 5}


def best(decoder: Any, text: torch.Tensor) -> int:
    """The likeliest token behind a text (n,), by a plain pass."""
    return int(decoder.plain(text[None], 1)[0, 0].argmax())


def decoded_plainly(workload: Any, sequence: Any) -> tuple[list[int], int]:
    """Tokens and accepted drafts, by plain passes and decisions of the host."""
    parameters = workload.parameters
    text = sequence.text[: parameters.context].tolist()
    accepted = 0
    for _ in range(parameters.rounds):
        drafts: list[int] = []
        for _ in range(parameters.draft_tokens):
            drafts.append(best(workload._small, torch.tensor(text + drafts)))
        for draft in [*drafts, None]:
            token = best(workload._large, torch.tensor(text))
            text.append(token)
            if token != draft:
                break
            accepted += 1
    return text, accepted


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_texts_and_acceptance_are_those_of_plain_speculation(seed: int) -> None:
    with Run(make(SpeculativeDecode, DEEP), 4, seed=seed) as run:
        workload: Any = run.workload
        before = workload.work_per_iteration()
        run.once()
        total = 0
        with torch.inference_mode():
            for sequence in workload.sequences:
                # All its tokens are the large model's greedy ones.
                text, accepted = decoded_plainly(workload, sequence)
                assert sequence.text[: int(sequence.length)].tolist() == text
                assert int(sequence.accepted) == accepted
                total += accepted
        rounds = 5 * len(workload.sequences)
        work = workload.work_per_iteration()
        assert work == {"accepted tokens": total + rounds, "verifications": rounds}
        assert work == before, "the counters are right before the first iteration as well"
        assert 0 < total < 3 * rounds, "the seed shows both outcomes"


def test_models_that_disagree_accept_fewer() -> None:
    accepted = []
    for divergence in (0, 0.1, 5.0):
        with Run(make(SpeculativeDecode, {**DEEP, "divergence": divergence}), 8) as run:
            run.workload.check(run.once)
            work = run.workload.work_per_iteration()
            accepted.append(work["accepted tokens"])
            # With none, the models agree on every draft, and each round adds one token more.
            assert divergence or work["accepted tokens"] == 4 * work["verifications"]
    assert accepted[0] > accepted[1] > 1.5 * accepted[2]


class Credulous(SpeculativeDecode):
    """Accepts every draft, once it is told to."""

    believes = False

    def _accept(self, text: Any, length: Any, drafts: Any, found: Any, count: Any) -> None:
        before = length + len(drafts), count + len(drafts)
        super()._accept(text, length, drafts, found, count)
        if self.believes:
            length.copy_(before[0] + 1)
            count.copy_(before[1])


def test_accepting_every_draft_is_noticed() -> None:
    workload: Any = make(Credulous, DEEP)
    with Run(workload, 2) as run:
        run.workload.check(run.once)
        workload.believes = True
        with pytest.raises(CheckFailed, match="sequence 0"):
            run.workload.check(run.once)


def test_sequences_take_turns_on_streams_that_draft_and_streams_that_verify() -> None:
    counts = Counts()
    with Run(make(SpeculativeDecode, {"rounds": 3}), 2, counts.around) as run:
        run.once()
    log = [(stream, what) for stream, what in counts.log if "#" in what or what == WAIT]
    # Both first drafts stand on the first stream before it waits for a verification.
    on_first = [what for stream, what in log if stream == 0]
    assert on_first[:5] == ["#0.0", "#1.0", "draft#0.0", "draft#1.0", WAIT]
    # Each round begins where the last one was verified.
    assert [each for each in log if each[1].partition("#")[2].startswith("1.")] == [
        (stream, tag)
        for number in range(3)
        for stream, tag in (
            (1 if number else 0, f"#1.{number}"),
            (0, f"draft#1.{number}"),
            (1, f"verify#1.{number}"),
        )
    ]
    # Behind the verification nothing is waited for before the next round begins.
    on_second = [what for stream, what in log if stream == 1]
    assert on_second[on_second.index("verify#1.0") + 1] == "#1.1"


def test_without_values_acceptance_is_drawn_from_the_seed() -> None:
    work = []
    for seed in (1, 1, 2):
        device = SimulatedDevice("h200")
        workload: Any = make(SpeculativeDecode, {"rounds": 2})
        assert workload.decisions_drawn == ()
        with device.open_streams(4) as pool:
            workload.setup(Setup(device, 4, seed))
            assert workload.decisions_drawn == ("accepted tokens",)
            workload.iterate(pool.streams)
            pool.synchronize()
        assert workload.work_per_iteration() == workload.work_per_iteration()
        work.append(workload.work_per_iteration()["accepted tokens"])
    assert work[0] == work[1]
    assert len(set(work)) > 1
    assert all(6 <= tokens <= 18 for tokens in work)
