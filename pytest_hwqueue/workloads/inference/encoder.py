"""BERT with seeded weights, as an embedder of texts and as a cross-encoder that scores pairs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.workloads.inference.placing import placed_model
from pytest_hwqueue.workloads.matmul import MatmulType
from pytest_hwqueue.workloads.tenants.shapes import ModelSize
from pytest_hwqueue.workloads.tenants.text import Bert

# The width at which the published standard deviation of weights, 0.02, belongs.
_PUBLISHED_HIDDEN = 768


class _ShapedBert(Bert):
    """BERT in a shape of the caller's choice."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__("base")
        self._shape = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "vocab_size": vocabulary,
            "max_position_embeddings": length,
            # With 0.02 at any width, a narrow model would hardly look at its input.
            "initializer_range": 0.02 * (_PUBLISHED_HIDDEN / hidden) ** 0.5,
        }

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of BertConfig: base's, and the caller's shape."""
        return {**super().configuration("full"), **self._shape, "num_labels": 1}


class _ShapedScorer(_ShapedBert):
    """The same, with a head that gives a text one score."""

    model_class: ClassVar[str] = "AutoModelForSequenceClassification"


class Encoder:
    """Embeds texts: the mean of their last states, of unit length, always in float32."""

    _family: type[_ShapedBert] = _ShapedBert

    def __init__(
        self,
        shape: dict[str, int],
        dtype: MatmulType,
        device: Device,
        seed: int,
    ) -> None:
        """Create the model on its device; ``shape`` holds the arguments of `_ShapedBert`."""
        self._model = placed_model(self._family(**shape), dtype, device, seed)

    def __call__(self, texts: torch.Tensor) -> torch.Tensor:
        """Return (batch, hidden) of texts (batch, tokens)."""
        states: torch.Tensor = self._model(input_ids=texts).last_hidden_state
        return torch.nn.functional.normalize(states.float().mean(dim=1), dim=-1)


class CrossEncoder(Encoder):
    """Scores pairs, each a query and a document in one text, in float32."""

    _family = _ShapedScorer

    def __call__(self, texts: torch.Tensor) -> torch.Tensor:
        """Return (batch,) of texts (batch, tokens)."""
        scores: torch.Tensor = self._model(input_ids=texts).logits
        return scores[:, 0].float()
