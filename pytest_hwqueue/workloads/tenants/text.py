"""Language models: an encoder over whole sequences, and one step of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_hwqueue.workloads.tenants.family import ModelFamily
from pytest_hwqueue.workloads.tenants.shapes import DecoderShape, EncoderShape, ModelSize

# Layers, hidden size and heads (Devlin et al., "BERT", 2018, section 3).
_BERT = {"base": (12, 768, 12), "large": (24, 1024, 16)}


class Bert(ModelFamily):
    """BERT's encoder, base or large, over whole sequences (tiny: hidden 32)."""

    identity = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    model_class = "AutoModel"
    configuration_class = "BertConfig"

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of BertConfig."""
        layers, hidden, heads = _BERT[self.variant]
        if size == "tiny":
            hidden, heads = 32, 2
        return {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden,
            "vocab_size": 30522 if size == "full" else 128,
            "attn_implementation": "sdpa",
        }

    def items(self, shape: EncoderShape) -> str:
        """Sequences, and how long they are."""
        return f"sequences of {shape.sequence_length} tokens"

    def forward(
        self, model: Any, batch: int, shape: EncoderShape, generator: torch.Generator
    ) -> Callable[[], torch.Tensor]:
        """Make random tokens, all attended to, and return the last layer's states."""
        places = (batch, shape.sequence_length)
        tokens = torch.randint(model.config.vocab_size, places, generator=generator)
        tokens = tokens.to(model.device)

        def run() -> torch.Tensor:
            states: torch.Tensor = model(input_ids=tokens).last_hidden_state
            return states

        return run


class Qwen3Decode(ModelFamily):
    """One greedy step of Qwen3-0.6B behind a context (tiny: four thin layers).

    Every request decodes the same token at the same position, so that all cost the same.
    """

    identity = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size",
    )  # fmt: skip
    model_class = "AutoModelForCausalLM"
    configuration_class = "Qwen3Config"

    def configuration(self, size: ModelSize) -> dict[str, Any]:
        """Return the arguments of Qwen3Config, from the published model's config.json."""
        full = size == "full"
        return {
            "num_hidden_layers": 28 if full else 4,
            "hidden_size": 1024 if full else 32,
            "num_attention_heads": 16 if full else 4,
            "num_key_value_heads": 8 if full else 2,
            "head_dim": 128 if full else 16,
            "intermediate_size": 3072 if full else 96,
            "vocab_size": 151936 if full else 128,
            "max_position_embeddings": 40960,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "tie_word_embeddings": True,
            "attn_implementation": "sdpa",
        }

    def items(self, shape: DecoderShape) -> str:
        """Tokens, and what stands before each."""
        return f"tokens behind a context of {shape.sequence_length}"

    def forward(
        self, model: Any, batch: int, shape: DecoderShape, generator: torch.Generator
    ) -> DecodeStep:
        """Make a context of random keys and values and return the step behind it."""
        return DecodeStep(model, batch, shape.sequence_length, generator)


class DecodeStep:
    """One token of each sequence through the model, and its most likely successor.

    Attributes:
        tokens: (batch, 1), what the step is given.
        next_tokens: (batch, 1), what it decodes; not fed back.
        cache: keys and values of the context.

    """

    def __init__(self, model: Any, batch: int, context: int, generator: torch.Generator) -> None:
        device = model.device
        tokens = torch.randint(model.config.vocab_size, (batch, 1), generator=generator)
        self.tokens = tokens.to(device)
        self.next_tokens = torch.empty_like(self.tokens)
        self.cache = StepCache(model, batch, context, generator)
        self._model = model
        self._position = torch.full((batch, 1), context, device=device)

    def __call__(self) -> torch.Tensor:
        """Return the logits, (batch, 1, vocabulary)."""
        logits: torch.Tensor = self._model(
            input_ids=self.tokens,
            position_ids=self._position,
            past_key_values=self.cache,
            use_cache=True,
            # The step sees the whole cache: there is no mask to make.
            attention_mask={"full_attention": None},
        ).logits
        torch.argmax(logits, dim=-1, out=self.next_tokens)
        return logits


class StepCache:
    """Keys and values of a context, and one slot behind it that each step writes anew.

    transformers' own StaticCache moves on with every step, and past its end a device asserts.

    Attributes:
        keys: per layer (batch, heads, context + 1, head size), the last slot the step's.
        values: likewise.

    """

    def __init__(self, model: Any, batch: int, context: int, generator: torch.Generator) -> None:
        config = model.config
        shape = (batch, config.num_key_value_heads, context + 1, config.head_dim)

        def random() -> list[torch.Tensor]:
            return [
                torch.randn(shape, generator=generator).to(model.device, model.dtype)
                for _ in range(config.num_hidden_layers)
            ]

        self._context = context
        self.keys = random()
        self.values = random()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens stand before the step, whatever the layer."""
        return self._context

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values of a layer; return the layer's whole cache."""
        self.keys[layer_idx][:, :, self._context :] = keys
        self.values[layer_idx][:, :, self._context :] = values
        return self.keys[layer_idx], self.values[layer_idx]
