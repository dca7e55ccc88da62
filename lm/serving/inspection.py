"""What the server computes besides completions: scores, next tokens, attention, translations and blanks.

Each function is a job of a model's scheduler: it takes checked values and returns a JSON object.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.config.decoding import TranslationConfig
from lm.config.evaluation import PerplexityConfig
from lm.decoding.generator import Generator
from lm.decoding.mask_filling import MaskFiller
from lm.decoding.sampling import History, apply_filters
from lm.decoding.session import window_start
from lm.decoding.translation import Translation, Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import nan_logits_error
from lm.evaluation.scoring_windows import CausalWindowSplitter, resolve_window_sizes
from lm.evaluation.text_attention import compute_attention, compute_translation_attention
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.serving.api_errors import invalid
from lm.serving.models import ServedModel
from lm.text.records import Record
from lm.tokenizer.special_tokens import build_text_frame
from lm.tokenizer.tokenizer import Tokenizer

MAX_ATTENTION_VALUES = 1_500_000
"""Attention weights of a response."""
_ROWS = 256
"""Positions whose logits are ranked together."""


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token, with replacement characters for parts of characters."""
    return tokenizer.token_bytes(token).decode(errors="replace")


def tokenize(model: ServedModel, text: str) -> dict[str, Any]:
    """Return the tokens of a text with their byte offsets."""
    ids = model.tokenizer.encode(text)
    tokens = _locate(model, text, ids)
    return {"tokens": tokens, "count": len(tokens)}


