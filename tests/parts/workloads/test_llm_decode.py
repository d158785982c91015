"""llm_decode: Qwen3-0.6B by default, and the tokens that transformers itself would decode."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.simulated.device import SimulatedDevice
from pytest_hwqueue.parts.workloads.inference.decoder import Decoder, DecoderParameters
from pytest_hwqueue.parts.workloads.inference.llm_decode import DecodeParameters, LlmDecode

from .cells import Run, make, simulated_timeline

pytest.importorskip("transformers")


def generated(model: Any, prompt: torch.Tensor, tokens: int) -> torch.Tensor:
    """What transformers decodes greedily behind a prompt (n,), with caches of its own."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: torch.Tensor = model.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return text[0, len(prompt) :]


def test_each_stream_decodes_what_transformers_decodes() -> None:
    with Run(make(LlmDecode, {"tokens": 8}), 3) as run:
        run.once()
        workload: Any = run.workload
        decoded = []
        for text in workload.texts:
            prompt = text[0, :16].clone()
            assert torch.equal(text[0, 16:], generated(workload.decoder.model, prompt, 8))
            decoded.append(tuple(text[0, 16:].tolist()))
    assert len(set(decoded)) == 3, "each stream has a sequence of its own"
    assert len({token for tokens in decoded for token in tokens}) > 4, "tokens depend on the text"


def test_full_model_is_qwen3_0_6b() -> None:
    device = SimulatedDevice("h200")
    with device.open_streams(1):
        model = Decoder(DecodeParameters(), device, 1, 1).model
        assert sum(weight.numel() for weight in model.parameters()) == 596_049_920
        assert model.dtype is torch.bfloat16
        assert (model.config.num_hidden_layers, model.config.tie_word_embeddings) == (28, True)


def test_first_sequence_is_prefilled_in_each_iteration() -> None:
    with Run(make(LlmDecode), 2) as run:
        caches = run.workload.caches  # type: ignore[attr-defined]
        for cache in caches:
            cache[:, :, :, :, :8].zero_()
        run.once()
        assert [bool(cache[:, :, :, :, :8].any()) for cache in caches] == [True, False]


def test_passes_over_caches_give_what_one_without_does() -> None:
    parameters = DecoderParameters(
        layers=2, hidden=32, heads=4, kv_heads=2, head_dim=16, inner=48, vocabulary=64,
        dtype="fp32",
    )  # fmt: skip
    decoder = Decoder(parameters, HostDevice(), 1, 12)
    texts = torch.randint(64, (3, 9), generator=torch.Generator().manual_seed(1))
    expected = decoder.plain(texts, 9)
    cache = decoder.new_cache(3, 12)
    parts = [slice(0, 4), *(slice(place, place + 1) for place in range(4, 9))]
    found = [decoder.behind(texts[:, part], cache, part.start) for part in parts]
    assert torch.allclose(torch.cat(found, dim=1), expected[:, 3:], atol=1e-5)
    # At positions that differ from text to text; what is masked does not count, whatever it is.
    cache.fill_(7.0)
    decoder.behind(texts[:, :6], cache, 0)
    where = torch.tensor([[2], [4], [6]]) + torch.arange(3)
    at = decoder.at(texts.gather(1, where), where, cache)
    wanted = expected.gather(1, where[:, :, None].expand(-1, -1, 64))
    assert torch.allclose(at, wanted, atol=1e-5)

    prompt = texts[0, :5]
    decoded = generated(decoder.model, prompt, 3)
    decoder.require_greedy("it", prompt, decoded)
    logits = decoder.plain(torch.cat([prompt, decoded])[None, :-1], 3)[0]
    for index in range(3):
        second = decoded.clone()
        second[index] = logits[index].topk(2).indices[1]
        with pytest.raises(CheckFailed, match=rf"it: decoded token {index} is"):
            decoder.require_greedy("it", prompt, second)


@pytest.mark.parametrize("streams", [1, 3, 16])
def test_timeline_holds_as_many_kernels_as_a_launch_queue_takes(streams: int) -> None:
    full = DecodeParameters()
    changed = LlmDecode(full).timeline_parameters(streams)
    workload = LlmDecode(full.model_copy(update=changed))
    kernels = len(simulated_timeline(workload, streams).kernels)
    assert changed["tokens"] == 2
    assert kernels <= 800 or changed["layers"] == 1
    assert kernels + 56 * 2 * streams > 800, "one layer more would be too many"
