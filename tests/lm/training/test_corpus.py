"""A corpus is of text or of pairs, and comes with the tokenizers that made its tokens."""

import pytest

from lm.config.presets import build_run_config
from lm.config.run_spec import DataFiles
from lm.training.training_corpus import CorpusFiles, TrainingCorpus, no_progress


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))


def prepare(corpus, config, tokenizer) -> TrainingCorpus:
    """The corpus that the last event of its preparation has."""
    *_, event = corpus.prepare(config, tokenizer, no_progress)
    return event.corpus


def test_text_has_one_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("the owl saw the fox\n" * 40)
    corpus = CorpusFiles(DataFiles((str(tmp_path / "text.txt"),)))
    assert not corpus.holds_pairs
    prepared = prepare(corpus, build_run_config("tiny", {"tokenizer": {"kind": "char"}}), None)
    assert prepared.source_tokenizer is None
    assert prepared.tokenizer.kind == "char"
    again = prepare(corpus, build_run_config("tiny"), prepared.folder / "tokenizer.json")
    assert again.folder == prepared.folder


@pytest.mark.parametrize("separate", [False, True])
def test_pairs_have_one_or_two(tmp_path, separate):
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("".join(f"{number} {language}\n" for number in range(200)))
    corpus = CorpusFiles(DataFiles(source=(str(tmp_path / "text.en"),), target=(str(tmp_path / "text.de"),)))
    assert corpus.holds_pairs
    settings = {"tokenizer": {"vocab_size": 280}, "parallel": {"separate_vocabularies": separate}}
    prepared = prepare(corpus, build_run_config("translation-tiny", settings), None)
    assert (prepared.source_tokenizer is not None) is separate
    assert prepared.folder.is_dir()
