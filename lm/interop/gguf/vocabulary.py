"""Tokenizers as GGUF metadata: byte-level BPE with a pre-tokenizer of llama.cpp, or SentencePiece BPE.

SentencePiece BPE (such as Llama 2's) has scores instead of merge rules there: llama.cpp merges neighbouring pieces into
the best-scored piece, whichever pair spells it. Merge rules are equivalent if they have every such pair, and all pairs
of one piece before any of the next, as rules derived from scores do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm.errors import UsageError
from lm.interop.hugging_face.families import QWEN2
from lm.tokenizer.tokenizer import MergeRules, Tokenizer, decode_byte_fallback

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False}


def _split(pattern: str | None) -> list[Mapping[str, Any]]:
    words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [words, {**_BYTES, "use_regex": False}]


_PRE_TOKENIZERS: Mapping[str, list[Mapping[str, Any]]] = {
    "gpt-2": [{**_BYTES, "use_regex": True}],
    "smollm": [{"type": "Digits", "individual_digits": True}, {**_BYTES, "use_regex": True}],
    "qwen2": _split(QWEN2.pre_tokenizer_pattern),
    "llama-bpe": _split(_LLAMA3_WORDS),
}
"""llama.cpp's names of pre-tokenizers, and how `tokenizer.json` describes them, but for offsets."""
_IGNORES_MERGES = "llama-bpe"
"""The pre-tokenizer with which llama.cpp ignores merges for words in the vocabulary."""
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""GGUF token types."""


def build_vocabulary(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Return a vocabulary of the given size as GGUF metadata; IDs beyond the tokenizer get unused names.

    Raises:
        UsageError: llama.cpp has no such tokenizer; the message names the reason.
    """
    tokens = [tokenizer.token(index) or f"<unused {index}>" for index in range(size)]
    kinds = _token_kinds(tokenizer, size)
    if is_sentencepiece(tokenizer.description):
        own = build_sentencepiece_metadata(tokenizer, tokens, kinds)
    else:
        pre_tokenizer = _find_pre_tokenizer(tokenizer)
        own = {"model": "gpt2", "pre": pre_tokenizer, "merges": _merges(tokenizer), "token_type": kinds}
    if tokenizer.start_of_text is None or tokenizer.end_of_text is None:
        raise UsageError("llama.cpp needs a token that ends a text, and this tokenizer has none")
    settings = {
        **own,
        "tokens": tokens,
        "bos_token_id": tokenizer.start_of_text,
        "eos_token_id": tokenizer.end_of_text,
        "padding_token_id": tokenizer.end_of_text,
        "add_bos_token": True,  # as in training, and in `lm generate`
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in settings.items()}
    if (template := tokenizer.chat_template) is not None:
        metadata["tokenizer.chat_template"] = template.source
    if template is not None or len(tokenizer.ends) > 1:
        metadata["tokenizer.ggml.eot_token_id"] = tokenizer.stop_ids[0 if template else 1]
    return metadata


def _merges(tokenizer: Tokenizer) -> list[str]:
    """Return the merge rules; a dummy rule if there are none, as GGUF requires some."""
    if tokenizer.merge_rules:
        return [" ".join(rule) for rule in tokenizer.merge_rules.rules]
    assert tokenizer.end_of_text is not None
    return [" ".join([str(tokenizer.token(tokenizer.end_of_text))] * 2)]


def _token_kinds(tokenizer: Tokenizer, size: int) -> list[int]:
    added = {token["id"]: token["special"] for token in tokenizer.description["added_tokens"]}
    kinds = [_NORMAL if tokenizer.token(index) is not None else _UNUSED for index in range(size)]
    for index, is_special in added.items():
        kinds[index] = _CONTROL if is_special else _USER_DEFINED
    return kinds


