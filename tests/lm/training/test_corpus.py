"""A corpus is of text or of pairs, and comes with the tokenizers that made its tokens."""

from contextlib import nullcontext

import pytest

from lm.config.presets import build_run_config
from lm.config.run_spec import DataFiles
from lm.training.training_corpus import CorpusFiles


@pytest.mark.parametrize("separate", [False, True])
def test_pairs_have_one_tokenizer_or_two(tmp_path, separate, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("".join(f"{number} {language}\n" for number in range(200)))
    settings = {"tokenizer": {"vocab_size": 280}, "parallel": {"separate_vocabularies": separate}}
    config = build_run_config("translation-tiny", settings)
    files = CorpusFiles(DataFiles(source=(str(tmp_path / "text.en"),), target=(str(tmp_path / "text.de"),)), config)
    assert files.kind == "pairs"
    prepared = files.prepare(config, None, nullcontext)
    assert (prepared.source_tokenizer is not None) is separate
    again = files.prepare(config, prepared.folder / "tokenizer.json", nullcontext)
    assert (again.folder == prepared.folder) is not separate
