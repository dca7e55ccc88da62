"""Model cards tell what is known of a run, and nothing of the machine it was trained on."""

import dataclasses
import shutil

from lm.config.data import DataConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, RunPlan
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.text_corpus import scan_corpus
from lm.interop.hugging_face.families import LLAMA
from lm.interop.hugging_face.model_card import build_model_card
from lm.run_folder import TrainingState
from lm.text.text_files import find_text_files
from tests.cli.small_runs import TEXT, make_tokenizer

PLAN = RunPlan(device="cpu", dtype="bfloat16", threads=2, steps=100, data="/home/somebody/data", data_key="")


def test_data_steps_and_losses_are_told():
    config = RunConfig(model=ModelConfig(context_length=64), data=DataConfig(validation="0.2"), plan=PLAN)
    state = TrainingState(step=90, tokens=12_345, flops=1.5e9, best_loss=2.34567, best_step=80)
    card = build_model_card(config, LLAMA, make_tokenizer("bpe"), state)
    for told in ("LlamaForCausalLM", "context of 64 tokens", "Steps: 90, 12,345 tokens",
                 "Validation loss: 2.3457 nats/token, at step 80", "AutoModelForCausalLM.from_pretrained",
                 "began with `<|endoftext|>`"):  # fmt: skip
        assert told in card
    assert "somebody" not in card


def test_of_a_run_that_was_never_trained_nothing_is_told():
    card = build_model_card(RunConfig(), LLAMA, make_tokenizer("char"), TrainingState())
    assert "Nothing is known of its training." in card
    assert "no special tokens" in card


def test_files_are_named_without_their_places(tmp_path):
    """As long as the tokens are there; afterwards only the kind of data is known."""
    shards = tmp_path / "tokens"
    for name in "abcdefg":
        (tmp_path / f"{name}.txt").write_text(TEXT)
    surveyed = scan_corpus(find_text_files([str(tmp_path)]), DataConfig())
    prepare_corpus(surveyed, make_tokenizer("bpe"), folder=shards)
    config = RunConfig(plan=dataclasses.replace(PLAN, data=str(shards)))
    card = build_model_card(config, LLAMA, make_tokenizer("bpe"), TrainingState())
    assert "Data: text (a.txt, b.txt, c.txt, d.txt, e.txt and 2 more); " in card
    assert str(tmp_path) not in card
    shutil.rmtree(shards)
    assert "- Data: text.\n" in build_model_card(config, LLAMA, make_tokenizer("bpe"), TrainingState())