def _find_pre_tokenizer(tokenizer: Tokenizer) -> str:
    """Return llama.cpp's name of the pre-tokenizer; UsageError if it has none."""
    description = tokenizer.description
    model, normalizer = description["model"], description["normalizer"] or {}
    splitter = description["pre_tokenizer"] or {}
    parts = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    described = [{key: value for key, value in part.items() if key != "trim_offsets"} for part in parts]
    if not model.get("merges"):  # no token is longer than a byte, however texts are split
        described = [{**described[-1], "use_regex": True}]
    name = next((name for name, known in _PRE_TOKENIZERS.items() if known == described), None)
    refused = {
        f"kind {tokenizer.kind}": model["type"] != "BPE",
        "tokens that do not spell bytes": not tokenizer.is_byte_level,
        f"normalizer {normalizer.get('type')}": normalizer.get("type", "NFC") != "NFC",
        "continuing_subword_prefix": model.get("merges") and tokenizer.merge_rules is None,
        "pre_tokenizer": name is None or model.get("ignore_merges", False) is not (name == _IGNORES_MERGES),
    }
    if problems := [problem for problem, is_there in refused.items() if is_there]:
        raise UsageError(f"llama.cpp has no counterpart of the tokenizer's {problems[0]}")
    return str(name)


_SPACE = "▁"
_REPLACED = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_UNKNOWN, _BYTE = 2, 6
"""GGUF token types."""


def is_sentencepiece(description: Mapping[str, Any]) -> bool:
    """Return whether a parsed `tokenizer.json` has byte fallback, as SentencePiece's BPE does."""
    model = description["model"]
    return model["type"] == "BPE" and bool(model["byte_fallback"])


def build_sentencepiece_metadata(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Return GGUF metadata of such a tokenizer, by key suffix.

    Args:
        tokens: of the vocabulary, by ID.
        kinds: GGUF token types.

    Raises:
        UsageError: llama.cpp would encode differently.
    """
    rules, unknown = tokenizer.merge_rules, tokenizer.description["model"]["unk_token"]
    missing = 256 - sum(decode_byte_fallback(token) is not None for token in tokens)
    if rules is None or missing or unknown not in rules.vocabulary:
        raise UsageError("llama.cpp takes pieces with rules, all bytes and a token for what is unknown, not without")
    special = {rules.vocabulary[unknown]: _UNKNOWN}
    special |= {index: _BYTE for index, token in enumerate(tokens) if decode_byte_fallback(token) is not None}
    return {
        "model": "llama",
        "pre": "default",
        "scores": _compute_scores(rules, len(tokens)),
        "token_type": [special.get(index, kind) for index, kind in enumerate(kinds)],
        "unknown_token_id": rules.vocabulary[unknown],
        "add_space_prefix": _begins_with_space(tokenizer.description),
    }


def _begins_with_space(description: Mapping[str, Any]) -> bool:
    """Return whether a space is prepended; UsageError if spaces become anything but `▁`."""
    normalizer, splitter = description["normalizer"] or {}, description["pre_tokenizer"]
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if splitter is None and parts == [_REPLACED]:
        return False
    if splitter is None and parts == [{"type": "Prepend", "prepend": _SPACE}, _REPLACED]:
        return True
    raise UsageError("llama.cpp has no counterpart of how the tokenizer handles spaces (normalizer, pre_tokenizer)")


def _compute_scores(rules: MergeRules, size: int) -> list[float]:
    """Return scores by the order of merge rules; pieces without a rule have the lowest."""
    order: dict[str, int] = {}
    last, refused = "", []
    for left, right in rules.rules:
        merged = left + right
        refused += [merged] if merged != last and merged in order else []
        order.setdefault(merged, len(order))
        last = merged
    pairs, whole = {(left, right) for left, right in rules.rules}, set(rules.whole)
    for token in [token for token, index in rules.vocabulary.items() if index not in whole]:
        splits = ((token[:index], token[index:]) for index in range(1, len(token)))
        if any(split not in pairs and all(part in rules.vocabulary for part in split) for split in splits):
            refused.append(token)
    if refused:
        raise UsageError(f"llama.cpp merges pieces by scores, and the rules for {refused[0]!r} do not follow any")
    scores = [-float(len(order))] * size
    for token, rank in order.items():
        scores[rules.vocabulary[token]] = -float(rank)
    return scores
