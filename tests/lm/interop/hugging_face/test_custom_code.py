"""Runs that transformers has no model for take their code along, and are in it what they are here."""

import ast
import random
import re
import runpy
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from lm.checkpoint import load_model, load_weights
from lm.config.model import ModelConfig
from lm.config.presets import build_run_config
from lm.hardware import Hardware
from lm.interop.hugging_face.configuration import from_json, to_json
from lm.interop.hugging_face.custom_code import CUSTOM_FAMILIES
from lm.interop.hugging_face.exporting import export_hugging_face
from lm.interop.hugging_face.importing import import_model
from lm.run_folder import find_checkpoint, load_config
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import SCALINGS, VOCABULARY, ids, random_run
from tests.newest import PACKAGES
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)
POSITIONS = ["rotary", "learned", "sinusoidal", "sinusoidal-half", "alibi", "relative", "t5", "none"]
AUTO = {
    family.auto: loader
    for family, loader in zip(
        CUSTOM_FAMILIES, (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification), strict=True
    )
}
pytestmark = pytest.mark.usefixtures("code_of_models")


def random_config(seed: int, **fields) -> ModelConfig:
    """A small model of any blocks, with the positions that follow from the seed in turn."""
    draw = random.Random(seed)
    heads, positions = draw.choice([2, 3, 4]), POSITIONS[seed % len(POSITIONS)]
    pre = draw.choice([True, True, False])
    drawn = {
        "vocab_size": VOCABULARY + draw.choice([0, 20]), "context_length": 32, "n_layers": draw.choice([1, 2, 3]),
        "n_heads": heads, "d_model": heads * draw.choice([8, 16]), "positions": positions,
        "d_ff": draw.choice([None, 40]), "d_head": draw.choice([None, 12]), "n_kv_heads": draw.choice([None, 1]),
        "norm": draw.choice(["layernorm", "rmsnorm"]), "norm_position": "pre" if pre else "post",
        "norm_eps": draw.choice([1e-5, 1e-3]), "bias": draw.choice([True, False]),
        "activation": draw.choice(["gelu", "gelu-tanh", "relu", "relu2", "swiglu"]),
        "attention_bias": draw.choice([None, "none", "inputs", "all"]), "qk_norm": draw.choice([True, False]),
        "value_residual": draw.choice([True, False]), "embedding_shortcut": draw.choice([True, False]),
        "softcap": draw.choice([0.0, 15.0]), "tie_embeddings": draw.choice([True, False]),
        "scale_embeddings": draw.choice([True, False]), "embedding_norm": draw.choice([True, False]),
        "output_transform": draw.choice([True, False]), "parallel_residual": pre and draw.choice([True, False]),
        **draw.choice([{}, {"attention": "window", "attention_window": draw.choice([1, 5, 40])}]),
        **({"rotary_fraction": draw.choice([1.0, 0.5]), **draw.choice(SCALINGS)} if positions == "rotary" else {}),
        **({"max_distance": draw.choice([None, 20])} if positions in {"relative", "t5"} else {}), **fields,
    }  # fmt: skip
    return ModelConfig(**drawn)


def both(tmp_path, config):
    """A run and what transformers makes of its export."""
    has_mask = config.objective == "masked"
    run = random_run(tmp_path / "run", config, tokenizer=make_tokenizer("bpe", has_mask=has_mask))
    family = export_hugging_face(run, tmp_path / "out").family
    loader = AUTO[family.auto]
    theirs, report = loader.from_pretrained(tmp_path / "out", trust_remote_code=True, output_loading_info=True)
    assert type(theirs).__name__ == family.architecture
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return load_model(run, HARDWARE).model, theirs.eval()


