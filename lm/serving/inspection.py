"""What the server computes besides completions: scores, next tokens, attention, translations and blanks.

Each of `ENDPOINTS` is a job of a model's scheduler: it takes a body and returns a JSON object.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.config.evaluation import PerplexityConfig
from lm.decoding.batching import Continuation
from lm.decoding.classifier import fill_masks
from lm.decoding.sampling import History, apply_filters
from lm.decoding.session import window_start
from lm.decoding.translation import TranslationModel, Translator
from lm.errors import nan_logits_error
from lm.evaluation.attention import compute_attention, compute_translation_attention
from lm.evaluation.scoring import WindowSplitter, resolve_window_sizes
from lm.model.transformer import DecoderOnly, EncoderOnly
from lm.serving.bodies import (
    AttentionBody,
    Body,
    DetokenizeBody,
    FillBody,
    NextBody,
    ScoreBody,
    TextBody,
    TranslateBody,
    invalid,
)
from lm.serving.models import ServedModel
from lm.text.records import Record
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_text_frame
from lm.tokenizer.tokenizer import Tokenizer

MAX_ATTENTION_VALUES = 1_500_000
"""Attention weights of a response."""
_MAX_BEAM = 32
_ROWS = 256
"""Positions whose logits are ranked together."""


def _check_length(model: ServedModel, ids: Sequence[int], field: str) -> None:
    if len(ids) > model.max_length:
        message = f"{len(ids)} tokens are more than the server allows, {model.max_length}"
        raise invalid(message, param=field, code="context_length_exceeded")


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token, with replacement characters for parts of characters."""
    return tokenizer.token_bytes(token).decode(errors="replace")


def tokenize(model: ServedModel, body: TextBody) -> dict[str, Any]:
    """Return the tokens of a text with their byte offsets."""
    tokens = _locate(model, body.text, model.tokenizer.encode(body.text))
    return {"tokens": tokens, "count": len(tokens)}


def detokenize(model: ServedModel, body: DetokenizeBody) -> dict[str, Any]:
    """Return the text of tokens."""
    size = model.tokenizer.vocab_size
    if wrong := [token for token in body.tokens if token >= size]:
        raise invalid(f"there is no token {wrong[0]}; IDs go from 0 to {size - 1}", param="tokens")
    return {"text": model.tokenizer.decode(body.tokens, skip_special=False)}


