"""Where the base of a run is, is one line of a file that a person can change."""

import dataclasses
import shutil

import pytest

from lm import run_folder
from lm.adapter_base import find_base_weights, link_base, read_base_path, with_base_hash
from lm.checkpoint import load_tokenizers, save_checkpoint
from lm.config.lora import LoraConfig
from lm.errors import InputError
from lm.run_folder import TrainingState, find_checkpoint, load_config
from tests.cli.small_runs import make_run


@pytest.fixture
def base(tmp_path):
    return find_checkpoint(make_run(tmp_path / "runs" / "base"))


@pytest.fixture
def run(tmp_path, base):
    """The checkpoint of a run that says to have adapters to `base`."""
    config = with_base_hash(dataclasses.replace(load_config(base), lora=LoraConfig(rank=2)), base)
    made = save_checkpoint(
        tmp_path / "runs" / "adapted", config=config, tokenizer=load_tokenizers(base)[0], model={}, optimizer={},
        state=TrainingState(step=3), is_best=True,
    )  # fmt: skip
    link_base(tmp_path / "runs" / "adapted", base)
    return made


def test_a_checkpoint_that_was_taken_out_of_its_run_has_weights_of_its_own(run, base, tmp_path):
    alone = shutil.copytree(run, tmp_path / "alone")
    with pytest.raises(InputError, match="alone/base.safetensors: missing; .*alone adapts these weights$"):
        find_base_weights(alone, load_config(alone))
    assert read_base_path(alone) is None
    link_base(alone, base)
    assert find_base_weights(alone, load_config(alone)).samefile(base / "model.safetensors")
    run_folder.verify_checkpoint(alone)


def test_another_file_is_not_taken_for_the_weights(run, base):
    with (base / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match=r"base.safetensors: not the weights that .* adapts \(another sha256\)$"):
        find_base_weights(run, load_config(run))
