"""What a tokenizer can be trained with."""

from __future__ import annotations

import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError
from lm.tokenizer.training import check


@pytest.mark.parametrize(
    ("special", "least"), [(["<a>"], 258), (["<a>", "<a>", "<|endoftext|>"], 258), (["<a>", "<b>"], 259)]
)
def test_a_vocabulary_has_room_for_bytes_and_special_tokens_at_least(special, least):
    check(TokenizerConfig(kind="bpe", vocab_size=least), special_tokens=special)
    with pytest.raises(UsageError, match=f"vocab_size {least - 1} is too small: bytes and special tokens take {least}"):
        check(TokenizerConfig(kind="bpe", vocab_size=least - 1), special_tokens=special)
    for kind in ("byte", "char"):
        check(TokenizerConfig(kind=kind, vocab_size=least - 1), special_tokens=special)


def test_only_characters_may_be_unknown():
    check(TokenizerConfig(kind="char"), unknown="?")
    for kind in ("bpe", "byte"):
        with pytest.raises(UsageError, match="only --kind char takes --unknown"):
            check(TokenizerConfig(kind=kind), unknown="?")
    for unknown in ("", "??"):
        with pytest.raises(UsageError, match="must be one character"):
            check(TokenizerConfig(kind="char"), unknown=unknown)
    with pytest.raises(UsageError, match="cannot be empty"):
        check(TokenizerConfig(kind="char"), special_tokens=[""])
