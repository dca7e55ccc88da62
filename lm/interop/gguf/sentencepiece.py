"""SentencePiece BPE (such as Llama 2's) for llama.cpp: scores instead of merge rules.

llama.cpp merges neighbouring pieces into the best-scored piece, whichever pair spells it. Merge rules are equivalent if
they have every such pair, and all pairs of one piece before any of the next, as rules derived from scores do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm.errors import UsageError
from lm.tokenizer.byte_tokens import decode_byte_fallback
from lm.tokenizer.tokenizer import MergeRules, Tokenizer

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
        tokenizer: a SentencePiece BPE.
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
    raise UsageError("llama.cpp has no counterpart of what the tokenizer makes of spaces (normalizer, pre_tokenizer)")


def _compute_scores(rules: MergeRules, size: int) -> list[float]:
    """Return scores by the order of merge rules; pieces without a rule have the lowest."""
    order: dict[str, int] = {}
    last = None
    for left, right in rules.rules:
        if (made := left + right) != last and made in order:
            raise _unsupported_merges(made)
        order.setdefault(made, len(order))
        last = made
    pairs, whole = {(left, right) for left, right in rules.rules}, set(rules.whole)
    ordinary = [token for token, index in rules.vocabulary.items() if index not in whole]
    for token in ordinary:
        if any(pair not in pairs and all(part in rules.vocabulary for part in pair) for pair in _split_pairs(token)):
            raise _unsupported_merges(token)
    scores = [-float(len(order))] * size
    for token, rank in order.items():
        scores[rules.vocabulary[token]] = -float(rank)
    return scores


def _split_pairs(token: str) -> Iterable[tuple[str, str]]:
    return ((token[:place], token[place:]) for place in range(1, len(token)))


def _unsupported_merges(token: str) -> UsageError:
    return UsageError(f"llama.cpp merges pieces by scores, and the tokenizer's rules for {token!r} do not follow any")
