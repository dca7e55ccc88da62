"""The settings of a command make a translator: one run or several, searching or sampling."""

from __future__ import annotations

import pytest

from cli.flags.options import ParsedOptions
from cli.translation.loading import load_translator
from lm.errors import UsageError
from tests.cli.small_runs import make_run
from tests.cli.toy_translation import SOURCE


@pytest.fixture
def translate(translation_run):
    """Translates a sentence with some settings."""

    def call(*, runs: int = 1, sample: bool = False, **sampling) -> str:
        given = ParsedOptions({"translation": {}, "sampling": sampling, "hardware": {"device": "cpu"}}, {})
        translator = load_translator([translation_run] * runs, given, to=None, sample=sample, at_once=True)
        return next(iter(translator.translate([SOURCE]))).translations[0].text

    return call


def test_an_ensemble_of_one_run_twice_equals_the_run(translate):
    assert translate(runs=2) == translate()


def test_samples_depend_on_the_seed(translate):
    assert translate(sample=True, temperature=9.0, seed=1) == translate(sample=True, temperature=9.0, seed=1)
    assert len({translate(sample=True, temperature=9.0, seed=seed) for seed in range(5)}) > 1


def test_a_run_that_continues_texts_does_not_translate(tmp_path):
    given = ParsedOptions({"translation": {}, "sampling": {}, "hardware": {}}, {})
    with pytest.raises(UsageError, match="only a run trained on sentence pairs translates"):
        load_translator([make_run(tmp_path / "gpt")], given, to=None, sample=False, at_once=False)
