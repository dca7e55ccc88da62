import math
import statistics

import numpy as np
import pytest
import torch

from lm.config import ModelConfig, PerplexityConfig, TokenizerConfig
from lm.data import documents, tokenizer_training
from lm.data.tokenizer import Tokenizer
from lm.errors import InputError, UsageError
from lm.evaluation.perplexity import FileScore, Progress, Tally, measure, score, window_sizes
from lm.model.transformer import DecoderOnly, build_model

SEPARATOR = "<|endoftext|>"
CONTEXT = 16
TEXT = (
    "The owl saw the fox. \n\n  »Über den Bäumen«, said the owl,\tand 狐 ran — past the mill; the mill stood still.\n"
    * 4
)


def make_model(vocab_size: int = 320, **fields) -> DecoderOnly:
    shape = {"positions": "rotary", **fields}
    config = ModelConfig(
        vocab_size=vocab_size, context_length=CONTEXT, d_model=32, n_layers=2, n_heads=4, init_std=0.3, **shape
    )
    model = build_model(config, seed=4).eval()
    assert isinstance(model, DecoderOnly)
    return model


def train_tokenizer(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=320)
    return tokenizer_training.train([TEXT], config, corpus_bytes=len(TEXT.encode())).tokenizer


BPE, CHAR = train_tokenizer("bpe"), train_tokenizer("char")


def token_by_token(model, tokens, *, context, stride, start_token):
    """One forward pass in float64 for every single token, each with exactly the tokens it may see."""
    sequence = ([] if start_token is None else [start_token]) + list(tokens)
    nats = []
    with torch.no_grad():
        reference = model.double()
        for index in range(1, len(sequence)):
            window = 0 if index <= context else math.ceil((index - context) / stride)
            logits = reference(torch.tensor([sequence[window * stride : index]]))[0, -1]
            nats.append(-logits.log_softmax(-1)[sequence[index]].item())
    model.float()
    return np.array(nats)


