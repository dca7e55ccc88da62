"""Any tokenizer.json encodes as the library does, every text survives, and training is repeatable."""

import copy
import json
import random
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers

from lm.config.run_config import TokenizerConfig
from lm.tokenizer import Tokenizer, training

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
    return training.train([text], config, corpus_bytes=len(text.encode()), **settings)  # type: ignore[arg-type]


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


def test_spelling_a_special_token_makes_text_unless_asked(gpt2):
    special = gpt2.special_tokens["<|endoftext|>"]
    assert special not in gpt2.encode("a<|endoftext|>b")
    assert special in gpt2.encode("a<|endoftext|>b", parse_special=True)
    assert special not in gpt2.encode("a<|endoftext|>b")
    assert gpt2.decode([special]) == ""
    assert gpt2.decode([special], skip_special=False) == "<|endoftext|>"


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> Tokenizer:
    description = copy.deepcopy(tokenizer.description)
    change(description)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(description)))


def test_weights_fit_a_tokenizer_with_the_same_ordinary_tokens():
    plain = train(kind="byte", special_tokens=["<spare>"])

    def swap(description: dict[str, Any]) -> None:
        vocabulary = description["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    def make_last_ordinary(description: dict[str, Any]) -> None:
        description["added_tokens"][-1]["special"] = False

    larger = plain.with_chat_template()
    respaced = changed(plain, lambda it: it["pre_tokenizer"].update(add_prefix_space=True))
    assert all(each.extends(plain) for each in (plain, respaced, larger))
    other = [changed(plain, swap), changed(larger, make_last_ordinary), train(kind="byte"), train(vocab_size=258)]
    assert not any(each.extends(plain) for each in other)


@pytest.mark.parametrize(
    ("specials", "start", "end"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|endoftext|>", "<|endoftext|>"),
        (["<unk>", "<s>", "</s>"], "<s>", "</s>"),
        (["<|bos|>"], "<|bos|>", "<|bos|>"),
        ([], None, None),
    ],
)
def test_start_and_end_of_text(specials, start, end):
    tokenizer = train(kind="char", special_tokens=specials)
    assert tokenizer.start_of_text == tokenizer.special_tokens.get(start or "")
    assert tokenizer.end_of_text == tokenizer.special_tokens.get(end or "")


def test_character_ids_are_those_of_the_library(tmp_path):
    text = TEXT + "\r\n\t 한글 é🙂"
    tokenizer = train(text, kind="char", special_tokens=["<|endoftext|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(text) == reference.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_byte_ids_are_byte_values_as_in_the_library(tmp_path):
    tokenizer = train(kind="byte")
    assert tokenizer.vocab_size == 257
    tokenizer.save(tmp_path / "tokenizer.json")
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*LOSSLESS[:-2], *random_texts(20)]:
        assert tokenizer.encode(text) == list(text.encode()) == reference.encode(text).ids


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_training_twice_gives_the_same_bytes(kind):
    text = "".join(random.Random(3).choices("abcdefgh ", k=20_000))
    assert train(text, kind).sha256 == train(text, kind).sha256


def test_bpe_is_trained_on_a_sample_that_covers_the_corpus(monkeypatch):
    texts = [chr(ord("一") + number // 10) * 30 for number in range(1000)]
    settings = {"config": TokenizerConfig(vocab_size=600), "corpus_bytes": sum(len(text.encode()) for text in texts)}
    monkeypatch.setattr(training, "SAMPLE_BYTES", 9000)
    sampled = training.train(texts, **settings)
    assert sampled.sha256 == training.train(texts[9::10], **settings | {"corpus_bytes": 9000}).sha256
