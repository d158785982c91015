"""A small Qwen3 with weights from a seed, served by `transformers serve`: nothing is downloaded.

    python qwen3.py --port 8000 [--device cuda]

Needs transformers[serving]. The model speaks nonsense at the speed of its shape. Its tokenizer is
made here too: one token for each of 256 bytes, so a prompt has as many tokens as bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_model(folder: Path, layers: int, hidden: int) -> None:
    """Write configuration, weights (seed 0) and tokenizer, as from_pretrained reads them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", chat_template=CHAT
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=vocabulary["<end>"],
        pad_token_id=vocabulary["<end>"],
    )
    model = Qwen3ForCausalLM(config).bfloat16()
    # Without an end token each answer has as many tokens as were asked for.
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)


def main() -> None:
    """Write the model once, and become its server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 128")
    options = parser.parse_args()
    name = f"qwen3-{options.layers}x{options.hidden}-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix=name, dir=folder.parent) as parts:
            whole = Path(parts) / "model"
            write_model(whole, options.layers, options.hidden)
            whole.rename(folder)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(options.port), "--device", options.device]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