def compare(tmp_path, config):
    ours, theirs = both(tmp_path, config)
    tokens = ids(3, 24)
    with torch.no_grad():
        expected = ours(tokens)
        assert_close(theirs(tokens).logits, expected, model=ours)
        cache, parts = None, []
        for part in tokens.split([9, 1, 1, 13], dim=1):
            step = theirs(part, past_key_values=cache, use_cache=True)
            cache, parts = step.past_key_values, [*parts, step.logits]
        assert_close(torch.cat(parts, dim=1), expected, model=ours)
        compare_padded(ours, theirs, tokens)


def compare_padded(ours, theirs, tokens):
    """Rows of theirs that end together, padded on the left and read in two steps, against each of ours alone."""
    lengths = torch.tensor([24, 17, 5])
    real = (torch.arange(24) >= 24 - lengths[:, None]).long()
    padded = torch.where(real.bool(), tokens, 0)
    first = theirs(padded[:, :20], attention_mask=real[:, :20], use_cache=True)
    second = theirs(padded[:, 20:], attention_mask=real, past_key_values=first.past_key_values)
    for row, length in enumerate(lengths):
        alone = ours(tokens[row : row + 1, 24 - length :])
        assert_close(second.logits[row], alone[0, -4:], model=ours)


@pytest.mark.parametrize("seed", slow_after(4, range(56)))
def test_logits_are_those_of_the_run(seed, tmp_path):
    compare(tmp_path, random_config(seed))


@pytest.mark.parametrize("preset", ["tiny", "depth-4"])
def test_default_presets_go_out(preset, tmp_path):
    model = build_run_config(preset).model
    compare(tmp_path, model.replace(vocab_size=VOCABULARY, context_length=32))


@pytest.mark.parametrize("seed", slow_after(4, range(8)))
@pytest.mark.parametrize("labels", [(), ("no", "yes", "perhaps")])
def test_masked_models_and_classifiers_are_theirs_too(seed, labels, tmp_path):
    """Padded on the right, as such models are."""
    config = random_config(seed, objective="masked", labels=labels, parallel_residual=False)
    ours, theirs = both(tmp_path, config)
    tokens, lengths = ids(3, 24), torch.tensor([24, 17, 5])
    real = torch.arange(24) < lengths[:, None]
    with torch.no_grad():
        found, expected = theirs(tokens, attention_mask=real.long()).logits, ours(tokens, lengths=lengths)
    if labels:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert_close(found, expected[:, 0], model=ours)
    else:
        assert_close(found[real], expected[real], model=ours)


@pytest.mark.parametrize("labels", [(), ("no", "yes"), ("LABEL_0", "LABEL_1")])
def test_masked_models_and_classifiers_come_back(labels, tmp_path):
    """After transformers saved them again, which leaves out labels that it would give itself."""
    config = random_config(1, objective="masked", labels=labels, parallel_residual=False, token_types=2)
    _, theirs = both(tmp_path, config)
    theirs.save_pretrained(tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "again")
    before, after = (find_checkpoint(tmp_path / name) for name in ("run", "again"))
    assert load_config(after).model.labels == labels
    ours, again = load_weights(before), load_weights(after)
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)


@pytest.mark.parametrize("beams", [1, 3])
def test_it_generates_as_a_model_without_a_cache_would(beams, tmp_path):
    """Rows of different lengths, padded on the left."""
    _, theirs = both(tmp_path, random_config(0))
    tokens = ids(2, 12)
    real = (torch.arange(12) >= torch.tensor([[0], [7]])).long()
    settings = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams, "eos_token_id": None, "pad_token_id": 0}
    cached = theirs.generate(tokens, attention_mask=real, **settings)
    assert cached.tolist() == theirs.generate(tokens, attention_mask=real, use_cache=False, **settings).tolist()
    alone = theirs.generate(tokens[1:, 7:], **settings)
    assert cached[1, 12:].tolist() == alone[0, 5:].tolist()


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_cache_is_read_by_each_name_that_versions_of_transformers_give_it(name, tmp_path):
    ours, theirs = both(tmp_path, random_config(0))
    tokens = ids(2, 12)
    with torch.no_grad():
        cache = theirs(tokens[:, :7], use_cache=True)[1]
        assert_close(theirs(tokens[:, 7:], **{name: cache}).logits, ours(tokens)[:, 7:], model=ours)


