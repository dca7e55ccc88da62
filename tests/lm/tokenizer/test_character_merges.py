"""BPE whose merges stay within characters: a frequent character is one token, a rare one its bytes."""

from collections import Counter

import numpy as np
import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.corpus.ragged import RaggedArray
from lm.data.bpe_dropout import DropoutMerges, segment_words
from lm.decoding.token_healing import PromptEnding
from lm.errors import UsageError
from lm.interop.gguf.vocabulary import build_vocabulary
from lm.text.documents import TextPiece
from lm.tokenizer.offsets import TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from lm.tokenizer.training import train
from tests.lm.training.texts import of_characters

TEXT = of_characters(20_000) + " The cat's mat. \r\n\t Größe, größer! " * 3 + "龘🙂"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    config = TokenizerConfig(vocab_size=16_384, merges="characters")
    return train([TEXT], config, corpus_bytes=len(TEXT.encode())).tokenizer


def any_texts() -> list[str]:
    """Texts of any characters there are, with lone ones from all planes and from the training text."""
    draw = np.random.default_rng(4)
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    wild = ["".join(map(chr, draw.choice(points, size=300))) for _ in range(5)]
    mixed = [
        "".join(draw.choice([*TEXT[-400:], "\u0301", "\u200d", "<|endoftext|>", "\0"], size=300)) for _ in range(5)
    ]
    return ["", " ", "\n\n  \n", "👩‍👩‍👧 🇰🇷", *wild, *mixed]


def test_any_text_comes_back(tokenizer):
    for text in any_texts():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special=False) == text
        stream = tokenizer.decode_stream()
        assert "".join(map(stream.feed, ids)) + stream.finish() == text


def test_no_token_crosses_characters(tokenizer):
    for text in any_texts():
        assert tokenizer.encode(text) == [token for character in text for token in tokenizer.encode(character)]


def test_a_character_that_occurs_twice_is_one_token_and_a_rare_one_its_bytes(tokenizer):
    for character, times in Counter(TEXT).items():
        ids = tokenizer.encode(character)
        assert b"".join(map(tokenizer.token_bytes, ids)) == character.encode()
        assert len(ids) == 1 or times == 1
    assert len(tokenizer.encode("𐍈")) == len("𐍈".encode())
    assert tokenizer.unknown is None


def test_a_small_vocabulary_has_the_most_frequent_characters():
    config = TokenizerConfig(vocab_size=400, merges="characters")
    small = train([TEXT], config, corpus_bytes=len(TEXT.encode())).tokenizer
    assert small.vocab_size == 400
    frequent = Counter(TEXT).most_common(20)
    assert all(len(small.encode(character)) == 1 for character, _ in frequent)


def test_what_a_tokenizer_merges_is_known_when_it_is_loaded(tokenizer, gpt2, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.merges_within_characters
    assert loaded.sha256 == tokenizer.sha256
    assert not gpt2.merges_within_characters
    for kind in ("char", "byte"):
        assert not train([TEXT], TokenizerConfig(kind=kind), corpus_bytes=1).tokenizer.merges_within_characters


def test_pieces_of_a_text_have_the_tokens_of_the_whole(tokenizer):
    cut = list(split_into_pieces([TextPiece(TEXT, starts_document=True)], tokenizer, limit=2000))
    assert len(cut) > 5
    joined = [token for piece in cut for token in tokenizer.encode(piece.context + piece.text)[piece.context_tokens :]]
    assert joined == tokenizer.encode(TEXT)


def test_tokens_end_where_their_bytes_do(tokenizer):
    text = "Größe龘" + TEXT[:50]
    ids = np.array(tokenizer.encode(text))
    ends = TokenOffsets(tokenizer).ends(TextPiece(text, starts_document=True), ids)
    assert ends.tolist() == np.cumsum([len(tokenizer.token_bytes(index)) for index in ids]).tolist()
    assert set(np.cumsum([len(character) for character in text])) >= set(tokenizer.character_ends(text))


def test_dropout_of_merges_leaves_bytes_of_the_same_characters(tokenizer):
    merges = DropoutMerges.from_tokenizer(tokenizer)
    characters = list(dict.fromkeys(TEXT[:200]))
    letters = merges.characters(RaggedArray.from_rows([tokenizer.encode(character) for character in characters]))
    keys = np.arange(len(characters), dtype=np.uint64)
    for dropout, is_whole in ((0.0, True), (1.0, False)):
        words = segment_words(letters, merges, dropout=dropout, keys=keys)
        for place, character in enumerate(characters):
            ids = words.take(np.array([place])).values.tolist()
            assert b"".join(map(tokenizer.token_bytes, ids)) == character.encode()
            assert len(ids) == (len(tokenizer.encode(character)) if is_whole else len(character.encode()))


def test_a_prompt_cannot_end_within_a_token(tokenizer):
    assert PromptEnding.find(tokenizer, TEXT[:20], [0, *tokenizer.encode(TEXT[:20])]) is None


def test_llama_cpp_has_no_such_tokenizer(tokenizer):
    with pytest.raises(UsageError, match="no counterpart of the tokenizer.s pre_tokenizer"):
        build_vocabulary(tokenizer, tokenizer.vocab_size)
