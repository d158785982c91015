"""rag_pipeline: each stage's result is right, and a wrong one is noticed in its own stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.errors import CheckFailed
from pytest_hwqueue.workloads.inference.rag_pipeline import RagPipeline

from .cells import Counts, Run, make
from .test_llm_decode import generated

pytest.importorskip("transformers")


def test_answers_are_those_of_a_plain_pipeline() -> None:
    with Run(make(RagPipeline), 4) as run, torch.inference_mode():
        run.once()
        workload: Any = run.workload
        for document in (0, 17, 63):
            expected = workload._embedder(workload._documents[document][None])[0]
            assert torch.allclose(workload._index[document], expected, atol=1e-5)
        answers = []
        for query in workload._queries:
            vector = workload._embedder(query.tokens[None])[0]
            found = (workload._index @ vector).argsort(descending=True)[:10]
            assert query.found.tolist() == found.tolist()
            pairs = [torch.cat([query.tokens, workload._documents[document]]) for document in found]
            scores = torch.cat([workload._scorer(pair[None]) for pair in pairs])
            best = workload._documents[found[scores.argmax()]]
            prompt = torch.cat([best, query.tokens])
            answer = generated(workload._decoder.model, prompt, 3)
            assert query.text[0].tolist() == [*prompt.tolist(), *answer.tolist()]
            answers.append(tuple(query.text[0].tolist()))
        assert len(set(answers)) == len(answers), "queries differ"


def test_reranking_changes_the_order() -> None:
    changed = 0
    for seed in range(4):
        with Run(make(RagPipeline), 8, seed=seed) as run:
            run.once()
            workload: Any = run.workload
            changed += sum(int(query.scores.argmax()) != 0 for query in workload._queries)
    assert changed > 8, "of 16 queries, retrieval's first document is seldom the best"


@pytest.mark.parametrize(
    ("streams", "sizes"), [(4, [1, 1, 1, 1]), (8, [2, 2, 2, 2]), (7, [1, 2, 2, 2])]
)
def test_a_stage_per_group_of_streams(streams: int, sizes: list[int]) -> None:
    counts = Counts()
    with Run(make(RagPipeline), streams, counts.around) as run:
        run.once()
    found = [counts.streams_of(stage) for stage in RagPipeline.tags]
    assert [len(each) for each in found] == sizes
    assert set.union(*found) == set(range(streams))
    assert all(counts.of_tag(stage) == 2 * sizes[-1] for stage in RagPipeline.tags)


def test_wrong_stage_is_noticed() -> None:
    with Run(make(RagPipeline), 4) as run:
        workload: Any = run.workload
        query = workload._queries[1]

        def behind() -> None:
            ranked = (workload._index @ query.vector).argsort(descending=True)
            query.found[9] = ranked[10]

        for spoil, noticed in (
            (lambda: query.vector[3].add_(0.01), "its vector"),
            (behind, "scores of its documents"),
            (lambda: query.found[9].copy_(query.found[8]), "scores of its documents"),
            (lambda: query.scores[4].add_(0.01), "reranked scores"),
            (lambda: query.text[0, 2].add_(1), "its prompt is not"),
            (lambda: query.text[0, -1].add_(1).remainder_(512), "its answer: decoded token"),
        ):

            def spoiled(spoil: Any = spoil) -> None:
                run.once()
                spoil()

            with pytest.raises(CheckFailed, match=f"query 1: {noticed}"):
                workload.check(spoiled)
            workload.check(run.once)
