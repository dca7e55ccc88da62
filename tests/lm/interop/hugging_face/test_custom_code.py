"""Runs that transformers has no model for take their code along, and are in it what they are here."""

import random
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from lm.api import export
from lm.checkpoint import load_model, load_weights
from lm.config.model import ModelConfig
from lm.hardware import Hardware
from lm.interop.conversion import to_json
from lm.interop.families import CUSTOM_FAMILIES
from lm.interop.hugging_face import import_model
from lm.run_folder import find_checkpoint, load_config
from tests.cli.small_runs import make_tokenizer
from tests.lm.interop.hugging_face.models import SCALINGS, VOCABULARY, compare_padded, ids, loaded_export, random_run
from tests.slow_cases import slow_after
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)
POSITIONS = ["rotary", "learned", "sinusoidal", "sinusoidal-half", "alibi", "relative", "t5", "none"]
WINDOW = {"attention": "window", "attention_window": 5}
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
        "value_residual": draw.choice([True, False]), "key_offset": draw.choice([True, False]),
        "softcap": draw.choice([0.0, 15.0]), "tie_embeddings": draw.choice([True, False]),
        "scale_embeddings": draw.choice([True, False]), "embedding_norm": draw.choice([True, False]),
        "output_transform": draw.choice([True, False]), "parallel_residual": pre and draw.choice([True, False]),
        **(draw.choice([{"attention_window": 5}, WINDOW]) if positions not in {"alibi", "relative", "t5"} else {}),
        **({"rotary_fraction": draw.choice([1.0, 0.5]), **draw.choice(SCALINGS)} if positions == "rotary" else {}),
        **({"max_distance": draw.choice([None, 20])} if positions in {"relative", "t5"} else {}), **fields,
    }  # fmt: skip
    return ModelConfig(**drawn)


def both(tmp_path, config):
    """A run and what transformers makes of its export."""
    run = random_run(tmp_path / "run", config, tokenizer=make_tokenizer("bpe", has_mask=config.is_masked))
    auto = AutoModelForCausalLM if not config.is_masked else AutoModelForMaskedLM
    auto = AutoModelForSequenceClassification if config.labels else auto
    return load_model(run, HARDWARE).model, loaded_export(run, tmp_path / "out", auto, trust_remote_code=True)


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


@pytest.mark.parametrize("seed", slow_after(4, range(56)))
def test_logits_are_those_of_the_run(seed, tmp_path):
    compare(tmp_path, random_config(seed))


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


@pytest.mark.parametrize("beams", [1, 3])
def test_it_generates_as_a_model_without_a_cache_would(beams, tmp_path):
    """Rows of different lengths, padded on the left."""
    _, theirs = both(tmp_path, random_config(0))
    tokens = ids(2, 12)
    real = (torch.arange(12) >= torch.tensor([[0], [7]])).long()
    settings = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams, "eos_token_id": None, "pad_token_id": 0}
    cached = theirs.generate(tokens, attention_mask=real, **settings)
    assert cached.tolist() == theirs.generate(tokens, attention_mask=real, use_cache=False, **settings).tolist()
    assert cached[1, 12:].tolist() == theirs.generate(tokens[1:, 7:], **settings)[0, 5:].tolist()


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
    family = CUSTOM_FAMILIES[0]
    assert to_json(load_config(after).model, family) == to_json(config, family)
    ours, again = load_weights(before), load_weights(after)
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)


@pytest.mark.slow
def test_the_code_needs_nothing_of_ours(tmp_path):
    """In a process that cannot import our packages."""
    export(random_run(tmp_path / "run", random_config(0), tokenizer=make_tokenizer("bpe")), tmp_path / "out")
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
