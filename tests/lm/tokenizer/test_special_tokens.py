"""The tokens around texts, for tokenizers made elsewhere and for such as have none of them."""

from __future__ import annotations

import numpy as np
import pytest

from lm.config.tokenizer import TokenizerConfig
from lm.errors import UsageError
from lm.tokenizer import training
from lm.tokenizer.special_tokens import (
    LanguageTag,
    SpecialTokenFrame,
    build_example_frame,
    build_pair_frames,
    build_text_frame,
    require_mask_token,
)
from lm.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def endless() -> Tokenizer:
    return training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3).tokenizer


def test_a_frame_stands_around_texts_that_follow_each_other() -> None:
    frame = SpecialTokenFrame((8,), (9, 7))
    ids = frame.wrap([1, 2], np.array([3], dtype=np.uint32), [])
    assert (ids.tolist(), ids.dtype) == ([8, 1, 2, 3, 9, 7], np.int64)
    assert len(frame) == 3
    assert SpecialTokenFrame().wrap([1]).tolist() == [1]
    assert len(SpecialTokenFrame()) == 0


def test_a_text_starts_and_ends_as_the_tokenizer_says(elsewhere: Tokenizer, endless: Tokenizer) -> None:
    frame = build_text_frame(elsewhere)
    assert frame.before == (() if elsewhere.start_of_text is None else (elsewhere.start_of_text,))
    assert frame.after == (() if elsewhere.end_of_text is None else (elsewhere.end_of_text,))
    assert build_text_frame(endless) == SpecialTokenFrame()


@pytest.mark.parametrize("name", ["<s>", "</s>"])
def test_one_token_that_starts_or_ends_texts_does_both(name: str) -> None:
    """So that a tokenizer has both or neither."""
    trained = training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3, special_tokens=[name]).tokenizer
    token = trained.special_tokens[name]
    assert build_example_frame(trained) == SpecialTokenFrame((token,), (token,))


def test_examples_and_pairs_need_an_end(gpt2: Tokenizer, endless: Tokenizer) -> None:
    assert build_example_frame(gpt2) == build_text_frame(gpt2)
    with pytest.raises(UsageError, match="no end-of-text token, so no completion could end"):
        build_example_frame(endless)
    for tokenizers in ((endless, gpt2), (gpt2, endless)):
        with pytest.raises(UsageError, match="no token that ends a text"):
            build_pair_frames(*tokenizers)


def test_each_side_of_a_pair_ends_as_its_own_tokenizer_says(gpt2: Tokenizer) -> None:
    byte = training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer
    frames = build_pair_frames(gpt2, byte)
    assert (frames.source, frames.target) == (
        SpecialTokenFrame((), (byte.end_of_text,)),
        SpecialTokenFrame((), (gpt2.end_of_text,)),
    )
    assert frames.start == gpt2.start_of_text
    tagged = build_pair_frames(gpt2, tag=LanguageTag("de", "<2de>", 5))
    assert (tagged.source, tagged.target) == (SpecialTokenFrame((5,), (gpt2.end_of_text,)), frames.target)


def test_a_mask_is_found_by_its_name_or_asked_for(endless: Tokenizer) -> None:
    for name in ("[MASK]", "<mask>"):
        trained = training.train(["abc"], TokenizerConfig(kind="char"), corpus_bytes=3, special_tokens=[name])
        assert require_mask_token(trained.tokenizer) == trained.tokenizer.special_tokens[name]
    with pytest.raises(UsageError, match=r"no \[MASK\] token"):
        require_mask_token(endless)
