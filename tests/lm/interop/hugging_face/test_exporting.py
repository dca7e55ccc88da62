"""Exported runs load in transformers without code of ours, and give the same logits."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lm.checkpoint import load_model
from lm.errors import InputError, UsageError
from lm.hardware import Hardware
from lm.interop.hugging_face.exporting import export_hugging_face
from tests.cli.small_runs import make_run
from tests.lm.full_disk import full_disk
from tests.lm.interop.hugging_face.models import FIELDS, ids, random_config, random_run
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)


def both(tmp_path, config):
    """A run and what transformers makes of its export."""
    run = random_run(tmp_path / "run", config)
    family = export_hugging_face(run, tmp_path / "out").family
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(theirs).__name__ == family.architecture
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return load_model(run, HARDWARE).model, theirs.eval()


def compare(tmp_path, family, seed):
    config = random_config(family, seed)
    ours, theirs = both(tmp_path, config)
    assert theirs.config.model_type == family
    tokens = ids(3, 24, seed=seed)
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert_close(ours(tokens), expected, model=ours)
        cache = ours.new_cache()
        stepped = [ours(part, cache=cache) for part in tokens.split([9, 1, 1, 13], dim=1)]
        assert_close(torch.cat(stepped, dim=1), expected, model=ours)
        compare_cached_and_padded(ours, theirs, tokens)


def compare_cached_and_padded(ours, theirs, tokens):
    """Rows of theirs that end together, padded on the left and read in two steps, against each of ours alone."""
    lengths = torch.tensor([24, 17, 5])
    real = torch.arange(24) >= 24 - lengths[:, None]
    padded = torch.where(real, tokens, 0)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    first = theirs(padded[:, :20], attention_mask=real[:, :20], position_ids=positions[:, :20], use_cache=True)
    second = theirs(
        padded[:, 20:], attention_mask=real, position_ids=positions[:, 20:], past_key_values=first.past_key_values
    )
    for row, length in enumerate(lengths):
        alone = ours(tokens[row : row + 1, 24 - length :])
        assert_close(second.logits[row], alone[0, -4:], model=ours)


@pytest.mark.parametrize("seed", slow_after(2, range(14)))
@pytest.mark.parametrize("family", FIELDS)
def test_logits_are_those_of_the_run(family, seed, tmp_path):
    compare(tmp_path, family, seed)


TAKING_CODE = [
    ({"qk_norm": True, "norm": "layernorm", "activation": "gelu"}, "without qk_norm True it would be GPTNeoXFor"),
    ({"value_residual": True}, "without value_residual True it would be LlamaForCausalLM"),
    ({"norm": "layernorm", "value_residual": True, "qk_norm": True, "activation": "gelu"},
     "without value_residual True and qk_norm True"),
    ({"positions": "none"}, "positions none"), ({"softcap": 30.0}, "softcap 30.0"),
    ({"attention": "window", "norm": "layernorm", "positions": "learned", "activation": "gelu"}, "attention window"),
    ({"rotary_fraction": 0.5}, "rotary_fraction 0.5"), ({"embedding_shortcut": True}, "embedding_shortcut True"),
    ({"scale_embeddings": True}, "scale_embeddings True"), ({"norm_position": "post"}, "norm_position post"),
    ({"activation": "gelu", "n_kv_heads": 1}, "activation gelu"),
    ({"norm": "layernorm", "positions": "learned", "activation": "gelu", "n_kv_heads": 1}, "n_kv_heads 1"),
    ({"norm": "layernorm", "positions": "learned", "activation": "gelu", "d_head": 8}, "d_head 8"),
    ({"attention": "window", "attention_bias": "inputs"}, "without its tokenizer it would be Qwen2ForCausalLM"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), TAKING_CODE)
def test_what_decides_that_code_goes_along_is_named(fields, named, tmp_path):
    exported = export_hugging_face(make_run(tmp_path / "run", **fields), tmp_path / "out")
    assert exported.family.architecture == "LMForCausalLM"
    assert named in exported.decided_by
    assert (tmp_path / "out" / "modeling_lm.py").is_file()


REFUSED = [
    ({"decoder_only": True}, "decoder_only True"), ({"experts": 2}, "experts 2"),
    ({"attention": "bigbird"}, "attention bigbird"), ({"attention": "compressed"}, "attention compressed"),
    ({"attention": "linformer", "objective": "masked"}, "attention linformer"),
    ({"n_encoder_layers": 1, "norm": "layernorm"}, "norm_position pre and positions rotary"),
    ({"architecture": "lstm", "n_heads": 4}, "architecture lstm"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_what_decides_that_there_is_no_such_model_is_named(fields, named, tmp_path):
    run = make_run(tmp_path / "run", **fields)
    with pytest.raises(UsageError, match=named) as error:
        export_hugging_face(run, tmp_path / "out")
    if "n_encoder_layers" in fields:
        assert error.value.settings[:2] == ("norm_position=post", "positions=sinusoidal-half")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    export_hugging_face(run, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="out: is not empty; choose an empty or a new folder"):
        export_hugging_face(run, out)
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    run = make_run(tmp_path / "run")
    with full_disk(after=20_000), pytest.raises((InputError, OSError)):
        export_hugging_face(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_folder_may_be_where_one_stands(tmp_path, monkeypatch):
    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    export_hugging_face(run, Path())
    assert (out / "config.json").is_file()


def test_generate_ends_texts_and_draws_as_ours_do(tmp_path):
    export_hugging_face(make_run(tmp_path / "run"), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config
    assert settings.eos_token_id == settings.bos_token_id == tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert settings.do_sample
    assert settings.temperature == 0.8
    assert tokenizer.chat_template is None


def test_a_checkpoint_can_be_named_and_its_type_stays(tmp_path):
    run = make_run(tmp_path / "run")
    export_hugging_face(run / "checkpoints" / "step-0", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "float32"
