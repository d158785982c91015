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


def test_index_holds_the_documents_embeddings() -> None:
    with Run(make(RagPipeline), 4) as run, torch.inference_mode():
        workload: Any = run.workload
        for document in (0, 17, 63):
            expected = workload._embedder(workload._documents[document][None])[0]
            assert torch.allclose(workload._index[document], expected, atol=1e-5)
        own = workload._index @ workload._index[17]
        assert int(own.argmax()) == 17


def test_a_stage_per_group_of_streams() -> None:
    for streams, sizes in ((4, [1, 1, 1, 1]), (8, [2, 2, 2, 2]), (7, [1, 2, 2, 2])):
        counts = Counts()
        with Run(make(RagPipeline), streams, counts.around) as run:
            run.once()
            queries = run.workload.work_per_iteration()["queries"]
        assert queries == 2 * sizes[-1]
        found = [
            {stream for stream, tag in counts.launches if tag == stage}
            for stage in RagPipeline.tags
        ]
        assert [len(each) for each in found] == sizes
        assert set.union(*found) == set(range(streams))
        assert all(counts.of_tag(stage) == queries for stage in RagPipeline.tags)


@pytest.mark.parametrize(
    ("wrong", "noticed"),
    [
        ("vector", "its vector"),
        ("found", "scores of its documents"),
        ("twice", "scores of its documents"),
        ("score", "reranked scores"),
        ("prompt", "its prompt is not"),
        ("answer", "its answer: decoded token"),
    ],
)
def test_wrong_stage_is_noticed(wrong: str, noticed: str) -> None:
    with Run(make(RagPipeline), 4) as run:
        workload: Any = run.workload
        workload.check(run.once)
        query = workload._queries[1]

        def spoiled() -> None:
            run.once()
            if wrong == "vector":
                query.vector[3] += 0.01
            elif wrong == "found":
                ranked = (workload._index @ query.vector).argsort(descending=True)
                query.found[9] = ranked[10]
            elif wrong == "twice":
                query.found[9] = query.found[8]
            elif wrong == "score":
                query.scores[4] += 0.01
            elif wrong == "prompt":
                query.text[0, 2] += 1
            else:
                query.text[0, -1] = (query.text[0, -1] + 1) % 512

        with pytest.raises(CheckFailed, match=f"query 1: {noticed}"):
            workload.check(spoiled)
