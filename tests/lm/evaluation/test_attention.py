"""The maps of a loaded model frame a text as the model reads it."""

import numpy as np
import pytest

from lm.checkpoint import load_model
from lm.config.hardware import HardwareConfig
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.evaluation.attention import compute_attention, compute_translation_attention
from lm.hardware import select_inference_hardware
from tests.cli.small_runs import make_run
from tests.cli.toy_translation import make_translation_run
from tests.tolerances import approx


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    return load_model(make_run(tmp_path_factory.mktemp("run") / "writer"), select_inference_hardware(HardwareConfig()))


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = make_translation_run(tmp_path_factory.mktemp("run") / "translator", steps=20)
    return load_model(folder, select_inference_hardware(HardwareConfig()))


def test_a_text_begins_with_its_start_and_sees_no_future(writer):
    found = compute_attention(writer, "The owl saw")
    assert found.texts == ("The owl saw",)
    assert found.map.queries.labels == found.map.keys.labels == ("<s>", "The", "owl", "saw")
    assert np.triu(found.map.weights.mean((0, 1)), 1).max() == 0


def test_an_encoder_sees_all_of_a_source_and_its_end(translator):
    found = compute_attention(translator, "one fox").map
    assert (found.kind, found.is_causal, found.keys.labels) == ("self", False, ("one", "fox", "</s>"))
    assert found.weights.sum(-1) == approx(np.ones(found.weights.shape[:-1]), terms=64)


def test_words_of_a_translation_look_at_the_source_whether_its_end_is_given_or_not(translator):
    model = TranslationModel.from_loaded(translator)
    tokens = model.tokenizer.encode("Fuchs eins")
    found = compute_attention(translator, "one fox", "Fuchs eins")
    ended = compute_translation_attention(
        model, "one fox", [*tokens, model.tokenizer.end_of_text], unit="words", to=None
    )
    assert found.texts == ended.texts == ("one fox", "Fuchs eins")
    assert found.map.queries.labels == ("Fuchs", "eins", "</s>")
    assert found.map.weights == approx(ended.map.weights, model=model.model)


def test_tokens_may_be_shown_instead_of_words(writer):
    words, tokens = (compute_attention(writer, "The owl", unit=unit).map for unit in ("words", "tokens"))
    assert len(tokens.keys.labels) == 1 + len(writer.tokenizer.encode("The owl")) >= len(words.keys.labels)


def test_languages_are_for_models_that_have_several(writer, translator):
    with pytest.raises(UsageError, match="continues texts; it has no language 'de'"):
        compute_attention(writer, "The owl", to="de")
    with pytest.raises(UsageError, match="this model has one direction"):
        compute_attention(translator, "one fox", to="de")
    with pytest.raises(UsageError, match="continues texts"):
        compute_attention(writer, "The owl", "Die Eule")
