"""Pseudo-surprisal: what a masked model says of each token where that alone is masked, one row at a time."""

import math

import numpy as np
import pytest
import torch

from lm.config.evaluation import PerplexityConfig
from lm.config.model import ModelConfig
from lm.config.tokenizer import END_OF_TEXT, MASK, TokenizerConfig
from lm.evaluation.perplexity import FileScore, PerplexityResult
from lm.evaluation.surprisal import iterate_token_scores
from lm.evaluation.window_scorers import TextScorer
from lm.model.transformer import EncoderOnly, build_model
from lm.text.find import find_text_files
from lm.tokenizer import training
from tests.tolerances import approx, assert_close

BYTES = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0, special_tokens=(END_OF_TEXT, MASK)).tokenizer
TEXTS = ["The owl saw the fox.\n", "ü\n", "One two three four five six seven eight nine ten.\n"]


def model(**fields) -> EncoderOnly:
    shape = {"vocab_size": 258, "context_length": 12, "d_model": 16, "n_layers": 2, "n_heads": 2, "init_std": 0.3}
    built = build_model(ModelConfig(**shape, objective="masked", **fields), seed=1).eval()
    assert isinstance(built, EncoderOnly)
    return built


def scorer(masked: EncoderOnly, **fields) -> TextScorer:
    return TextScorer.from_config(masked, BYTES, PerplexityConfig(**fields))


def files(folder):
    (folder / "text.txt").write_text(f"{END_OF_TEXT}\n".join(TEXTS))
    return find_text_files([str(folder / "text.txt")])


def nats_alone(masked: EncoderOnly, text: str) -> list[float]:
    """Each token masked in a row of its own, with all of the document around it."""
    ids = [BYTES.start_of_text, *BYTES.encode(text), BYTES.end_of_text]
    found = []
    for place in range(1, len(ids) - 1):
        row = torch.tensor([ids])
        row[0, place] = BYTES.mask
        with torch.inference_mode():
            found.append(-float(masked(row).double().log_softmax(-1)[0, place, ids[place]]))
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("every", [1, 4])
def test_each_token_is_masked_in_turn(tmp_path, batch_size, every):
    """In documents that fit into the context, against one token at a time."""
    masked, scores = model(), []
    measured = scorer(masked, context=60, stride=30, batch_size=batch_size, score_every=every)
    segments = list(measured.score_segments(files(tmp_path), scores=scores))
    found = np.concatenate([segment.nats for segment in segments])
    alone = [nats_alone(masked, text) for text in TEXTS]
    expected = np.concatenate([[nats if n % every == 0 else np.nan for n, nats in enumerate(of)] for of in alone])
    assert_close(found, expected, model=masked, dtype=torch.float32, equal_nan=True)
    (result,) = [score.result for score in scores]
    counted = ~np.isnan(expected)
    assert (result.tokens, result.bytes, result.unscored) == (counted.sum(), counted.sum(), (~counted).sum())
    assert result.perplexity == approx(math.exp(expected[counted].mean()), model=masked)
    assert result.bits_per_byte == approx(expected[counted].mean() / math.log(2), model=masked)
    assert (result.word_perplexity is None) == (every > 1)


def test_in_windows_every_token_is_scored_once(tmp_path):
    masked, scores = model(), []
    measured = scorer(masked)
    assert (measured.context, measured.stride) == (12, 6)
    tokens = list(iterate_token_scores(measured.score_segments(files(tmp_path), scores=scores), files(tmp_path)))
    assert bytes(token.token for token in tokens).decode() == "".join(TEXTS)
    assert all(token.nats is not None for token in tokens)
    total = PerplexityResult.total(score.result for score in scores)
    assert (total.documents, total.unscored, total.bytes) == (3, 0, len("".join(TEXTS).encode()))


def test_a_short_document_is_the_same_in_any_window(tmp_path):
    (tmp_path / "short.txt").write_text("An owl.\n")
    found = []
    for sizes in ({"context": 12, "stride": 6}, {"context": 12, "stride": 12}, {"context": 40, "stride": 1}):
        events = scorer(model(), **sizes).measure(find_text_files([str(tmp_path / "short.txt")]))
        found += [event.result.nats for event in events if isinstance(event, FileScore)]
    assert found == approx([found[0]] * 3, model=model())
