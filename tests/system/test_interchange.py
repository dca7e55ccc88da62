"""A model of transformers is imported, trained on, and taken away again."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from cli.main import run
from tests.cli.small_runs import TEXT, make_tokenizer

SPARE = 12  # ids beyond the tokenizer's, as many published models have them
SHORT = ["--context", "24", "--batch-size", "4", "--steps", "3", "--learning-rate", "1e-3", "--evaluate-every", "3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model that transformers saved, in shards, and the run that was made of it."""
    folder = tmp_path_factory.mktemp("place")
    tokenizer = make_tokenizer("bpe")
    torch.manual_seed(0)
    end = tokenizer.end_of_text
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size + SPARE, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=24,
        initializer_range=0.3, bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder / "model", max_shard_size="30KB")
    tokenizer.save(folder / "model" / "tokenizer.json")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str(folder / "cache"))
        assert run(["import", str(folder / "model"), "-o", str(folder / "run")]) == 0
        yield folder


def read(place: Path, capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert run([argument.replace("{0}", str(place)) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_it_is_trained_on_and_taken_away_again(place, capsys):
    """On text, then on examples, both from the run; spare ids stay, and so does the type of model."""
    read(place, capsys, "train", "{0}/text.txt", "--from", "{0}/run", "-o", "{0}/tuned", *SHORT)
    lines = [json.dumps({"prompt": f"owl {n}", "completion": f" fox {n}"}) for n in range(40)]
    (place / "task.jsonl").write_text("\n".join(lines))
    task = ["train", "{0}/task.jsonl", "--from", "{0}/tuned", "-o", "{0}/task"]
    read(place, capsys, *task, *SHORT)
    read(place, capsys, "average", *[f"{{0}}/{name}" for name in ("run", "tuned", "task")], "-o", "{0}/mean")
    read(place, capsys, "export", "{0}/mean", "-o", "{0}/out")
    theirs = AutoModelForCausalLM.from_pretrained(place / "out")
    assert isinstance(theirs, Qwen3ForCausalLM)
    assert theirs.config.vocab_size == make_tokenizer("bpe").vocab_size + SPARE
    assert AutoTokenizer.from_pretrained(place / "out").eos_token == "<|endoftext|>"
    moved = (
        theirs.state_dict()["model.norm.weight"] - Qwen3ForCausalLM.from_pretrained(place / "model").model.norm.weight
    )
    assert moved.abs().max() > 0


def test_a_portable_run_is_a_model_of_transformers(place, capsys):
    read(place, capsys, "train", "{0}/text.txt", "--portable", "-o", "{0}/portable", *SHORT)
    read(place, capsys, "export", "{0}/portable", "-o", "{0}/qwen3")
    assert isinstance(AutoModelForCausalLM.from_pretrained(place / "qwen3"), Qwen3ForCausalLM)
