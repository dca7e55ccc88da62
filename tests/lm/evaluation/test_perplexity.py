"""Each type is measured as it would be alone."""

import copy
import math
import statistics

import numpy as np
import pytest
import torch

from lm.config.evaluation import PerplexityConfig
from lm.errors import InputError
from lm.evaluation.dtype_costs import DtypeCost, measure_dtype_costs
from lm.evaluation.perplexity import BatchScored, FileScore, MacroAverage, PerplexityResult, measure_perplexity
from lm.evaluation.window_scorers import TextScorer, build_window_scorer
from lm.model.layers import quantise
from lm.model.transformer import count_parameters
from lm.text.decode import read_stream
from lm.text.find import find_text_files
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model, score_document, token_by_token
from tests.tolerances import approx, assert_close


def test_totals_do_not_depend_on_the_batch_size(tmp_path):
    for index, length in enumerate((300, 20, 1, 0, 77)):
        (tmp_path / f"{index}.txt").write_text((TEXT * 3)[:length])
    sources = find_text_files([str(tmp_path)])
    model = make_model()
    totals = [
        PerplexityResult.total(
            event.result for event in run(model, BPE, sources, batch_size=size) if isinstance(event, FileScore)
        )
        for size in range(1, 33)
    ]
    for total in totals:
        assert total.nats == approx(totals[0].nats, model=model)
        assert total.squares == approx(totals[0].squares, model=model)
        assert (total.tokens, total.words, total.bytes) == (totals[0].tokens, totals[0].words, totals[0].bytes)


def run(model, tokenizer, sources, *, context=16, stride=8, batch_size=4):
    window_scorer = build_window_scorer(model, tokenizer, context=context, stride=stride)
    return measure_perplexity(window_scorer, tokenizer, sources, batch_size=batch_size)


def results(tmp_path, tokenizer, *texts, **options):
    """The result of each text, written to a file of its own."""
    paths = [tmp_path / f"{index}.txt" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    sources = find_text_files([str(path) for path in paths])
    events = list(run(make_model(), tokenizer, sources, **options))
    scores = [event for event in events if isinstance(event, FileScore)]
    assert [event.name for event in scores] == [str(path) for path in paths]
    return [event.result for event in scores]


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_the_files_before_one_that_cannot_be_read_are_scored(tmp_path, batch_size):
    for index, text in enumerate([TEXT, "the owl", "", TEXT * 2, "the ☃", TEXT]):
        (tmp_path / f"{index}.txt").write_text(text)
    sources = find_text_files([str(tmp_path)])
    scores = []
    with pytest.raises(InputError, match=r"4\.txt: character '☃'"):
        scores.extend(run(make_model(), CHAR, sources, batch_size=batch_size))
    whole = run(make_model(), CHAR, sources[:4], batch_size=batch_size)
    assert [each for each in scores if isinstance(each, FileScore)] == [
        each for each in whole if isinstance(each, FileScore)
    ]


def test_documents_are_scored_apart_each_after_its_own_start(tmp_path):
    parts = ["The owl saw the fox. ran past\n", "x", TEXT]
    (together,) = results(tmp_path, BPE, f"\n{SEPARATOR}\n".join(parts))
    model, expected = make_model(), 0.0
    for part in [parts[0] + "\n", parts[1] + "\n", parts[2]]:
        tokens = BPE.encode(part)
        expected += token_by_token(model, tokens, context=16, stride=8, start_token=BPE.start_of_text).sum()
    assert together.documents == 3
    assert together.unscored == 0
    assert together.nats == approx(expected, model=model)
    assert together.bytes == len("".join(parts).encode()) + 2
    assert together.tokens == sum(len(BPE.encode(part)) for part in (parts[0] + "\n", "x\n", TEXT))


def test_a_file_of_many_pieces_scores_like_one_text(tmp_path, monkeypatch):
    monkeypatch.setattr(read_stream, "__defaults__", (37,))
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    (result,) = results(tmp_path, BPE, TEXT * 5, context=16, stride=8)
    tokens = BPE.encode(TEXT * 5)
    nats = score_document(make_model(), tokens, context=16, stride=8, start_token=BPE.start_of_text)
    assert (result.tokens, result.words, result.bytes) == (
        len(tokens),
        len((TEXT * 5).split()),
        len((TEXT * 5).encode()),
    )
    assert result.nats == approx(nats.sum(), model=make_model())


def test_without_a_start_token_the_first_token_of_each_document_is_unscored(tmp_path):
    assert CHAR.start_of_text is None
    one, two, accent = results(tmp_path, CHAR, "t", f"the\n{SEPARATOR}\nowl", "Über")
    assert (one.tokens, one.unscored, one.bytes, one.perplexity) == (0, 1, 0, None)
    assert (two.tokens, two.unscored, two.bytes, two.words) == (3 + 2, 2, 3 + 2, 2)
    assert (accent.tokens, accent.unscored, accent.bytes) == (3, 1, 3)


def test_figures_follow_from_the_sums():
    nats = [0.5, 2.0, 3.5, 1.25]
    result = PerplexityResult(words=2, bytes=10)
    result.add(np.array(nats[:1]))
    result.add(np.array(nats[1:]))
    assert result.perplexity == pytest.approx(math.exp(7.25 / 4))
    assert result.word_perplexity == pytest.approx(math.exp(7.25 / 2))
    assert result.bits_per_byte == pytest.approx(7.25 / math.log(2) / 10)
    assert result.standard_error == pytest.approx(statistics.stdev(nats) / math.sqrt(4))
    assert PerplexityResult(tokens=5, words=1, nats=1e4).word_perplexity is None  # beyond the greatest float


def test_a_model_of_nan_is_an_error_and_not_a_figure(tmp_path):
    model = make_model()
    torch.nn.init.constant_(model.embedding.tokens.weight, math.nan)
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(InputError, match="not a number"):
        list(run(model, BPE, find_text_files([str(tmp_path / "a.txt")])))


def test_the_macro_average_is_the_mean_over_files_with_text(tmp_path):
    parts = results(tmp_path, BPE, TEXT, "", "the owl", "The fox")
    macro = MacroAverage.from_results(parts)
    read = [part for part in parts if part.tokens]
    assert macro.files == 3
    for name in ("perplexity", "word_perplexity", "bits_per_byte"):
        assert getattr(macro, name) == pytest.approx(statistics.mean(getattr(part, name) for part in read))
    means = [part.nats / part.tokens for part in read]
    assert macro.standard_error == pytest.approx(statistics.stdev(means) / math.sqrt(3))
    assert macro.perplexity != pytest.approx(PerplexityResult.total(parts).perplexity, rel=1e-3)


def test_figures_are_those_of_each_type_alone(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    files = find_text_files([str(tmp_path)])
    models = {"float32": make_model(BPE.vocab_size)}
    models["bfloat16"] = copy.deepcopy(models["float32"]).to(torch.bfloat16)
    models["int8"] = copy.deepcopy(models["float32"])
    quantise(models["int8"])
    config = PerplexityConfig(batch_size=2)
    scorers = {name: TextScorer.from_config(model, BPE, config) for name, model in models.items()}
    costs: list[DtypeCost] = []
    events = list(measure_dtype_costs(scorers, files, costs=costs))
    assert events == [event for event in scorers["float32"].measure(files) if isinstance(event, BatchScored)]
    assert [cost.dtype for cost in costs] == list(models)
    for cost in costs:
        alone = [event.result for event in scorers[cost.dtype].measure(files) if isinstance(event, FileScore)]
        assert cost.result == PerplexityResult.total(alone)
        assert sum(tokens for tokens, _ in cost.batches) == events[-1].tokens
        assert cost.tokens_per_second > 0
    parameters = count_parameters(models["float32"])
    of_32, of_16, of_8 = (cost.weight_bytes for cost in costs)
    assert (of_32, of_16) == (4 * parameters, 2 * parameters)
    assert parameters < of_8 < of_16
    assert costs[0].relative_increase(costs[0]) == 0
    assert costs[2].relative_increase(costs[0]) == pytest.approx(
        costs[2].result.bits_per_byte / costs[0].result.bits_per_byte - 1
    )


def scored(tokenizer, tmp_path, *texts, batch_size=3, context=16, stride=8):
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    sources = find_text_files([str(tmp_path / f"{index}.txt") for index in range(len(texts))])
    window_scorer = build_window_scorer(make_model(), tokenizer, context=context, stride=stride)
    events = measure_perplexity(window_scorer, tokenizer, sources, batch_size=batch_size)
    batches = [event.segments for event in events if isinstance(event, BatchScored)]
    assert all(batches)
    return [segment for batch in batches for segment in batch]


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_segments_are_the_text_token_by_token_in_order(tokenizer, batch_size, tmp_path, monkeypatch):
    monkeypatch.setattr(read_stream, "__defaults__", (37,))
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    parts = [[TEXT * 10, "x\n", "the owl\n"], [], ["T"], [TEXT]]
    found = scored(tokenizer, tmp_path, *(f"{SEPARATOR}\n".join(part) for part in parts), batch_size=batch_size)
    assert len({(s.piece.file, s.piece.document, s.piece.first) for s in found}) > 8
    for file, texts in enumerate(parts):
        for document, text in enumerate(texts):
            own = [s for s in found if (s.piece.file, s.piece.document) == (file, document)]
            tokens, start = tokenizer.encode(text), tokenizer.start_of_text
            assert np.concatenate([s.tokens for s in own]).tolist() == tokens
            spelled = [s.piece.data[a:b] for s in own for a, b in zip([s.start, *s.ends[:-1]], s.ends, strict=True)]
            assert spelled == [tokenizer.token_bytes(token) for token in tokens]
            begins = [s.piece.offset + s.start for s in own]
            assert begins == np.cumsum([0, *(sum(map(len, _spelled(s))) for s in own)])[:-1].tolist()
            nats = np.concatenate([s.nats for s in own])
            expected = score_document(make_model(), tokens, context=16, stride=8, start_token=start)
            assert np.isnan(nats[: start is None]).all()
            assert_close(nats[int(start is None) :], expected, model=make_model(), dtype=torch.float32)
    order = [(s.piece.file, s.piece.document, s.piece.first + s.first) for s in found]
    assert order == sorted(order)


def _spelled(segment):
    return [segment.piece.data[a:b] for a, b in zip([segment.start, *segment.ends[:-1]], segment.ends, strict=True)]


def test_words_are_counted_where_they_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(read_stream, "__defaults__", (37,))
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 200})
    pieces = {s.piece.first: s.piece for s in scored(BPE, tmp_path, "owl" * 300 + " and the fox " * 100)}
    assert len(pieces) > 3
    assert sum(piece.words for piece in pieces.values()) == 1 + 3 * 100
