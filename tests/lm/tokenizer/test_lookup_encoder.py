"""A table stands in for a tokenizer only where it gives the same ids."""

import copy
import json
import tempfile

import pytest
import tokenizers

from lm.config.tokenizer import TokenizerConfig
from lm.tokenizer import training
from lm.tokenizer.lookup_encoder import LookupEncoder
from tests.lm.tokenizers_elsewhere import TEXT


def backend(kind: str) -> tokenizers.Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=300)
    trained = training.train([TEXT], config, corpus_bytes=len(TEXT.encode())).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        trained.save(f"{folder}/tokenizer.json")
        return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def described(kind: str) -> dict:
    return json.loads(backend(kind).to_str())


@pytest.mark.parametrize(("kind", "unit"), [("char", "character"), ("byte", "byte")])
def test_its_ids_are_the_tokenizers(kind, unit):
    table = LookupEncoder.from_json(described(kind))
    assert table.unit == unit
    assert table.encode(TEXT).tolist() == backend(kind).encode(TEXT, add_special_tokens=False).ids


def test_there_is_none_for_merges():
    assert LookupEncoder.from_json(described("bpe")) is None


CHANGES = {
    "byte": [
        (("normalizer",), {"type": "Lowercase"}),
        (("pre_tokenizer",), None),
        (("pre_tokenizer", "add_prefix_space"), True),
        (("pre_tokenizer", "use_regex"), True),
        (("pre_tokenizer", "type"), "Whitespace"),
        (("model", "merges"), [["a", "b"]]),
        (("model", "type"), "Unigram"),
    ],
    "char": [
        (("normalizer",), {"type": "Lowercase"}),
        (("pre_tokenizer",), None),
        (("pre_tokenizer", "behavior"), "Removed"),
        (("pre_tokenizer", "type"), "Whitespace"),
        (("model", "type"), "WordPiece"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "place", "value"), [(kind, *change) for kind, changes in CHANGES.items() for change in changes]
)
def test_there_is_none_where_encoding_takes_more(kind, place, value):
    description = copy.deepcopy(described(kind))
    *outer, last = place
    inner = description
    for name in outer:
        inner = inner[name]
    inner[last] = value
    assert LookupEncoder.from_json(description) is None


def test_there_is_none_where_a_byte_has_no_id_or_an_ordinary_token_was_added():
    description = described("byte")
    without = copy.deepcopy(description)
    del without["model"]["vocab"]["a"]
    assert LookupEncoder.from_json(without) is None
    special = {"id": 999, "content": "<x>", "special": True}
    description["added_tokens"].append(special)
    assert LookupEncoder.from_json(description) is not None
    description["added_tokens"].append({**special, "special": False})
    assert LookupEncoder.from_json(description) is None
