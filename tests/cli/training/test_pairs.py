"""Pairs are read once for all questions about them, and not at all for their size."""

import gzip
import json

import pytest

from cli.main import run
from cli.training.report import report
from lm.config.presets import build_run_config
from lm.config.run_config import RunConfig
from lm.config.run_spec import DataFiles
from lm.training import training_corpus
from lm.training.training_corpus import PairCorpus, no_progress

TINY = ("--d-model", "16", "--n-layers", "1", "--n-encoder-layers", "1", "--n-heads", "1", "--steps", "1",
        "--warmup-steps", "1", "--bleu-sentences", "2")  # fmt: skip
WITHOUT_MERGES = (["--kind", "byte"], ["--vocab-size", "257"], ["--vocab-size", "257", "--separate-vocabularies"])


def prepare(files: DataFiles, config: RunConfig) -> None:
    """Prepare pairs, with what is reported of that."""
    for event in PairCorpus(files).prepare(config, None, no_progress):
        report(event)


@pytest.fixture
def surveys(monkeypatch):
    """How often the files were read."""
    counted = []
    survey = training_corpus.survey_pairs

    def counting(*arguments, **options):
        counted.append(arguments)
        return survey(*arguments, **options)

    monkeypatch.setattr(training_corpus, "survey_pairs", counting)
    return counted


@pytest.fixture
def files(tmp_path):
    (tmp_path / "text.en").write_text("one owl\ntwo owls\n")
    (tmp_path / "text.de").write_text("eine Eule\nzwei Eulen\n")
    return DataFiles(source=(str(tmp_path / "text.en"),), target=(str(tmp_path / "text.de"),))


def test_the_size_of_files_needs_no_reading(files, surveys):
    assert PairCorpus(files).text_bytes(build_run_config("translation-tiny")) == 17 + 21
    assert surveys == []


def test_compressed_files_are_read_once(files, surveys, tmp_path):
    (tmp_path / "text.en.gz").write_bytes(gzip.compress((tmp_path / "text.en").read_bytes()))
    corpus, config = (
        PairCorpus(DataFiles(source=(str(tmp_path / "text.en.gz"),), target=files.target)),
        build_run_config("translation-tiny"),
    )
    assert corpus.text_bytes(config) == 15 + 19  # without line ends
    assert corpus.survey(config) is corpus.survey(config)
    assert len(surveys) == 1


@pytest.mark.medium
@pytest.mark.parametrize("kind", WITHOUT_MERGES, ids=" ".join)
def test_without_merges_a_preset_with_bpe_dropout_trains_without_it(pairs, capsys, tmp_path, monkeypatch, kind):
    """The preset, a file of settings and the environment name it for tokenizers that have merges."""
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    command = ["train", *pairs, "--preset", "translation", *TINY, *kind]
    assert run([*command, "-o", str(tmp_path / "preset")]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "preset" / "config.json").read_text())["parallel"]["bpe_dropout"] == 0
    assert "BPE dropout" not in capsys.readouterr().err
    monkeypatch.setenv("LM_BPE_DROPOUT", "0.2")
    assert run([*command, "-o", str(tmp_path / "environment")]) == 0, capsys.readouterr().err
    assert "no BPE dropout: a tokenizer has no merges to leave out" in capsys.readouterr().err


@pytest.mark.parametrize("kind", WITHOUT_MERGES, ids=" ".join)
def test_without_merges_a_flag_for_bpe_dropout_is_refused(pairs, capsys, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    assert run(["train", *pairs, *TINY, *kind, "--bpe-dropout", "0.1", "-o", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("lm: BPE dropout leaves out merges, and the tokenizer")
    assert said.endswith("has none: leave it out (--set parallel.bpe_dropout)")
    assert not (tmp_path / "run").exists()


def test_held_out_pairs_that_are_trained_on_are_warned_of(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    config = build_run_config("translation-tiny", {"tokenizer": {"kind": "byte"}})
    for name, language in (("text", "one"), ("other", "two")):
        (tmp_path / f"{name}.en").write_text("".join(f"{language} {number}\n" for number in range(40)))
        (tmp_path / f"{name}.de").write_text("".join(f"{number} {language}\n" for number in range(40)))
    sides = [[str(tmp_path / f"{name}.{side}") for side in ("en", "de")] for name in ("text", "other")]
    for held_out, warned in ((sides[0], True), (sides[1], False)):
        files = DataFiles((), sides[0][:1], sides[0][1:], (), *held_out)
        for _ in range(2):  # made, and found in the cache
            prepare(files, config)
            assert ("100% of the held-out pairs are among those to train on" in capsys.readouterr().err) is warned


def test_a_source_that_is_its_own_target_is_warned_of(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    config = build_run_config("translation-tiny", {"tokenizer": {"kind": "byte"}, "data": {"validation": "0"}})
    prepare(DataFiles(source=files.source, target=files.source), config)
    assert "source and target are the same text" in capsys.readouterr().err
