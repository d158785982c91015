"""rag_pipeline: each stage's result is right, and a wrong one is noticed in its own stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_hwqueue.parts.workloads.inference.rag_pipeline import RagPipeline

from .cells import Run, make
from .test_llm_decode import generated

pytest.importorskip("transformers")


def test_answers_are_those_of_a_plain_pipeline() -> None:
    with Run(make(RagPipeline), 4) as run, torch.inference_mode():
        run.once()
        workload: Any = run.workload
        for document in (0, 17, 63):
            expected = workload.embedder(workload.documents[document][None])[0]
            assert torch.allclose(workload.index[document], expected, atol=1e-5)
        answers = []
        for query in workload.queries:
            vector = workload.embedder(query.tokens[None])[0]
            found = (workload.index @ vector).argsort(descending=True)[:10]
            assert query.found.tolist() == found.tolist()
            pairs = [torch.cat([query.tokens, workload.documents[document]]) for document in found]
            scores = torch.cat([workload.scorer(pair[None]) for pair in pairs])
            best = workload.documents[found[scores.argmax()]]
            prompt = torch.cat([best, query.tokens])
            answer = generated(workload.decoder.model, prompt, 3)
            assert query.text[0].tolist() == [*prompt.tolist(), *answer.tolist()]
            answers.append(tuple(query.text[0].tolist()))
        assert len(set(answers)) == len(answers), "queries differ"


def test_reranking_changes_the_order() -> None:
    changed = 0
    for seed in range(4):
        with Run(make(RagPipeline), 8, seed=seed) as run:
            run.once()
            workload: Any = run.workload
            changed += sum(int(query.scores.argmax()) != 0 for query in workload.queries)
    assert changed > 8, "of 16 queries, retrieval's first document is seldom the best"
