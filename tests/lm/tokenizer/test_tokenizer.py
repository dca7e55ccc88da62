"""Any tokenizer.json encodes as the library does, and every text survives."""

import copy
import json
import random
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers

from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.full_disk import full_disk

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 20
LOSSLESS = [
    "",
    " ",
    "plain",
    "  leading and trailing  ",
    "\n\n\ttabs\r\nand\rline\nends\r\n",
    "한국어 문장, 한글 자모 ㄱㅏ각",
    "🙂👩‍👩‍👧‍👦🇰🇷 e\u0301 (combining) \u200b\ufeff",
    "<|endoftext|> is text here, and so is </s>",
    "\U0010ffff \x01\x7f",
]


def train(text: str = TEXT, kind: str = "bpe", **settings: object) -> Tokenizer:
    config_fields = {key: settings.pop(key) for key in ("vocab_size", "min_frequency") if key in settings}
    config = TokenizerConfig(kind=kind, **config_fields)  # type: ignore[arg-type]
    return training.train([text], config, corpus_bytes=len(text.encode()), **settings).tokenizer  # type: ignore[arg-type]


def random_texts(count: int) -> list[str]:
    draw = random.Random(7)
    points = [point for point in range(1, 0x20000) if unicodedata.category(chr(point)) != "Cs"]
    return ["".join(chr(draw.choice(points)) for _ in range(draw.randrange(40))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_every_text_survives_encoding_and_decoding(kind):
    tokenizer = train(kind=kind, vocab_size=300)
    for text in LOSSLESS + random_texts(200):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_those_of_the_library(elsewhere, tmp_path):
    elsewhere.save(tmp_path / "tokenizer.json")
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["The cat sat.  On the\n\nmat 12345!", "고양이가 🙂", ""]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert [elsewhere.encode(text) for text in texts] == expected
    assert [ids.tolist() for ids in elsewhere.encode_batch(texts)] == expected


def test_saving_and_loading_keeps_the_hash(elsewhere, tmp_path):
    elsewhere.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.sha256 == elsewhere.sha256
    assert again.encode("the cat") == elsewhere.encode("the cat")


def test_spelling_a_special_token_makes_text_unless_asked(gpt2):
    special = gpt2.special_tokens["<|endoftext|>"]
    assert special not in gpt2.encode("a<|endoftext|>b")
    assert special in gpt2.encode("a<|endoftext|>b", parse_special=True)
    assert special not in gpt2.encode("a<|endoftext|>b")
    assert gpt2.decode([special]) == ""
    assert gpt2.decode([special], skip_special=False) == "<|endoftext|>"


def test_truncation_and_padding_in_a_file_are_ignored(gpt2, tmp_path):
    gpt2.save(tmp_path / "tokenizer.json")
    published = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    published.enable_truncation(2)
    published.enable_padding(length=50)
    assert Tokenizer(published).encode("the cat sat on the mat") == gpt2.encode("the cat sat on the mat")


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> Tokenizer:
    description = copy.deepcopy(tokenizer.description)
    change(description)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))


def test_tokenizers_have_the_same_vocabulary_however_they_cut_and_name_special_tokens():
    plain = train(kind="byte", special_tokens=["<spare>"])

    def rename(description: dict[str, Any]) -> None:
        description["added_tokens"][-1]["content"] = "<chat>"

    def swap(description: dict[str, Any]) -> None:
        vocabulary = description["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    same = [plain, changed(plain, lambda it: it["pre_tokenizer"].update(add_prefix_space=True)), changed(plain, rename)]
    other = [changed(plain, swap), train(kind="byte"), train(kind="bpe", vocab_size=258, special_tokens=["<spare>"])]
    assert all(each.has_same_vocabulary(plain) and plain.has_same_vocabulary(each) for each in same)
    assert not any(each.has_same_vocabulary(plain) or plain.has_same_vocabulary(each) for each in other)


def test_a_tokenizer_is_extended_by_special_tokens_alone():
    plain = train(kind="byte")
    extended = plain.with_chat_template()

    def make_last_ordinary(description: dict[str, Any]) -> None:
        description["added_tokens"][-1]["special"] = False

    assert extended.extends(plain)
    assert not any(each.extends(plain) for each in (plain, changed(extended, make_last_ordinary), train()))
    assert not plain.extends(extended)


@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_bpe_dropout_in_a_file_is_ignored(dropout, tmp_path):
    plain = train(vocab_size=300)
    description = copy.deepcopy(plain.description)
    description["model"]["dropout"] = dropout
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    for _ in range(5):
        assert loaded.encode(TEXT) == plain.encode(TEXT)
    assert loaded.sha256 == plain.sha256  # the same tokens, so the same keys of caches


def test_unigram_sampling_is_ignored():
    pieces = [("a", -1.0), ("b", -2.0), ("ab", -1.5), ("ba", -2.2), ("aa", -1.9)]
    sampling = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False, alpha=0.5, nbest_size=10))
    plain = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    loaded = Tokenizer(sampling)
    assert {tuple(loaded.encode("abaababab")) for _ in range(20)} == {tuple(plain.encode("abaababab").ids)}


