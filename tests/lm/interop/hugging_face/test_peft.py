"""Adapters go to PEFT and come from it: the model that they are added to there has the logits of ours."""

import json

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lm import files, run_folder
from lm.api import export
from lm.checkpoint import load_model, load_tokenizers, load_weights, save_checkpoint
from lm.config.run_config import LoraConfig, RunConfig
from lm.errors import InputError
from lm.hardware import Hardware
from lm.interop.peft import import_adapters
from lm.model.lora import build_model_with_lora, trainable_weights
from lm.run_folder import TrainingState
from tests.cli.small_runs import make_run
from tests.lm.disk_faults import States
from tests.lm.interop.hugging_face.models import FIELDS, ids, random_config, random_run
from tests.tolerances import assert_close

HARDWARE = Hardware("cpu", "float32", 1)

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""PEFT asks transformers for it."""


def adapted(folder, base, lora):
    """A run with random adapters to another."""
    found = run_folder.find_checkpoint(base)
    config = run_folder.load_config(found)
    torch.manual_seed(3)
    model = trainable_weights(build_model_with_lora(config.model, lora))
    save_checkpoint(
        folder,
        config=RunConfig(model=config.model, lora=lora, base_sha256=files.sha256(found / run_folder.MODEL)),
        tokenizer=load_tokenizers(found)[0],
        model={name: torch.randn_like(value) / 5 for name, value in model.items()},
        state=TrainingState(),
        is_best=True,
    )
    files.link_or_copy(found / run_folder.MODEL, folder / run_folder.BASE_WEIGHTS)
    return folder


def their_base(base, folder):
    export(base, folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def same_logits(run, theirs):
    tokens = ids(3, 20)
    with torch.no_grad():
        assert_close(load_model(run, HARDWARE).model(tokens), theirs(tokens).logits, model=theirs)


@pytest.mark.parametrize("family", FIELDS)
def test_peft_adds_them_to_the_exported_base_and_they_come_back(family, tmp_path):
    on, base = "attention,feed-forward", random_run(tmp_path / "base", random_config(family, 1))
    run = adapted(tmp_path / "run", base, LoraConfig(rank=3, on=on, alpha=4.5, dropout=0.25))
    export(run, tmp_path / "adapters", "peft")
    same_logits(run, PeftModel.from_pretrained(their_base(base, tmp_path / "out"), tmp_path / "adapters").eval())
    back = import_adapters(tmp_path / "adapters", base, tmp_path / "back")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run_folder.find_checkpoint(run), back))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    there, here = run_folder.load_config(back), run_folder.load_config(run_folder.find_checkpoint(run))
    assert there.lora == LoraConfig(rank=3, on=on, alpha=4.5, dropout=0.25)
    assert there.base_sha256 == here.base_sha256


THEIRS = {
    "llama": [
        {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]},
        {"r": 2, "target_modules": ["down_proj"], "use_rslora": True},
        {"r": 4, "target_modules": ["q_proj", "k_proj", "up_proj"], "alpha_pattern": {"up_proj": 3},
         "rank_pattern": {"k_proj": 2, "layers.0.mlp.up_proj": 7}},
        {"r": 4, "target_modules": ["q_proj", "k_proj", "up_proj"],
         "alpha_pattern": {r".*\.q_proj": 64, "[kq]_proj": 5},
         "rank_pattern": {r"model\.layers\.\d+\.self_attn.*": 2, r"layers\.[1-9]\.mlp\.up_proj|q": 7}},
        {"r": 3, "target_modules": "all-linear"}, {"target_modules": ["v_proj"], "layers_to_transform": [0]},
    ],
    "gpt2": [{"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True},
             {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}],
    "gpt_neox": [{"r": 4, "target_modules": ["query_key_value", "dense"], "lora_alpha": 1}],
    "qwen3": [{"r": 4, "target_modules": ["o_proj", "gate_proj"], "lora_dropout": 0.1}],
}  # fmt: skip


@pytest.mark.parametrize(("family", "settings"), [(family, each) for family, many in THEIRS.items() for each in many])
def test_adapters_of_peft_are_imported(family, settings, tmp_path):
    config = random_config(family, 3)
    base = random_run(tmp_path / "base", config)
    theirs = get_peft_model(their_base(base, tmp_path / "out"), PeftConfig(task_type="CAUSAL_LM", **settings)).eval()
    torch.manual_seed(2)
    for name, value in theirs.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(value, std=0.1)
    theirs.save_pretrained(tmp_path / "adapters")
    import_adapters(tmp_path / "adapters", base, tmp_path / "run")
    same_logits(tmp_path / "run", theirs)


@pytest.fixture
def folder(tmp_path):
    """Adapters of PEFT, and both runs beside them."""
    base = random_run(tmp_path / "base", random_config("llama", 1))
    export(adapted(tmp_path / "run", base, LoraConfig(rank=2)), tmp_path / "adapters", "peft")
    return tmp_path / "adapters"


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"use_dora": True}, "use_dora True is not supported by lm"), ({"lora_alpha": "x"}, "do not fit"),
     ({"alpha_pattern": {"(": 1}}, "do not fit")],
)  # fmt: skip
def test_what_ours_cannot_be_is_named(change, problem, folder, tmp_path):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=problem):
        import_adapters(folder, tmp_path / "base", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_killed_import_leaves_no_adapters_without_their_base(folder, tmp_path):
    """And can be repeated."""
    root = tmp_path / "runs" / "whole"
    root.mkdir(parents=True)
    disk = States(root, tmp_path / "runs", each=False)
    with disk.watching():
        import_adapters(folder, tmp_path / "base", root / "out")
    for state in disk.found:
        if not run_folder.list_checkpoints(state / "out"):
            import_adapters(folder, tmp_path / "base", state / "out")
        found, expected = load_weights(state / "out"), load_weights(root / "out")
        assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_a_model_with_code_of_its_own_has_adapters_too(tmp_path):
    base = make_run(tmp_path / "base", value_residual=True, qk_norm=True)
    run = adapted(tmp_path / "run", base, LoraConfig(rank=2))
    export(run, tmp_path / "adapters", "peft")
    export(base, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    theirs, tokens = PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval(), ids(3, 20) % 200
    with torch.no_grad():
        expected = load_model(run, HARDWARE).model(tokens)
        assert_close(theirs(tokens).logits, expected, model=theirs)
    import_adapters(tmp_path / "adapters", base, tmp_path / "back")
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "back", HARDWARE).model(tokens), expected)