def _locate(model: ServedModel, text: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens with their text and byte offsets."""
    if not ids:
        return []
    ends = model.offsets.ends(Record.of_text(text), np.array(ids)).tolist()
    return [
        {"id": token, "text": token_text(model.tokenizer, token), "offset": start, "bytes": end - start}
        for token, start, end in zip(ids, [0, *ends], ends, strict=False)
    ]


@dataclasses.dataclass
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
    frame = SpecialTokenFrame(() if start_token is None else (start_token,))
    splitter = WindowSplitter(frame, context=context, stride=stride)
    scored, device = ScoredIds(ids, [], [], []), next(model.parameters()).device
    for window in (*splitter.push(np.asarray(ids, dtype=np.int64)), *splitter.finish()):
        n_scored = int(window.is_scored.sum())
        if n_scored < len(window.accounted):  # a first token that nothing predicts
            scored.nats.append(None)
            scored.ranks.append(None)
            scored.alternatives.append([])
        if not n_scored:
            continue
        tokens = torch.from_numpy(np.asarray(window.tokens, dtype=np.int64)).to(device)
        hidden = model.hidden(tokens[None, :-1])[0, -n_scored:]
        targets = tokens[-n_scored:]
        for states, expected in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
            logprobs = model.logits(states).float().log_softmax(-1)
            own = logprobs.gather(-1, expected[:, None])
            if not bool(own.isfinite().all()):
                raise nan_logits_error()
            best = logprobs.topk(min(top, logprobs.shape[-1]))
            scored.nats += (-own[:, 0]).tolist()
            scored.ranks += ((logprobs > own).sum(-1) + 1).tolist()
            scored.alternatives += [
                list(zip(*row, strict=True)) for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
    return scored


def score(model: ServedModel, body: ScoreBody) -> dict[str, Any]:
    """Score a text: nats, bits, rank and alternatives of each token, and totals as of `lm perplexity`."""
    decoder, text = model.decoder, model.normalize(body.text)
    ids = model.tokenizer.encode(text)
    _check_length(model, ids, "text")
    tokens, scored = _locate(model, text, ids), ScoredIds([], [], [], [])
    if ids:
        scored = score_ids(decoder, ids, start_token=model.tokenizer.start_of_text, top=body.top)
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
def next_tokens(model: ServedModel, body: NextBody) -> dict[str, Any]:
    """Return the most probable next tokens, before and after the filters; the prompt's end is not retokenised."""
    decoder, generator, top = model.decoder, model.generator(body.sampling), body.top
    ids = generator.encode(model.normalize(body.prompt) if isinstance(body.prompt, str) else body.prompt)
    _check_length(model, ids, "prompt")
    sampler = generator.sampler
    window = list(ids)[window_start(len(ids), decoder.config.context_length) :]
    tokens = torch.tensor([window], device=next(decoder.parameters()).device)
    logits = decoder.logits(decoder.hidden(tokens)[:, -1]).float().cpu()
    if not bool(logits.logsumexp(-1).isfinite()):
        raise nan_logits_error()
    history = History([list(ids)], [len(ids)])
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


def attention(model: ServedModel, body: AttentionBody) -> dict[str, Any]:
    """Return the attention weights between the tokens of a text, or of a translation and its source."""
    text, target = model.normalize(body.text), body.target
    source, config = model.loaded.source_tokenizer or model.tokenizer, model.loaded.model.config
    n_tokens = len(source.encode(text)) + 2
    n_queries = n_tokens if target is None else len(model.tokenizer.encode(target)) + 2
    for name, number, count in (("layer", body.layer, config.n_layers), ("head", body.head, config.n_heads)):
        if number and number > count:
            raise invalid(f"{name} {number}: there are {count}", param=name)
    maps = (1 if body.layer else config.n_layers) * (1 if body.head else config.n_heads)
    if n_tokens * n_queries * maps > MAX_ATTENTION_VALUES:
        message = f"the attention of {n_tokens} tokens in {maps} heads is too large for a response"
        raise invalid(f"{message}: give less text, or ask for one layer or head", param="text")
    attention_map = compute_attention(model.loaded, text, target, unit="tokens", to=body.to)
    layers, heads = (slice(number - 1, number) if number else slice(None) for number in (body.layer, body.head))
    return {
        "kind": attention_map.kind,
        "queries": _axis(attention_map.queries),
        "keys": _axis(attention_map.keys),
        "is_causal": attention_map.is_causal,
        "weights": _round(attention_map.weights[layers, heads]),
    }


def _round(weights: np.ndarray[Any, Any]) -> Any:
    return np.round(weights.astype(np.float64), 4).tolist()


def _axis(axis: Any) -> list[dict[str, Any]]:
    return [{"id": token, "text": label} for token, label in zip(axis.tokens, axis.labels, strict=True)]


def translate(model: ServedModel, body: TranslateBody) -> dict[str, Any]:
    """Translate lines; with alignments, also the attention of each translation to its source."""
    config = model.loaded.model.config
    if not config.translates or config.syntax != "none":
        raise model.wrong_kind("translate" if config.syntax == "none" else "translate without dependency trees")
    lines = body.text.split("\n") if isinstance(body.text, str) else body.text
    if len(lines) > 256 or any("\n" in line for line in lines):
        raise invalid("text must be at most 256 lines", param="text")
    if body.translation.beam > _MAX_BEAM:
        raise invalid(f"beam must be at most {_MAX_BEAM}", param="beam")
    translating = TranslationModel.from_loaded(model.loaded)
    results = []
    for line in Translator([translating], body.translation, to=body.to).translate(lines):
        translations = [
            {
                "text": each.text,
                "tokens": list(each.tokens),
                "logprobs": list(each.logprobs),
                "score": each.score,
                "finish_reason": each.finish_reason,
            }
            | ({"alignment": _alignment(translating, line.source, each, to=body.to)} if body.alignments else {})
            for each in line.translations
        ]
        results.append({"source": line.source, "translations": translations, "left_out": line.left_out})
    return {"results": results}


def _alignment(
    model: TranslationModel, source: str, translation: Continuation, *, to: str | None
) -> dict[str, Any] | None:
    """Return words, pairs of words and weights; None without attention or for a blank line."""
    is_blank = translation.finish_reason == "blank"
    if is_blank or not (model.model.decoder.attention_layers(cross=model.model.config.is_encoder_decoder)):
        return None
    attention_map = compute_translation_attention(model, source, translation.tokens, unit="words", to=to)
    return {
        "source": list(attention_map.keys.labels),
        "target": list(attention_map.queries.labels),
        "source_words": list(attention_map.keys.words),
        "target_words": list(attention_map.queries.words),
        "pairs": [list(pair) for pair in attention_map.alignments()],
        "weights": _round(attention_map.mean()),
    }


def fill(model: ServedModel, body: FillBody) -> dict[str, Any]:
    """Predict the masked tokens of a text."""
    masked = model.loaded.model
    if not isinstance(masked, EncoderOnly) or masked.config.labels:
        raise model.wrong_kind("fill blanks")
    (filled,) = fill_masks(masked, model.tokenizer, [body.text], k=body.top_k)
    return dataclasses.asdict(filled)


ENDPOINTS: Mapping[str, tuple[type[Body], Callable[[ServedModel, Any], dict[str, Any]]]] = {
    "/score": (ScoreBody, score), "/next": (NextBody, next_tokens), "/attention": (AttentionBody, attention),
    "/tokenize": (TextBody, tokenize), "/detokenize": (DetokenizeBody, detokenize),
    "/translate": (TranslateBody, translate), "/fill": (FillBody, fill),
}  # fmt: skip
"""The body that each path takes, and what answers it."""


def score_prompt(model: ServedModel, prompt: str | Sequence[int], ids: Sequence[int], *, top: int) -> ScoredIds:
    """Score the tokens of a prompt; the start-of-text token before a text predicts, and is not scored."""
    before = build_text_frame(model.tokenizer).before if isinstance(prompt, str) else ()
    start = before[0] if before and tuple(ids[: len(before)]) == before else None
    return score_ids(model.decoder, ids if start is None else ids[1:], start_token=start, top=top)
