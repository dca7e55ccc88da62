"""What a command says where a model's output is not a number: one message, exit code 1, and no result."""

import json
from pathlib import Path

import pytest
import torch

from cli.main import run
from lm.checkpoint import load_model, save_checkpoint
from lm.config.run_config import HardwareConfig
from lm.hardware import select_hardware
from lm.run_folder import TrainingState
from tests.cli.small_runs import make_run

MESSAGE = "the model's output is not a number; the model is damaged, or its values are too large for the dtype"
KINDS = {
    "decoder": {},
    "translation": {"n_encoder_layers": 1},
    "masked": {"objective": "masked"},
    "classifier": {"objective": "masked", "labels": ("calm", "wild")},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: make_run(folder / name, **fields) for name, fields in KINDS.items()}


def damaged(folder: Path, out: Path, scale: float) -> Path:
    """A copy of a run with all weights multiplied by a number."""
    loaded = load_model(folder, select_hardware(HardwareConfig()))
    save_checkpoint(
        out, config=loaded.config, tokenizer=loaded.tokenizer,
        model={name: tensor * scale for name, tensor in loaded.model.state_dict().items()},
        state=TrainingState(), is_best=True,
    )  # fmt: skip
    return out


@pytest.fixture
def failed(capsys, tmp_path):
    """Runs a command line that must fail with the message, and print no result."""

    def fail(*arguments) -> None:
        code, output = run([*map(str, arguments)]), capsys.readouterr()
        assert (code, output.out) == (1, ""), arguments
        assert MESSAGE in output.err
        assert output.err.count("\n") == 1

    return fail


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The owl\nthe fox\n")
    return path


SHORT = ("--max-tokens", 3, "--json")
COMMANDS = {
    "samples": ("decoder", ["generate", "RUN", "The owl", *SHORT]),
    "beam": ("decoder", ["generate", "RUN", "The owl", "--beam", 3, *SHORT]),
    "prompts": ("decoder", ["generate", "RUN", "--prompts", "TEXT", *SHORT]),
    "perplexity": ("decoder", ["perplexity", "RUN", "TEXT", "--json"]),
    "translation": ("translation", ["translate", "RUN", "TEXT", "--json"]),
    "blanks": ("masked", ["fill", "RUN", "The [MASK]", "--json"]),
    "masked perplexity": ("masked", ["perplexity", "RUN", "TEXT", "--json"]),
    "labels": ("classifier", ["classify", "RUN", "TEXT", "--json"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_weights_that_are_not_finite_give_no_result(command, runs, failed, text, tmp_path):
    kind, arguments = COMMANDS[command]
    places = {"RUN": damaged(runs[kind], tmp_path / "damaged", torch.nan), "TEXT": text}
    failed(*(places.get(argument, argument) for argument in arguments))


@pytest.mark.parametrize("command", ["samples", "beam", "translation", "labels"])
def test_values_too_large_for_float16_give_no_result(command, runs, failed, text, tmp_path):
    """Weights of about 1e4 are numbers in float16, whose largest is 65,504; sums of their products are not."""
    kind, arguments = COMMANDS[command]
    places = {"RUN": damaged(runs[kind], tmp_path / "large", 1e5), "TEXT": text}
    failed(*(places.get(argument, argument) for argument in arguments), "--dtype", "float16")


def test_the_same_commands_succeed_with_the_weights_as_they_were(runs, capsys, text):
    for kind, arguments in COMMANDS.values():
        places = {"RUN": runs[kind], "TEXT": text}
        assert run([str(places.get(argument, argument)) for argument in arguments]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["finish_reason"]
