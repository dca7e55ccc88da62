"""A corpus is of text or of pairs, and comes with the tokenizers that made its tokens."""

import pytest

from lm.config.presets import build_run_config
from lm.config.run_spec import DataFiles
from lm.corpus.prepare_corpus import choose_held_out_text
from lm.training.training_corpus import TrainingCorpus, no_progress, open_corpus


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))


def prepare(corpus, config, tokenizer) -> TrainingCorpus:
    """The corpus that the last event of its preparation has."""
    *_, event = corpus.prepare(config, tokenizer, no_progress)
    return event.corpus


def test_text_has_one_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("the owl saw the fox\n" * 40)
    corpus = open_corpus(DataFiles((str(tmp_path / "text.txt"),)))
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
    corpus = open_corpus(DataFiles(source=(str(tmp_path / "text.en"),), target=(str(tmp_path / "text.de"),)))
    assert corpus.holds_pairs
    settings = {"tokenizer": {"vocab_size": 280}, "parallel": {"separate_vocabularies": separate}}
    prepared = prepare(corpus, build_run_config("translation-tiny", settings), None)
    assert (prepared.source_tokenizer is not None) is separate
    assert prepared.folder.is_dir()


@pytest.mark.parametrize(("last", "by_hash"), [(20, True), (100_000, False)], ids=["even", "uneven"])
def test_text_is_read_once_whatever_fraction_is_held_out_in_the_end(tmp_path, last, by_hash):
    """A budget chooses a smaller fraction of a large text, which was read with the default before."""
    sizes = [20] * 2000 + [last]
    texts = (f"{number} the owl " * size for number, size in enumerate(sizes))
    (tmp_path / "text.txt").write_text("\n<|endoftext|>\n".join(texts))
    corpus = open_corpus(DataFiles((str(tmp_path / "text.txt"),)))
    for fraction in ("0.1", "0.02", "0.5"):
        config = build_run_config("tiny", {"data": {"validation": fraction}})
        assert (choose_held_out_text(corpus.survey(config)).end is None) == by_hash, fraction