def random_tokens(length: int, vocab_size: int = 320) -> list[int]:
    return np.random.default_rng(length).integers(0, vocab_size, length).tolist()


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (1, 1), (40, 25), (300, 300)])
@pytest.mark.parametrize("start_token", [None, 3])
def test_every_token_has_the_surprisal_of_a_float64_loop(context, stride, start_token):
    model, tokens = make_model(), random_tokens(45)
    expected = token_by_token(model, tokens, context=context, stride=stride, start_token=start_token)
    for length in (0, 1, 2, 9, 16, 17, 45):  # what comes later changes nothing, so the loop runs once
        for batch_size in (1, 3, 32):
            nats = score(
                model, tokens[:length], context=context, stride=stride, start_token=start_token, batch_size=batch_size
            )
            assert nats.dtype == np.float64
            assert len(nats) == max(0, length - (start_token is None))
            np.testing.assert_allclose(nats, expected[: len(nats)], atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", [{"positions": "learned", "norm": "layernorm", "bias": True}, {"n_kv_heads": 1}])
def test_other_models_agree_with_the_loop_too(fields):
    model, tokens = make_model(**fields), random_tokens(75)
    expected = token_by_token(model, tokens, context=12, stride=4, start_token=0)
    nats = score(model, tokens, context=12, stride=4, start_token=0)
    np.testing.assert_allclose(nats, expected, atol=1e-5, rtol=0)


def test_totals_do_not_depend_on_the_batch_size(tmp_path):
    for index, length in enumerate((300, 20, 1, 0, 77)):
        (tmp_path / f"{index}.txt").write_text((TEXT * 3)[:length])
    sources = documents.resolve([str(tmp_path)])
    model = make_model()
    totals = [
        Tally.total(event.tally for event in run(model, BPE, sources, batch_size=size) if isinstance(event, FileScore))
        for size in range(1, 33)
    ]
    for total in totals:
        assert total.nats == pytest.approx(totals[0].nats, rel=1e-6)
        assert total.squares == pytest.approx(totals[0].squares, rel=1e-6)
        assert (total.tokens, total.words, total.bytes) == (totals[0].tokens, totals[0].words, totals[0].bytes)


def run(model, tokenizer, sources, *, context=16, stride=8, batch_size=4):
    return measure(
        model, tokenizer, sources, separator=SEPARATOR, context=context, stride=stride, batch_size=batch_size
    )


def tallies(tmp_path, tokenizer, *texts, **options):
    """The tally of each text, written to a file of its own."""
    paths = [tmp_path / f"{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    sources = documents.resolve([str(path) for path in paths])
    events = list(run(make_model(), tokenizer, sources, **options))
    scores = [event for event in events if isinstance(event, FileScore)]
    assert [event.name for event in scores] == [str(path) for path in paths]
    return [event.tally for event in scores]


def test_documents_are_scored_apart_each_after_its_own_start(tmp_path):
    parts = ["The owl saw the fox. ran past\n", "x", TEXT]
    (together,) = tallies(tmp_path, BPE, f"\n{SEPARATOR}\n".join(parts))
    model, expected = make_model(), 0.0
    for part in [parts[0] + "\n", parts[1] + "\n", parts[2]]:
        tokens = BPE.encode(part)
        expected += token_by_token(model, tokens, context=16, stride=8, start_token=BPE.start_of_text).sum()
    assert together.documents == 3
    assert together.unscored == 0
    assert together.nats == pytest.approx(expected, abs=1e-4)
    assert together.bytes == len("".join(parts).encode()) + 2
    assert together.tokens == sum(len(BPE.encode(part)) for part in (parts[0] + "\n", "x\n", TEXT))


def test_a_file_of_many_pieces_scores_like_one_text(tmp_path, monkeypatch):
    monkeypatch.setattr("lm.data.documents.BLOCK_BYTES", 37)
    monkeypatch.setattr("lm.data.pieces.pieces.__kwdefaults__", {"limit": 300})
    (tally,) = tallies(tmp_path, BPE, TEXT * 5, context=16, stride=8)
    tokens = BPE.encode(TEXT * 5)
    nats = score(make_model(), tokens, context=16, stride=8, start_token=BPE.start_of_text)
    assert (tally.tokens, tally.words, tally.bytes) == (len(tokens), len((TEXT * 5).split()), len((TEXT * 5).encode()))
    assert tally.nats == pytest.approx(nats.sum(), rel=1e-6)


def test_words_and_bytes_by_hand(tmp_path):
    counted = tallies(tmp_path, BPE, "  the owl\u2003saw\n\n the  fox", "Über", " \n\t", "a 狐 — b\r\n")
    assert [tally.words for tally in counted] == [5, 1, 0, 4]
    assert [tally.bytes for tally in counted] == [26, 5, 3, 13]
    assert [tally.documents for tally in counted] == [1, 1, 1, 1]


def test_without_a_start_token_the_first_token_of_each_document_is_unscored(tmp_path):
    assert CHAR.start_of_text is None
    one, two, accent = tallies(tmp_path, CHAR, "t", f"the\n{SEPARATOR}\nowl", "Über")
    assert (one.tokens, one.unscored, one.bytes, one.perplexity) == (0, 1, 0, None)
    assert (two.tokens, two.unscored, two.bytes, two.words) == (3 + 2, 2, 3 + 2, 2)
    assert (accent.tokens, accent.unscored, accent.bytes) == (3, 1, 3)


def test_an_empty_file_is_zeros_and_no_perplexity(tmp_path):
    for tokenizer in (BPE, CHAR):
        (empty,) = tallies(tmp_path, tokenizer, "")
        assert empty == Tally()
        assert empty.perplexity is empty.word_perplexity is empty.bits_per_byte is empty.standard_error is None


def test_figures_follow_from_the_sums():
    nats = [0.5, 2.0, 3.5, 1.25]
    tally = Tally(words=2, bytes=10)
    tally.add(np.array(nats[:1]))
    tally.add(np.array(nats[1:]))
    assert tally.perplexity == pytest.approx(math.exp(7.25 / 4))
    assert tally.word_perplexity == pytest.approx(math.exp(7.25 / 2))
    assert tally.bits_per_byte == pytest.approx(7.25 / math.log(2) / 10)
    assert tally.standard_error == pytest.approx(statistics.stdev(nats) / math.sqrt(4))
    assert Tally(tokens=5, words=1, nats=1e4).word_perplexity is None  # beyond the greatest float


def test_totals_add_up(tmp_path):
    parts = tallies(tmp_path, BPE, TEXT, "the owl", "")
    total = Tally.total(parts)
    assert total.nats == sum(part.nats for part in parts)
    assert total.tokens == sum(part.tokens for part in parts)
    assert total.documents == 2


def test_progress_grows_to_the_whole_text(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    events = list(run(make_model(), BPE, documents.resolve([str(tmp_path / "a.txt")]), batch_size=2))
    progress = [event for event in events if isinstance(event, Progress)]
    assert [event.tokens for event in progress] == sorted({event.tokens for event in progress})
    assert progress[-1] == Progress(len(BPE.encode(TEXT)), len(TEXT.encode()))


def test_sizes_default_to_the_models_context_and_half_of_it():
    config = ModelConfig(context_length=128)
    assert window_sizes(config, PerplexityConfig()) == (128, 64)
    assert window_sizes(config, PerplexityConfig(context=31)) == (31, 15)
    assert window_sizes(config, PerplexityConfig(context=1)) == (1, 1)
    assert window_sizes(config, PerplexityConfig(context=500, stride=500)) == (500, 500)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="stride"):
        window_sizes(ModelConfig(), PerplexityConfig(context=10, stride=11))
    with pytest.raises(UsageError, match="--context"):
        window_sizes(ModelConfig(positions="learned", context_length=64), PerplexityConfig(context=65))
    for values in ({"context": 0}, {"stride": 0}, {"batch_size": -1}):
        with pytest.raises(UsageError, match="at least 1"):
            PerplexityConfig(**values)


def test_a_file_that_the_tokenizer_cannot_encode_is_named(tmp_path):
    with pytest.raises(InputError, match=r"0\.txt.*Z"):
        tallies(tmp_path, CHAR, "the Z")


def test_a_model_of_nan_is_an_error_and_not_a_figure(tmp_path):
    model = make_model()
    torch.nn.init.constant_(model.embedding.tokens.weight, math.nan)
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(InputError, match="not a number"):
        list(run(model, BPE, documents.resolve([str(tmp_path / "a.txt")])))
