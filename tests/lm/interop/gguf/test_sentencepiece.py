"""SentencePiece's tokenizers as llama.cpp has them, and those whose rules say something else."""

import pytest

from lm.interop.gguf import build_vocabulary
from tests.lm.interop.gguf.pieces_elsewhere import sentencepiece_like

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6


@pytest.mark.parametrize("begins_with_space", [True, False])
def test_pieces_have_scores_in_the_order_of_their_rules(begins_with_space):
    tokenizer = sentencepiece_like(begins_with_space=begins_with_space)
    size = tokenizer.vocab_size
    found = build_vocabulary(tokenizer, size + 2)
    told = {key.removeprefix("tokenizer.ggml."): value for key, value in found.items()}
    assert told["model"] == "llama"
    assert told["add_space_prefix"] is begins_with_space
    names = dict(zip(told["tokens"], told["token_type"], strict=True))
    assert names["<unk>"] == UNKNOWN
    assert names["<s>"] == names["</s>"] == CONTROL
    assert names["<0x0A>"] == BYTE
    assert names["▁the"] == NORMAL
    assert list(names.values())[size:] == [UNUSED] * 2
    scores = dict(zip(told["tokens"], told["scores"], strict=True))
    made = list(dict.fromkeys("".join(rule) for rule in tokenizer.description["model"]["merges"]))
    assert len(made) > 500
    assert [scores[token] for token in made] == [-float(rank) for rank in range(len(made))]