def _locate(model: ServedModel, text: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens with their text and byte offsets."""
    if not ids:
        return []
    ends = model.offsets.ends(Record.of_text(text), np.array(ids)).tolist()
    return [
        {"id": token, "text": token_text(model.tokenizer, token), "offset": start, "bytes": end - start}
        for token, start, end in zip(ids, [0, *ends], ends, strict=False)
    ]


@dataclasses.dataclass(frozen=True)
class ScoredIds:
    """Tokens scored by a model.

    Attributes:
        nats: surprisal of each token; None of a first token that nothing predicts.
        ranks: of each token among all, from 1.
        alternatives: (ID, log-probability) of the best tokens at each position.
    """

    ids: Sequence[int]
    nats: list[float | None]
    ranks: list[int | None]
    alternatives: list[list[tuple[int, float]]]


@torch.inference_mode()
def score_ids(model: DecoderOnly, ids: Sequence[int], *, start_token: int | None, top: int) -> ScoredIds:
    """Score tokens with the windows of `lm perplexity`: of the model's context, by half of it.

    Args:
        ids: at least one.
        start_token: predicts the first token, if there is one.
        top: alternatives per token.

    Raises:
        InputError: the model's output is not a number.
    """
    context, stride = resolve_window_sizes(model.config, PerplexityConfig())
    splitter = CausalWindowSplitter(context=context, stride=stride, start_token=start_token)
    nats: list[float | None] = []
    ranks: list[int | None] = []
    alternatives: list[list[tuple[int, float]]] = []
    device = next(model.parameters()).device
    array = np.asarray(ids, dtype=np.int64)
    for window in (*splitter.push(array), *splitter.finish()):
        nats, ranks, alternatives = (
            [*nats, *[None] * window.unscored],
            [*ranks, *[None] * window.unscored],
            [*alternatives, *[[] for _ in range(window.unscored)]],
        )
        if not window.scored:
            continue
        tokens = torch.from_numpy(np.asarray(window.tokens, dtype=np.int64)).to(device)
        hidden = model.hidden(tokens[None, :-1])[0, -window.scored :]
        targets = tokens[-window.scored :]
        for states, expected in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
            logprobs = model.logits(states).float().log_softmax(-1)
            own = logprobs.gather(-1, expected[:, None])
            if not bool(own.isfinite().all()):
                raise nan_logits_error()
            nats += (-own[:, 0]).tolist()
            ranks += ((logprobs > own).sum(-1) + 1).tolist()
            if top:
                best = logprobs.topk(min(top, logprobs.shape[-1]))
                rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                alternatives += [list(zip(candidate_ids, values, strict=True)) for candidate_ids, values in rows]
            else:
                alternatives += [[] for _ in range(len(expected))]
    return ScoredIds(ids, nats, ranks, alternatives)


def score(model: ServedModel, text: str, *, top: int) -> dict[str, Any]:
    """Score a text: nats, bits, rank and alternatives of each token, and totals as of `lm perplexity`."""
    ids = model.tokenizer.encode(text)
    tokens = _locate(model, text, ids)
    frame_start = model.tokenizer.start_of_text
    scored = score_ids(model.decoder, ids, start_token=frame_start, top=top) if ids else ScoredIds([], [], [], [])
    for token, nats, rank, others in zip(tokens, scored.nats, scored.ranks, scored.alternatives, strict=True):
        token |= {
            "nats": nats,
            "bits": None if nats is None else nats / math.log(2),
            "rank": rank,
            "alternatives": [_candidate(model.tokenizer, other, math.exp(logprob)) for other, logprob in others],
        }
    known = [nats for nats in scored.nats if nats is not None]
    total, n_bytes = math.fsum(known), sum(token["bytes"] for token in tokens if token["nats"] is not None)
    return {
        "tokens": tokens,
        "count": len(known),
        "bytes": n_bytes,
        "nats": total,
        "bits": total / math.log(2),
        "bits_per_byte": total / math.log(2) / n_bytes if n_bytes else None,
        "nats_per_token": total / len(known) if known else None,
        "perplexity": _exp(total / len(known)) if known else None,
    }


def _exp(nats: float) -> float | None:
    return math.exp(nats) if nats < 700 else None


def _candidate(tokenizer: Tokenizer, token: int, probability: float) -> dict[str, Any]:
    return {"id": token, "text": token_text(tokenizer, token), "probability": probability}


@torch.inference_mode()
def next_tokens(model: ServedModel, generator: Generator, ids: Sequence[int], *, top: int) -> dict[str, Any]:
    """Return the most probable next tokens, before and after the filters of the settings.

    Args:
        ids: of the prompt, at least one; the last token is not retokenised.
    """
    decoder, sampler = model.decoder, generator.sampler
    window = list(ids)[window_start(len(ids), decoder.config.context_length) :]
    tokens = torch.tensor([window], device=next(decoder.parameters()).device)
    logits = decoder.logits(decoder.hidden(tokens)[:, -1]).float().cpu()
    if not bool(logits.logsumexp(-1).isfinite()):
        raise nan_logits_error()
    history = History(torch.tensor([list(ids)]), len(ids))
    before = logits.softmax(-1)[0]
    filtered = apply_filters(logits, sampler.filters, history)
    if sampler.greedy:
        after = torch.zeros_like(before)
        after[filtered[0].argmax()] = 1.0
    else:
        after = filtered.softmax(-1)[0].nan_to_num()
    best = before.topk(min(top, len(before))).indices.tolist()
    extra = after.topk(min(top, len(after))).indices.tolist()
    shown = list(dict.fromkeys([*best, *(token for token in extra if float(after[token]) > 0)]))[: 2 * top]
    return {
        "tokens": [
            _candidate(model.tokenizer, token, float(before[token])) | {"filtered": float(after[token])}
            for token in shown
        ],
        "kept": int((after > 0).sum()),
        "vocab_size": len(before),
        "entropy": _entropy(before),
        "filtered_entropy": _entropy(after),
        "prompt_tokens": len(ids),
    }


def _entropy(probabilities: Tensor) -> float:
    """Return the entropy in bits."""
    some = probabilities[probabilities > 0].double()
    return float(-(some * some.log2()).sum())


def attention(
    model: ServedModel, text: str, target: str | None, *, to: str | None, layer: int | None, head: int | None
) -> dict[str, Any]:
    """Return the attention weights between the tokens of a text, or of a translation and its source."""
    source = model.loaded.source_tokenizer or model.tokenizer
    n_tokens = len(source.encode(text)) + 2
    config = model.loaded.model.config
    n_queries = n_tokens if target is None else len(model.tokenizer.encode(target)) + 2
    maps = (1 if layer else config.n_layers) * (1 if head else config.n_heads)
    if n_tokens * n_queries * maps > MAX_ATTENTION_VALUES:
        raise invalid(
            f"the attention of {n_tokens} tokens in {maps} heads is too large for a response: give less text, or ask "
            "for one layer or head",
            param="text",
        )
    attention_map = compute_attention(model.loaded, text, target, unit="tokens", to=to).map
    weights = attention_map.weights
    for name, value, count in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if value is not None and value > count:
            raise invalid(f"{name} {value}: there are {count}", param=name)
    weights = weights[slice(None) if layer is None else slice(layer - 1, layer)]
    weights = weights[:, slice(None) if head is None else slice(head - 1, head)]
    return {
        "kind": attention_map.kind,
        "queries": _axis(attention_map.queries),
        "keys": _axis(attention_map.keys),
        "is_causal": attention_map.is_causal,
        "weights": np.round(weights.astype(np.float64), 4).tolist(),
    }


def _axis(axis: Any) -> list[dict[str, Any]]:
    return [{"id": token, "text": label} for token, label in zip(axis.tokens, axis.labels, strict=True)]


def translate(
    model: ServedModel, lines: Sequence[str], config: TranslationConfig, *, to: str | None, alignments: bool
) -> dict[str, Any]:
    """Translate lines; with alignments, also the attention of each translation to its source."""
    translating = TranslationModel.from_loaded(model.loaded)
    translator = Translator([translating], config, to=to)
    results = []
    for line in translator.translate(lines):
        translations = [_translation(hypothesis) for hypothesis in line.translations]
        if alignments:
            for translation, hypothesis in zip(translations, line.translations, strict=True):
                translation["alignment"] = _alignment(translating, line.source, hypothesis, to=to)
        results.append({"source": line.source, "translations": translations, "left_out": line.left_out})
    return {"results": results}


def _translation(translation: Translation) -> dict[str, Any]:
    return {
        "text": translation.text,
        "tokens": list(translation.tokens),
        "logprobs": list(translation.logprobs),
        "score": translation.score,
        "finish_reason": translation.finish_reason,
    }


def _alignment(
    model: TranslationModel, source: str, translation: Translation, *, to: str | None
) -> dict[str, Any] | None:
    """Return words, pairs of words and weights; None without attention or for a blank line."""
    is_blank = translation.finish_reason == "blank"
    if is_blank or not (model.model.decoder.attention_layers(cross=model.model.config.is_encoder_decoder)):
        return None
    attention_map = compute_translation_attention(model, source, translation.tokens, unit="words", to=to).map
    return {
        "source": list(attention_map.keys.labels),
        "target": list(attention_map.queries.labels),
        "source_words": list(attention_map.keys.words),
        "target_words": list(attention_map.queries.words),
        "pairs": [list(pair) for pair in attention_map.alignments()],
        "weights": np.round(attention_map.mean().astype(np.float64), 4).tolist(),
    }


def fill(model: ServedModel, text: str, *, top: int) -> dict[str, Any]:
    """Predict the masked tokens of a text."""
    masked = model.loaded.model
    if not isinstance(masked, EncoderOnly) or masked.config.labels:
        raise model.wrong_kind("fill blanks")
    (filled,) = MaskFiller(masked, model.tokenizer).fill([text], k=top)
    return dataclasses.asdict(filled)


def score_prompt(model: ServedModel, prompt: str | Sequence[int], ids: Sequence[int], *, top: int) -> ScoredIds:
    """Score the tokens of a prompt; the start-of-text token before a text predicts, and is not scored."""
    before = build_text_frame(model.tokenizer).before if isinstance(prompt, str) else ()
    start = before[0] if before and tuple(ids[: len(before)]) == before else None
    return score_ids(model.decoder, ids if start is None else ids[1:], start_token=start, top=top)
