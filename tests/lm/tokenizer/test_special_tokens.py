"""The tokens around texts and those that name languages, for tokenizers made here and elsewhere."""

import numpy as np
import pytest
import tokenizers

from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError
from lm.tokenizer import training
from lm.tokenizer.special_tokens import (
    LanguageTag,
    SpecialTokenFrame,
    build_example_frame,
    build_pair_frames,
    build_text_frame,
    choose_language_tag,
    find_language_tags,
    format_language_tag,
    require_mask_token,
)
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.tokenizers_elsewhere import backend


@pytest.fixture
def endless() -> Tokenizer:
    return training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3).tokenizer


def test_a_frame_stands_around_texts_that_follow_each_other():
    frame = SpecialTokenFrame((8,), (9, 7))
    ids = frame.wrap([1, 2], np.array([3], dtype=np.uint32), [])
    assert (ids.tolist(), ids.dtype) == ([8, 1, 2, 3, 9, 7], np.int64)
    assert len(frame) == 3
    assert SpecialTokenFrame().wrap([1]).tolist() == [1]
    assert len(SpecialTokenFrame()) == 0


def test_a_text_starts_and_ends_as_the_tokenizer_says(elsewhere, endless):
    frame = build_text_frame(elsewhere)
    assert frame.before == (() if elsewhere.start_of_text is None else (elsewhere.start_of_text,))
    assert frame.after == (() if elsewhere.end_of_text is None else (elsewhere.end_of_text,))
    assert build_text_frame(endless) == SpecialTokenFrame()


@pytest.mark.parametrize("name", ["<s>", "</s>"])
def test_one_token_that_starts_or_ends_texts_does_both(name):
    """So that a tokenizer has both or neither."""
    trained = training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3, special_tokens=[name]).tokenizer
    token = trained.special_tokens[name]
    assert build_example_frame(trained) == SpecialTokenFrame((token,), (token,))


def test_examples_and_pairs_need_an_end(gpt2, endless):
    assert build_example_frame(gpt2) == build_text_frame(gpt2)
    with pytest.raises(UsageError, match="no end-of-text token, so no completion could end"):
        build_example_frame(endless)
    for both in ((endless, gpt2), (gpt2, endless)):
        with pytest.raises(UsageError, match="no token that ends a text"):
            build_pair_frames(*both)


def test_each_side_of_a_pair_ends_as_its_own_tokenizer_says(gpt2):
    byte = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer
    frames = build_pair_frames(gpt2, byte)
    assert (frames.source, frames.target) == (
        SpecialTokenFrame((), (byte.end_of_text,)),
        SpecialTokenFrame((), (gpt2.end_of_text,)),
    )
    assert frames.start == gpt2.start_of_text
    tagged = build_pair_frames(gpt2, tag=LanguageTag("de", "<2de>", 5))
    assert (tagged.source, tagged.target) == (SpecialTokenFrame((5,), (gpt2.end_of_text,)), frames.target)


def test_a_mask_is_found_by_its_name_or_asked_for(endless):
    for name in ("[MASK]", "<mask>"):
        trained = training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3, special_tokens=[name])
        assert require_mask_token(trained.tokenizer) == trained.tokenizer.special_tokens[name]
    with pytest.raises(UsageError, match=r"no \[MASK\] token"):
        require_mask_token(endless)


@pytest.fixture
def both(gpt2) -> Tokenizer:
    made = tokenizers.Tokenizer.from_str(backend("gpt2").to_str())
    made.add_special_tokens([format_language_tag("de"), format_language_tag("pt-BR"), "<2>", "<x2de>"])
    return Tokenizer(made)


def test_tags_are_the_special_tokens_that_name_a_language(both, gpt2):
    assert find_language_tags(gpt2) == {}
    tags = find_language_tags(both)
    assert list(tags) == ["de", "pt-BR"]
    assert tags["de"] == LanguageTag("de", "<2de>", both.special_tokens["<2de>"])
    assert [tag.token for tag in tags.values()] == ["<2de>", "<2pt-BR>"]


def test_a_single_direction_has_no_tag_and_none_to_ask_for(gpt2):
    assert choose_language_tag(gpt2, None) is None
    assert choose_language_tag(gpt2, None, file_language="de") is None
    with pytest.raises(UsageError, match="this model has one direction, not 'de'"):
        choose_language_tag(gpt2, "de")


def test_what_is_asked_for_wins_over_what_a_file_tells(both):
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
def test_of_several_directions_one_must_be_chosen(both, asked, told, message):
    with pytest.raises(UsageError, match=message):
        choose_language_tag(both, asked, file_language=told)
