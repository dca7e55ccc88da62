"""SentencePiece's tokenizers, such as Llama 2's, as llama.cpp has them: pieces with scores in place of merge rules.

There, two pieces that stand side by side become the one that they spell, the best first, whichever two they are. Rules
say the same if they have every such pair, and all pairs of one piece before any of the next, as those do that were made
from such scores.
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
"""Kinds of tokens, by their numbers in the format."""


def is_sentencepiece(description: Mapping[str, Any]) -> bool:
    """Whether a tokenizer (its JSON, parsed) spells unknown characters as bytes, as SentencePiece's BPE does."""
    model = description["model"]
    return model["type"] == "BPE" and bool(model["byte_fallback"])


def build_sentencepiece_metadata(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """The settings of such a tokenizer, by the ends of their keys in a GGUF file.

    Args:
        tokenizer: one of pieces.
        tokens: of the vocabulary, by id.
        kinds: their numbers in the format, as those of any tokenizer.

    Raises:
        UsageError: llama.cpp would give other ids.
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
    """Whether a space is put before each text; UsageError if spaces become anything but `▁` besides."""
    normalizer, splitter = description["normalizer"] or {}, description["pre_tokenizer"]
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    if splitter is None and parts == [_REPLACED]:
        return False
    if splitter is None and parts == [{"type": "Prepend", "prepend": _SPACE}, _REPLACED]:
        return True
    raise UsageError("llama.cpp has no counterpart of what the tokenizer makes of spaces (normalizer, pre_tokenizer)")


def _compute_scores(rules: MergeRules, size: int) -> list[float]:
    """The better the earlier a piece's rules come; what no rule makes has the worst."""
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
