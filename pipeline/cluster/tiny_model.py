"""The tiny Qwen3-MoE model: made from a seed by the standard library alone, with the same bytes everywhere.

It is made in a second, and every rank's share of every matrix still moves the logits. vLLM's own dummy weights hardly
do that, since they repeat themselves in equal shards.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 20260101
VOCABULARY_SIZE = 512
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "dtype": "float32",
    "eos_token_id": 0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "mlp_only_layers": [],
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY_SIZE,
}
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
SYLLABLES = tuple(consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou")
SPACE = "Ġ"  # how byte-level tokenizers write a space


def write_model(into: Path) -> dict[str, str]:
    """Writes the model into the folder `into` (created); returns the sha256 of each file by name.

    config.json, generation_config.json, tokenizer.json, tokenizer_config.json, model.safetensors (float32, 3 MB).
    """
    into.mkdir(parents=True, exist_ok=True)
    tokens = _tokens()
    files = {
        "config.json": _json(CONFIG),
        "generation_config.json": _json({"bos_token_id": 0, "eos_token_id": 0, "do_sample": False}),
        "tokenizer.json": _json(_tokenizer(tokens)),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END_OF_TEXT,
                "pad_token": END_OF_TEXT,
                "model_max_length": 1024,
            }
        ),
        "model.safetensors": safetensors(weights(tokens)),
    }
    for name, content in files.items():
        (into / name).write_bytes(content)
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def weights(tokens: list[str]) -> dict[str, tuple[tuple[int, ...], array[float]]]:
    """Returns shape and values of every tensor, by the names of Hugging Face's Qwen3-MoE checkpoints."""
    rng = random.Random(SEED)
    return {name: (shape, _values(rng, name, shape, tokens)) for name, shape in _shapes()}


def safetensors(tensors: dict[str, tuple[tuple[int, ...], array[float]]]) -> bytes:
    """Returns the tensors in safetensors format: header length (u64, little endian), JSON header padded to 8, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (shape, values) in tensors.items():
        start = len(data)
        data += _little_endian(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, head, expert = CONFIG["hidden_size"], CONFIG["head_dim"], CONFIG["moe_intermediate_size"]
    query, key = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (VOCABULARY_SIZE, hidden)
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.self_attn.q_proj.weight", (query, hidden)
        yield f"{at}.self_attn.k_proj.weight", (key, hidden)
        yield f"{at}.self_attn.v_proj.weight", (key, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        yield f"{at}.self_attn.q_norm.weight", (head,)
        yield f"{at}.self_attn.k_norm.weight", (head,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.mlp.gate.weight", (CONFIG["num_experts"], hidden)
        for index in range(CONFIG["num_experts"]):
            yield f"{at}.mlp.experts.{index}.gate_proj.weight", (expert, hidden)
            yield f"{at}.mlp.experts.{index}.up_proj.weight", (expert, hidden)
            yield f"{at}.mlp.experts.{index}.down_proj.weight", (hidden, expert)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (VOCABULARY_SIZE, hidden)


def _values(rng: random.Random, name: str, shape: tuple[int, ...], tokens: list[str]) -> array[float]:
    if len(shape) == 1:
        return _uniform(rng, shape[0], 1.0, 0.1)
    if name == "lm_head.weight":
        rows = array("f")
        for token in range(shape[0]):
            # Syllables win nearly always, so that a completion can be read.
            spoken = token < len(tokens) and tokens[token].removeprefix(SPACE) in SYLLABLES
            rows += _uniform(rng, shape[1], 0.0, 0.8 if spoken else 0.02)
        return rows
    # About 1/sqrt(fan-in): every block adds about as much to the residual stream as it already holds.
    return _uniform(rng, shape[0] * shape[1], 0.0, 0.2)


def _uniform(rng: random.Random, count: int, middle: float, reach: float) -> array[float]:
    # random() alone is the same to the last bit on every machine; gauss() depends on the C library.
    return array("f", [middle + reach * (2.0 * rng.random() - 1.0) for _ in range(count)])


def _little_endian(values: array[float]) -> bytes:
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return values.tobytes()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _tokens() -> list[str]:
    words = [*SYLLABLES, *(SPACE + syllable for syllable in SYLLABLES), *_byte_letters()]
    # Shuffled, so that syllables lie in every rank's share of the vocabulary.
    random.Random(SEED).shuffle(words)
    return [*SPECIAL_TOKENS, *words]


def _byte_letters() -> list[str]:
    """Returns the letter by which byte-level BPE writes each byte: itself if it prints, else one from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    odd = (byte for byte in range(256) if byte not in plain)
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + index) for index, byte in enumerate(odd)}
    return [letters[byte] for byte in range(256)]


def _tokenizer(tokens: list[str]) -> dict[str, Any]:
    merges = [(s[0], s[1]) for s in SYLLABLES] + [(SPACE, s) for s in SYLLABLES]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }
