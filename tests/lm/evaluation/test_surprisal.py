import numpy as np
import pytest

from lm.evaluation.file_scoring import EncodedPiece, ScoredSegment
from lm.evaluation.perplexity import BatchScored, measure_perplexity
from lm.evaluation.surprisal import TextSpan, iterate_token_scores, merge_into_spans
from lm.evaluation.window_scorers import build_window_scorer
from lm.text.find import find_text_files
from lm.text.records import Record
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model

FAMILY, FLAGS, SYLLABLE = "👩‍👩‍👧", "🇰🇷🇩🇪", "\u1112\u1161\u11ab"


class Fixed:
    """The ends of tokens, known beforehand."""

    def __init__(self, ends):
        self._ends = np.array(ends, dtype=np.int64)

    def ends(self, piece, tokens):
        return self._ends


def segment(text, ends, nats, *, file=0, document=0) -> ScoredSegment:
    tokens = np.arange(len(ends))
    piece = EncodedPiece(file, document, 0, 0, Record.of_text(text), tokens, 0, Fixed(ends))
    return ScoredSegment(piece, 0, np.array(nats, dtype=np.float64))


def bytewise(text, **place) -> ScoredSegment:
    size = len(text.encode())
    return segment(text, range(1, size + 1), [1.0] * size, **place)


def scored(tokenizer, tmp_path, *texts):
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    sources = find_text_files([str(tmp_path)])
    window_scorer = build_window_scorer(make_model(), tokenizer, context=16, stride=8)
    events = measure_perplexity(window_scorer, tokenizer, sources, batch_size=3)
    return [s for event in events if isinstance(event, BatchScored) for s in event.segments], sources


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_a_token_is_found_in_the_file_by_its_offset(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 300})
    texts = [TEXT * 5, f"the owl\n{SEPARATOR}\nran"]
    found, sources = scored(tokenizer, tmp_path, *texts)
    tokens = list(iterate_token_scores(found, sources))
    inside = {(sources[0].name, 0): texts[0], (sources[1].name, 0): "the owl\n", (sources[1].name, 1): "ran"}
    for (name, document), text in inside.items():
        own = [token for token in tokens if (token.file, token.document) == (name, document)]
        assert [token.index for token in own] == list(range(len(own)))
        assert [token.token for token in own] == tokenizer.encode(text)
        for token in own:
            data = text.encode()[token.offset : token.offset + token.bytes]
            assert data == tokenizer.token_bytes(token.token)
            assert token.text == data.decode(errors="replace")
            assert (token.nats is None) == (tokenizer is CHAR and token.index == 0)
    assert sum(token.nats or 0 for token in tokens) == pytest.approx(sum(np.nansum(s.nats) for s in found))


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_spans_are_the_text_and_its_surprisal(tokenizer, tmp_path):
    found, _ = scored(tokenizer, tmp_path, TEXT, "", f"the owl\n{SEPARATOR}\nran")
    parts = list(merge_into_spans(found))
    for place, text in {(0, 0): TEXT, (2, 0): "the owl\n", (2, 1): "ran"}.items():
        assert "".join(span.text for span in parts if (span.file, span.document) == place) == text
    assert sum(span.tokens for span in parts) == sum(len(s.nats) for s in found)
    assert np.nansum([span.nats for span in parts]) == pytest.approx(np.nansum(np.concatenate([s.nats for s in found])))


@pytest.mark.parametrize("character", ["a", "é", "한", "🦉", FAMILY, "👍🏽", "e\u0301", SYLLABLE, "\r\n", "❤️", "1️⃣"])
def test_what_is_drawn_as_one_is_one_span(character):
    parts = list(merge_into_spans([bytewise(f"x{character}y")]))
    size = len(character.encode())
    assert parts == [
        TextSpan(0, 0, "x", 1, 1.0),
        TextSpan(0, 0, character, size, float(size)),
        TextSpan(0, 0, "y", 1, 1.0),
    ]


def test_a_character_may_be_split_between_segments():
    whole = bytewise("a한b")
    halves = [ScoredSegment(whole.piece, 0, np.ones(2)), ScoredSegment(whole.piece, 2, np.ones(3))]
    assert [span.text for span in merge_into_spans(halves)] == ["a", "한", "b"]


def test_documents_are_never_joined():
    parts = list(merge_into_spans([bytewise("e"), bytewise("\u0301", document=1), bytewise("\u0301", file=1)]))
    assert [(span.file, span.document, span.text) for span in parts] == [
        (0, 0, "e"),
        (0, 1, "\u0301"),
        (1, 0, "\u0301"),
    ]
