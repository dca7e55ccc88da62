"""Examples are prepared once, and some are held out however few there are."""

from collections.abc import Sequence
from typing import Any

import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import text_corpus
from lm.corpus.tokenized_examples import open_examples
from lm.errors import InputError, UsageError
from lm.text.text_files import find_text_files
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import prepare
from tests.lm.corpus.small_examples import PAIRS, WHOLE, drawn, lines, source, tokenizer


def test_is_done_once_for_the_same_contents(tmp_path):
    first = prepare([source(tmp_path, lines(PAIRS))], tokenizer(), WHOLE, root=tmp_path / "cache")
    again = source(tmp_path, lines(PAIRS), name="other.jsonl")
    second = prepare([again], tokenizer(), WHOLE, root=tmp_path / "cache")
    assert (first.reused, second.reused, second.folder) == (False, True, first.folder)
    changed = source(tmp_path, lines([*PAIRS, ("", "x")]), name="other.jsonl")
    assert not prepare([changed], tokenizer(), WHOLE, root=tmp_path / "cache").reused


def test_the_same_file_as_text_is_something_else(tmp_path):
    text = '{"text": "a", "label": "b"}\n'
    examples = prepare([source(tmp_path, text)], tokenizer(), WHOLE, root=tmp_path / "cache")
    plain = find_text_files([str(tmp_path / "task.jsonl")])
    tokens = prepare(plain, tokenizer(), DataConfig(validation="0"), root=tmp_path / "cache")
    assert not tokens.reused
    assert (examples.manifest.supervised, tokens.manifest.supervised) == (True, False)
    with pytest.raises(InputError, match="train-examples.npy: missing"):
        open_examples(tokens.folder, "train")


def test_a_tokenizer_must_have_an_end(tmp_path):
    with pytest.raises(UsageError, match="no end-of-text token"):
        prepare([source(tmp_path, lines([("a", "b")]))], tokenizer("char"), WHOLE, tmp_path / "out")


def test_a_character_without_token_is_named_by_line(tmp_path):
    config = TokenizerConfig(kind="char")
    chars = training.train(["ab"], config, corpus_bytes=2, special_tokens=["<|endoftext|>"]).tokenizer
    with pytest.raises(InputError, match=r"task.jsonl: line 2: .*'é'"):
        prepare([source(tmp_path, lines([("a", "b"), ("a", "é")]))], chars, WHOLE, tmp_path / "out")


def test_progress_reaches_all_text(tmp_path):
    seen: list[tuple[int, int]] = []
    prepare([source(tmp_path, lines(PAIRS))], tokenizer(), WHOLE, tmp_path / "out",
            progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    size = sum(len((prompt + completion).encode()) for prompt, completion in PAIRS)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(("count", "held_out"), [(1, 0), (2, 1), (10, 1), (99, 9)])
def test_of_few_examples_some_are_held_out_nevertheless(count, held_out, tmp_path):
    pairs = [(f"prompt {number}", "x") for number in range(count)]
    config = DataConfig(validation="0.1", supervised=True)
    prepared = prepare([source(tmp_path, lines(pairs))], tokenizer(), config, tmp_path / "out")
    assert prepared.manifest.splits["validation"].documents == held_out
    assert prepared.manifest.splits["train"].documents == count - held_out


def test_the_text_in_all_batches_is_bounded(tmp_path, monkeypatch):
    sizes: list[int] = []

    class Watched(Tokenizer):
        def encode_batch(self, texts: Sequence[str]) -> list[Any]:
            sizes.append(sum(map(len, texts)))
            return super().encode_batch(texts)

    monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 100)
    pairs = drawn(200)
    watched = Watched(tokenizer()._backend)
    prepare([source(tmp_path, lines(pairs))], watched, WHOLE, tmp_path / "out")
    assert sum(sizes) == sum(len(prompt) + len(completion) for prompt, completion in pairs)
    assert max(sizes) < 100 + 35
