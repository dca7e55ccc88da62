"""The tokens around texts and those that name languages, for tokenizers made here and elsewhere."""

import pytest
import tokenizers

from lm.config.run_config import TokenizerConfig
from lm.tokenizer import Tokenizer, training
from lm.tokenizer.chat_template import (
    LanguageTag,
    SpecialTokenFrame,
    build_pair_frames,
    find_language_tags,
    format_language_tag,
)
from tests.lm.tokenizers_elsewhere import backend


def test_each_side_of_a_pair_ends_as_its_own_tokenizer_says(gpt2):
    byte = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0)
    frames = build_pair_frames(gpt2, byte)
    assert (frames.source, frames.target) == (
        SpecialTokenFrame((), (byte.end_of_text,)),
        SpecialTokenFrame((), (gpt2.end_of_text,)),
    )
    assert frames.start == gpt2.start_of_text
    tagged = build_pair_frames(gpt2, tag=LanguageTag("de", "<2de>", 5))
    assert (tagged.source, tagged.target) == (SpecialTokenFrame((5,), (gpt2.end_of_text,)), frames.target)


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