@pytest.mark.parametrize(
    ("specials", "start", "end"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|endoftext|>", "<|endoftext|>"),
        (["<unk>", "<s>", "</s>"], "<s>", "</s>"),
        (["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], "<|begin_of_text|>", "<|end_of_text|>"),
        (["<bos>", "<eos>"], "<bos>", "<eos>"),
        (["<|bos|>"], "<|bos|>", "<|bos|>"),
        ([], None, None),
    ],
)
def test_start_and_end_of_text(specials, start, end):
    tokenizer = train(kind="char", special_tokens=specials)
    assert tokenizer.start_of_text == tokenizer.special_tokens.get(start or "")
    assert tokenizer.end_of_text == tokenizer.special_tokens.get(end or "")


def test_vocab_size_covers_the_greatest_id_where_there_are_gaps():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    assert Tokenizer(backend).vocab_size == 10


class TestCharacters:
    def test_vocabulary_is_the_corpus_in_code_point_order(self):
        tokenizer = train("banana\n한é ", kind="char")
        assert [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)] == sorted(set("banana\n한é "))
        assert tokenizer.special_tokens == {}

    def test_the_library_gives_the_same_ids_from_the_file(self, tmp_path):
        text = TEXT + "\r\n\t 한글 é🙂"
        tokenizer = train(text, kind="char", special_tokens=["<|endoftext|>"])
        tokenizer.save(tmp_path / "tokenizer.json")
        reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert tokenizer.encode(text) == reference.encode(text).ids
        assert reference.decode(reference.encode(text).ids) == text == tokenizer.decode(tokenizer.encode(text))
        with pytest.raises(Exception, match="Missing"):
            reference.encode("Ω")

    def test_an_unseen_character_is_named(self):
        with pytest.raises(InputError, match=r"'Ω' \(U\+03A9 GREEK CAPITAL LETTER OMEGA\)"):
            train("abc", kind="char").encode("abΩ")

    def test_an_unseen_character_is_replaced_if_asked_and_in_the_library_too(self, tmp_path):
        tokenizer = train("abc", kind="char", unknown="?")
        tokenizer.save(tmp_path / "tokenizer.json")
        reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert tokenizer.decode(tokenizer.encode("aΩb")) == "a?b"
        assert reference.encode("aΩb").ids == Tokenizer.load(tmp_path / "tokenizer.json").encode("aΩb")


def test_byte_ids_are_byte_values_as_in_the_library(tmp_path):
    tokenizer = train(kind="byte")
    assert tokenizer.vocab_size == 257
    tokenizer.save(tmp_path / "tokenizer.json")
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*LOSSLESS[:-2], *random_texts(20)]:
        assert tokenizer.encode(text) == list(text.encode()) == reference.encode(text).ids


def test_token_bytes_joined_are_the_text(gpt2, cl100k):
    for tokenizer in (gpt2, cl100k, train(kind="byte")):
        for text in LOSSLESS:
            assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_token_bytes_elsewhere_have_their_space(elsewhere):
    ids = elsewhere.encode("the cat")
    assert b"".join(map(elsewhere.token_bytes, ids)).decode().strip() == "the cat"


def test_a_vocabulary_without_letters_spells_its_tokens_too():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"7": 0}, unk_token="7"))
    assert Tokenizer(backend).token_bytes(0).strip() == b"7"


@pytest.mark.parametrize("index", [-1, 257])
def test_decoding_an_id_beyond_the_vocabulary_is_refused(index):
    with pytest.raises(InputError, match="IDs go from 0 to 256"):
        train(kind="byte").decode([1, index])


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"version": "1.0"}', "[1, 2]"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer\.json"):
        Tokenizer.load(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: no such tokenizer file"):
        Tokenizer.load(tmp_path / "nowhere.json")


def test_a_tokenizer_that_cannot_be_saved_leaves_the_old_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("old")
    made = training.train([TEXT], TokenizerConfig(kind="byte"), corpus_bytes=len(TEXT)).tokenizer
    with full_disk(after=100), pytest.raises(OSError, match=r"File too large: '.*tokenizer\.json'"):
        made.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
