"""Exported runs load in transformers without code of ours, and give the same logits."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm.api import export
from lm.checkpoint import load_model
from lm.hardware import Hardware
from tests.cli.small_runs import make_run
from tests.lm.interop.hugging_face.models import FIELDS, compare_padded, ids, loaded_export, random_config, random_run
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)


@pytest.mark.parametrize("seed", slow_after(1, range(14)))
@pytest.mark.parametrize("family", FIELDS)
def test_logits_are_those_of_the_run(family, seed, tmp_path):
    """Cached, and with rows padded on the left too."""
    run = random_run(tmp_path / "run", random_config(family, seed))
    ours, theirs = load_model(run, HARDWARE).model, loaded_export(run, tmp_path / "out", AutoModelForCausalLM)
    assert theirs.config.model_type == family
    tokens = ids(3, 24, seed=seed)
    with torch.no_grad():
        expected, cache = theirs(tokens).logits, ours.new_cache()
        assert_close(ours(tokens), expected, model=ours)
        stepped = [ours(part, cache=cache) for part in tokens.split([9, 1, 1, 13], dim=1)]
        assert_close(torch.cat(stepped, dim=1), expected, model=ours)
        compare_padded(ours, theirs, tokens)


def test_generate_ends_texts_and_draws_as_ours_do(tmp_path):
    export(make_run(tmp_path / "run"), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert settings.eos_token_id == settings.bos_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert settings.do_sample
    assert settings.temperature == 0.8
    assert tokenizer.chat_template is None
