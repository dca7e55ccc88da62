"""A model with several directions is told which; one with a single direction has nothing to be told."""

from __future__ import annotations

import pytest
import tokenizers

from lm.errors import UsageError
from lm.tokenizer.special_tokens import LanguageTag, choose_language_tag, find_language_tags, format_language_tag
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.tokenizers_elsewhere import backend


@pytest.fixture
def both(gpt2: Tokenizer) -> Tokenizer:
    made = tokenizers.Tokenizer.from_str(backend("gpt2").to_str())
    made.add_special_tokens([format_language_tag("de"), format_language_tag("pt-BR"), "<2>", "<x2de>"])
    return Tokenizer(made)


def test_tags_are_the_special_tokens_that_name_a_language(both: Tokenizer, gpt2: Tokenizer) -> None:
    assert find_language_tags(gpt2) == {}
    tags = find_language_tags(both)
    assert list(tags) == ["de", "pt-BR"]
    assert tags["de"] == LanguageTag("de", "<2de>", both.special_tokens["<2de>"])
    assert [tag.token for tag in tags.values()] == ["<2de>", "<2pt-BR>"]


def test_a_single_direction_has_no_tag_and_none_to_ask_for(gpt2: Tokenizer) -> None:
    assert choose_language_tag(gpt2, None) is None
    assert choose_language_tag(gpt2, None, file_language="de") is None
    with pytest.raises(UsageError, match="this model has one direction, not 'de'"):
        choose_language_tag(gpt2, "de")


def test_what_is_asked_for_wins_over_what_a_file_tells(both: Tokenizer) -> None:
    german = find_language_tags(both)["de"]
    assert choose_language_tag(both, "de") == choose_language_tag(both, None, file_language="de") == german
    assert (
        choose_language_tag(both, "de", file_language="pt-BR")
        == choose_language_tag(both, "de", file_language="fr")
        == german
    )


@pytest.mark.parametrize(
    ("asked", "told", "message"),
    [
        (None, None, r"translates into de, pt-BR; say into which"),
        (None, "fr", r"translates into de, pt-BR, not into 'fr'; say into which"),
        ("fr", None, "translates into de, pt-BR, not 'fr'"),
        ("fr", "de", "translates into de, pt-BR, not 'fr'"),
    ],
)
def test_of_several_directions_one_must_be_chosen(
    both: Tokenizer, asked: str | None, told: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose_language_tag(both, asked, file_language=told)