@pytest.mark.parametrize(("objective", "labels"), [("causal", ()), ("masked", ()), ("masked", ("no", "yes"))])
def test_an_input_that_would_have_no_effect_is_refused(objective, labels, tmp_path):
    """As a cache would be by a name that a later version of transformers gives it."""
    _, theirs = both(tmp_path, random_config(0, objective=objective, labels=labels, parallel_residual=False))
    with pytest.raises(TypeError, match="has no input past_states"):
        theirs(ids(2, 12), past_states=object())


def test_other_versions_of_transformers_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    export_hugging_face(random_run(tmp_path / "run", random_config(0), tokenizer=make_tokenizer("bpe")), folder)
    tested = re.search("tested with transformers ([0-9.]+) and ([0-9.]+)", (folder / "README.md").read_text())
    assert f"transformers=={tested[1]}" in PACKAGES["transformers-5.0"]
    monkeypatch.setattr("transformers.__version__", "4.57.6")
    with pytest.raises(ImportError, match="needs transformers 5, not 4.57.6"):
        runpy.run_path(str(folder / "configuration_lm.py"))


def test_it_can_be_trained_there_saved_and_imported_again(tmp_path):
    config = random_config(0)
    _, theirs = both(tmp_path, config)
    tokens = ids(2, 12)
    theirs.train()
    theirs(tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in theirs.parameters())
    theirs.save_pretrained(tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "again")
    before, after = (find_checkpoint(tmp_path / name) for name in ("run", "again"))
    assert to_json(load_config(after).model, CUSTOM_FAMILIES[0]) == to_json(config, CUSTOM_FAMILIES[0])
    ours, again = load_weights(before), load_weights(after)
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)


def test_a_config_goes_out_and_in_again(tmp_path):
    for seed in range(40):
        written = to_json(random_config(seed), CUSTOM_FAMILIES[0])
        family, again = from_json(written, tmp_path / "config.json")
        assert family is CUSTOM_FAMILIES[0]
        assert to_json(again, family) == written


def test_defaults_are_those_of_a_model(tmp_path):
    export_hugging_face(
        random_run(tmp_path / "run", random_config(0), tokenizer=make_tokenizer("bpe")), tmp_path / "out"
    )
    theirs = type(AutoConfig.from_pretrained(tmp_path / "out", trust_remote_code=True))()
    written = to_json(ModelConfig(init_std=0.02), CUSTOM_FAMILIES[0])
    for setting in CUSTOM_FAMILIES[0].settings:
        assert getattr(theirs, setting.config_key) == written[setting.config_key], setting.config_key


def test_the_code_imports_only_torch_and_transformers(tmp_path):
    export_hugging_face(
        random_run(tmp_path / "run", random_config(0), tokenizer=make_tokenizer("bpe")), tmp_path / "out"
    )
    modules = {path.stem: path.read_text() for path in (tmp_path / "out").glob("*.py")}
    assert len(modules) == 3
    allowed = {"torch", "transformers", *sys.stdlib_module_names}
    for text in modules.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert {name.name.partition(".")[0] for name in node.names} <= allowed
            if isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] in (modules if node.level else allowed)


@pytest.mark.slow
def test_the_code_needs_nothing_of_ours(tmp_path):
    """In a process that cannot import our packages."""
    export_hugging_face(
        random_run(tmp_path / "run", random_config(0), tokenizer=make_tokenizer("bpe")), tmp_path / "out"
    )
    program = (
        "import sys; sys.modules['lm'] = sys.modules['cli'] = None\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('out', trust_remote_code=True)\n"
        "print(type(model).__name__)"
    )
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "PATH": "", "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "LMForCausalLM"
