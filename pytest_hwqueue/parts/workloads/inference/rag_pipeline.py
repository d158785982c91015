"""Retrieval and generation in one pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator

from pytest_hwqueue.data.errors import CheckFailed
from pytest_hwqueue.parts.devices.protocol import Event, Stream
from pytest_hwqueue.parts.workloads.inference.decoder import (
    SMALL_DECODER,
    TINY_DECODER,
    Decoder,
    DecoderParameters,
    held_layers,
    spoil_tokens,
)
from pytest_hwqueue.parts.workloads.numerics import poison, require_close, set_precision
from pytest_hwqueue.parts.workloads.tenants.families import Bert
from pytest_hwqueue.parts.workloads.tenants.models import seeded_model
from pytest_hwqueue.parts.workloads.workload import PrimaryLatency, Setup, Workload

# The width at which the published standard deviation of weights, 0.02, belongs.
_PUBLISHED_HIDDEN = 768


class _Scorer(Bert):
    """BERT with a head that gives a text one score."""

    model_class: ClassVar[str] = "AutoModelForSequenceClassification"


_RETRIEVED = 10
# BERT's vocabulary; the language model knows these tokens as well.
_ENCODER_VOCABULARY = 30522
_EMBEDDED_AT_ONCE = 1024
# Relative error of the norm between two passes that a library may compute by different algorithms.
_TOLERANCES = {"fp32": 1e-4, "tf32": 2e-2, "bf16": 1e-1, "fp16": 2e-2}
# Scores of retrieval are products of a matrix and a vector in float32, which never use TF32.
_SCORE_TOLERANCE = 1e-5


class RagParameters(DecoderParameters):
    """The models, the documents, and the length of queries and answers.

    The language model has the width of Qwen3-0.6B and 6 of its 28 layers: with all of them, a
    thousand answers would take longer than a cell's measuring time.
    """

    layers: int = Field(6, ge=1, description="layers of the language model")
    encoder_layers: int = Field(6, ge=1, description="layers of the embedder and the cross-encoder")
    encoder_hidden: int = Field(384, ge=1, description="elements of a vector of the index")
    encoder_heads: int = Field(12, ge=1, description="heads of both; divide encoder_hidden")
    documents: int = Field(65536, ge=_RETRIEVED, description="documents in the index")
    document_tokens: int = Field(64, ge=1, description="tokens of a document")
    query_tokens: int = Field(32, ge=1, description="tokens of a query")
    generated: int = Field(16, ge=1, description="tokens of an answer")

    @field_validator("encoder_heads")
    @classmethod
    def _divide_hidden(cls, encoder_heads: int, info: ValidationInfo) -> int:
        hidden = info.data.get("encoder_hidden", encoder_heads)
        if hidden % encoder_heads:
            raise ValueError(f"must divide the {hidden} elements of a vector")
        return encoder_heads


@dataclass(frozen=True)
class _Query:
    """The data that stages pass on for one query; no other query uses it.

    Attributes:
        tokens: (query_tokens,)
        vector: (encoder_hidden,), from embed to retrieve.
        found: (10,) documents, from retrieve to rerank.
        scores: (10,) of the cross-encoder.
        text: (1, document_tokens + query_tokens + generated): the prompt, from rerank to generate,
            followed by the answer.

    """

    tokens: torch.Tensor
    vector: torch.Tensor
    found: torch.Tensor
    scores: torch.Tensor
    text: torch.Tensor


class RagPipeline(Workload, declared="rag_pipeline"):
    """A quarter of the streams for each stage; two queries in flight per stream of the last stage.

    A query's latency runs from when its embedding is ready to the end of its answer, including all
    waits behind other queries. The documents for an answer are chosen and looked up on the device,
    so the host decides nothing on values. The last stage takes longest: if streams cannot be
    divided evenly, no stage has more of them.
    """

    primary = PrimaryLatency("query", "request", "a query, from its embedding to its whole answer")
    parameters: RagParameters
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            **TINY_DECODER, "layers": 1,
            "encoder_layers": 1, "encoder_hidden": 32, "encoder_heads": 2,
            "documents": 64, "document_tokens": 8, "query_tokens": 4, "generated": 3,
        },
        "small": {
            **SMALL_DECODER, "layers": 4, "encoder_layers": 2, "documents": 4096, "generated": 8,
        },
        "full": {},
    }  # fmt: skip

    def setup(self, setup: Setup) -> None:
        """Create the models, draw documents and embed them, and draw queries."""
        parameters = self.parameters
        device, place = setup.device, setup.device.torch_device
        self._stages = _stages(setup.streams)
        vocabulary = min(parameters.vocabulary, _ENCODER_VOCABULARY)
        prompt = parameters.document_tokens + parameters.query_tokens
        hidden = parameters.encoder_hidden
        self._encoder, self._cross_encoder = (
            seeded_model(
                family, "full", seed, set_precision(parameters.dtype), place,
                num_hidden_layers=parameters.encoder_layers,
                hidden_size=hidden,
                num_attention_heads=parameters.encoder_heads,
                intermediate_size=4 * hidden,
                vocab_size=vocabulary,
                max_position_embeddings=prompt,
                # With 0.02 at any width, a narrow model would hardly look at its input.
                initializer_range=0.02 * (_PUBLISHED_HIDDEN / hidden) ** 0.5,
                num_labels=1,
            )
            for family, seed in ((Bert("base"), setup.seed), (_Scorer("base"), setup.seed + 1))
        )  # fmt: skip
        self.decoder = Decoder(parameters, device, setup.seed, prompt + parameters.generated)
        # The host's generator: the same texts on every device.
        generator = torch.Generator().manual_seed(setup.seed)
        shape = (parameters.documents, parameters.document_tokens)
        self.documents = torch.randint(vocabulary, shape, generator=generator).to(place)
        self.index = torch.cat(
            [self.embedder(part) for part in self.documents.split(_EMBEDDED_AT_ONCE)]
        )
        shape = (2 * len(self._stages[-1]), parameters.query_tokens)
        self.queries = [
            _Query(
                tokens=tokens,
                vector=torch.empty(parameters.encoder_hidden, device=place),
                found=torch.zeros(_RETRIEVED, dtype=torch.int64, device=place),
                scores=torch.empty(_RETRIEVED, device=place),
                text=torch.zeros(
                    (1, prompt + parameters.generated), dtype=torch.int64, device=place
                ),
            )
            for tokens in torch.randint(vocabulary, shape, generator=generator).to(place)
        ]
        self._caches = [
            self.decoder.new_cache(1, prompt + parameters.generated) for _ in self._stages[-1]
        ]

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue each query's stages, each after the previous one."""
        taken: dict[tuple[int, int], Event] = {}
        for number, query in enumerate(self.queries):
            cache = self._caches[number % len(self._caches)]
            launches: tuple[tuple[str, Callable[..., None], tuple[torch.Tensor, ...]], ...] = (
                ("embed", self._embed, (query.tokens, query.vector)),
                ("retrieve", self._retrieve, (query.vector, query.found)),
                ("rerank", self._rerank, (query.tokens, query.found, query.scores, query.text)),
                ("generate", self._generate, (query.text, cache)),
            )
            places = [stage[number % len(stage)] for stage in self._stages]
            done: list[Event] = []
            for place, (tag, function, arguments) in zip(places, launches, strict=True):
                stream = streams[place]
                for event in done[-1:]:
                    stream.wait(event)
                stream.launch(function, *arguments, tag=f"{tag}#{number}")
                done.append(stream.record())
            taken.update(zip(itertools.pairwise(places), done[1:], strict=True))
        # The next iteration begins behind the readers of what it writes over.
        for (place, _), event in taken.items():
            streams[place].wait(event)

    def work_per_iteration(self) -> dict[str, float]:
        """Return the number of answered queries."""
        return {"queries": float(len(self.queries))}

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare each stage's result with a plain one from the previous stage's result."""
        with torch.inference_mode():
            for query in self.queries:
                poison(query.vector, query.scores)
                spoil_tokens(query.found, self.parameters.documents)
                spoil_tokens(query.text, self.parameters.vocabulary)
            poison(*self._caches)
            run_once()
            for index, query in enumerate(self.queries):
                self._check_query(f"query {index}", query)

    def timeline_parameters(self, streams: int) -> dict[str, Any]:
        """Return one token each and few layers: an accelerator cannot hold many kernels."""
        # Of each query's three passes the encoders' have fewer kernels than a language model's.
        passes = 3 * 2 * len(_stages(streams)[-1])
        layers = held_layers(self.parameters.layers, passes)
        return {"generated": 1, "layers": layers, "encoder_layers": 1}

    def embedder(self, texts: torch.Tensor) -> torch.Tensor:
        """Embed texts (batch, tokens): the mean of their last states, of unit length, in fp32."""
        states: torch.Tensor = self._encoder(input_ids=texts).last_hidden_state
        return torch.nn.functional.normalize(states.float().mean(dim=1), dim=-1)

    def scorer(self, texts: torch.Tensor) -> torch.Tensor:
        """Score texts (batch, tokens), each a query and a document, in fp32."""
        scores: torch.Tensor = self._cross_encoder(input_ids=texts).logits
        return scores[:, 0].float()

    def _embed(self, tokens: torch.Tensor, vector: torch.Tensor) -> None:
        vector.copy_(self.embedder(tokens[None])[0])

    def _retrieve(self, vector: torch.Tensor, found: torch.Tensor) -> None:
        scores = torch.mv(self.index, vector)
        found.copy_(scores.topk(_RETRIEVED).indices)

    def _rerank(
        self, tokens: torch.Tensor, found: torch.Tensor, scores: torch.Tensor, text: torch.Tensor
    ) -> None:
        """Score the documents with the query, and put the best before it as a prompt."""
        documents = self.documents.index_select(0, found)
        scores.copy_(self.scorer(self._pairs(tokens, documents)))
        best = documents.index_select(0, scores.argmax(dim=0, keepdim=True))
        end = self.parameters.document_tokens
        text[:, :end].copy_(best)
        text[0, end : end + len(tokens)].copy_(tokens)

    def _generate(self, text: torch.Tensor, cache: torch.Tensor) -> None:
        """Run the prompt, then decode token after token."""
        end = text.shape[1]
        bounds = [0, *range(end - self.parameters.generated, end)]
        for start, position in itertools.pairwise(bounds):
            self.decoder.decode(text, cache, start, position)

    @staticmethod
    def _pairs(tokens: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens.expand(len(documents), -1), documents], dim=1)

    def _check_query(self, what: str, query: _Query) -> None:
        tolerance = _TOLERANCES[self.parameters.dtype]
        expected = self.embedder(query.tokens[None])[0]
        require_close(f"{what}: its vector", query.vector, expected, tolerance)
        scores = self.index.double() @ query.vector.double()
        # Ranks may change places within the rounding of a score, so their scores are compared.
        best = scores.topk(_RETRIEVED).values
        require_close(
            f"{what}: scores of its documents", scores[query.found], best, _SCORE_TOLERANCE
        )
        if len(query.found.unique()) != _RETRIEVED:
            raise CheckFailed(f"{what}: a document was retrieved twice: {query.found.tolist()}")
        documents = self.documents[query.found]
        expected = self.scorer(self._pairs(query.tokens, documents))
        require_close(f"{what}: reranked scores", query.scores, expected, tolerance)
        prompt = torch.cat([documents[query.scores.argmax()], query.tokens])
        text = query.text[0]
        if not torch.equal(text[: len(prompt)], prompt):
            raise CheckFailed(f"{what}: its prompt is not the best document and the query")
        self.decoder.require_greedy(f"{what}: its answer", prompt, text[len(prompt) :])


def _stages(streams: int) -> list[range]:
    """Return which streams embed, retrieve, rerank and generate."""
    bounds = [stage * streams // 4 for stage in range(5)]
    return [range(first, end) for first, end in itertools.pairwise(bounds)]
