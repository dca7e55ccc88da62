"""Pairs are read once for all questions about them, and not at all for their size."""

from __future__ import annotations

import gzip

import pytest

from cli.training import pairs
from cli.training.pairs import PairCorpus
from cli.training.request import PairFiles
from lm.config.presets import resolve


@pytest.fixture
def surveys(monkeypatch):
    """How often the files were read."""
    counted = []
    survey = pairs.survey

    def counting(*arguments, **options):
        counted.append(arguments)
        return survey(*arguments, **options)

    monkeypatch.setattr(pairs, "survey", counting)
    return counted


@pytest.fixture
def files(tmp_path):
    (tmp_path / "text.en").write_text("one owl\ntwo owls\n")
    (tmp_path / "text.de").write_text("eine Eule\nzwei Eulen\n")
    return PairFiles((str(tmp_path / "text.en"),), (str(tmp_path / "text.de"),))


def test_the_size_of_files_needs_no_reading(files, surveys):
    assert PairCorpus(files).text_bytes(resolve("translation-tiny")) == 17 + 21
    assert surveys == []


def test_compressed_files_are_read_once(files, surveys, tmp_path):
    (tmp_path / "text.en.gz").write_bytes(gzip.compress((tmp_path / "text.en").read_bytes()))
    corpus, config = PairCorpus(PairFiles((str(tmp_path / "text.en.gz"),), files.target)), resolve("translation-tiny")
    assert corpus.text_bytes(config) == 15 + 19  # without line ends
    assert corpus.survey(config) is corpus.survey(config)
    assert len(surveys) == 1
