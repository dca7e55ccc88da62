import numpy as np
import pytest
import torch

from lm.evaluation.batch_scoring import score_document
from lm.evaluation.file_scoring import score_files
from lm.evaluation.window_scorer import build_window_scorer
from lm.text.documents import TextPiece
from lm.text.files import find_text_files
from tests.lm.evaluation.small_models import BPE, CHAR, SEPARATOR, TEXT, make_model
from tests.tolerances import assert_close


def scored(tokenizer, tmp_path, *texts, batch_size=3, context=16, stride=8):
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    sources = find_text_files([str(tmp_path / f"{index}.txt") for index in range(len(texts))])
    window_scorer = build_window_scorer(make_model(), tokenizer, context=context, stride=stride)
    batches = list(score_files(window_scorer, tokenizer, sources, separator=SEPARATOR, batch_size=batch_size))
    assert all(batches)
    return [segment for batch in batches for segment in batch]


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_segments_are_the_text_token_by_token_in_order(tokenizer, batch_size, tmp_path, monkeypatch):
    monkeypatch.setattr("lm.text.files.BLOCK_BYTES", 37)
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
    monkeypatch.setattr("lm.text.files.BLOCK_BYTES", 37)
    monkeypatch.setattr("lm.tokenizer.tokenizer.split_into_pieces.__kwdefaults__", {"limit": 200})
    pieces = {s.piece.first: s.piece for s in scored(BPE, tmp_path, "owl" * 300 + " and the fox " * 100)}
    assert len(pieces) > 3
    assert sum(piece.words for piece in pieces.values()) == 1 + 3 * 100


def test_what_is_held_of_a_long_file_is_bounded(tmp_path, monkeypatch):
    """A batch is scored as soon as there is enough text for it, whatever follows."""
    taken = []

    def endless(_source, _separator):
        while True:
            taken.append(len(taken))
            yield TextPiece(TEXT * 500, starts_document=len(taken) == 1)

    monkeypatch.setattr("lm.evaluation.file_scoring.read_pieces", endless)
    (tmp_path / "a.txt").touch()
    sources = find_text_files([str(tmp_path / "a.txt")])
    window_scorer = build_window_scorer(make_model(), CHAR, context=16, stride=16)
    batches = score_files(window_scorer, CHAR, sources, separator=SEPARATOR, batch_size=16)
    seen = sum(len(segment.nats) for _ in range(300) for segment in next(batches))
    assert seen == 300 * 16 * 16 + 1
    assert len(taken) < seen / len(TEXT * 500) + 4
