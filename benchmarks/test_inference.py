"""Inference of language models, and what surrounds it."""

from __future__ import annotations

import pytest

from pytest_hwqueue import Hwq

pytestmark = pytest.mark.inference


@pytest.mark.P1
@pytest.mark.hwq_workload("llm_decode")
def test_llm_decode(hwq: Hwq) -> None:
    """Token by token, a sequence on each stream."""
    hwq.run()


@pytest.mark.P1
@pytest.mark.hwq_workload("speculative_decode")
def test_speculative_decode(hwq: Hwq) -> None:
    """A small model drafts while a large one verifies."""
    hwq.run()


@pytest.mark.P1
@pytest.mark.hwq_workload("continuous_batch")
def test_continuous_batch(hwq: Hwq) -> None:
    """Prefill alongside decoding, in batches that requests join and leave."""
    hwq.run()


@pytest.mark.P2
@pytest.mark.hwq_workload("rag_pipeline")
def test_rag_pipeline(hwq: Hwq) -> None:
    """Embed, retrieve, rerank, generate: a group of streams for each stage."""
    hwq.run()
