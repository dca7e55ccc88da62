"""The command that `lm train --dry-run` prints makes the run that it planned, for each kind of run."""

import json
import os
import shlex
from pathlib import Path

import pytest

from cli.main import run
from cli.training import running
from lm.training.trainer import Planned, Trainer
from tests.cli.toy_translation import pairs
from tests.lm.training.steady import steady
from tests.lm.training.texts import of_words

TINY = ["--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "32", "--batch-size", "4"]
STEPS = ["--steps", "2"]
BUDGET = ["--budget", "2s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text, examples, labelled texts, conversations and pairs, prepared tokens, and runs to start from."""
    made = tmp_path_factory.mktemp("kinds")
    before = Path.cwd()
    os.chdir(made)
    texts = of_words(20_000).split("\n")
    (made / "text.txt").write_text("\n".join(texts))
    words = " ".join(texts).split()[:3000]
    prompts = [" ".join(words[at : at + 3]) for at in range(0, 900, 3)]
    rows = {
        "examples": [{"prompt": prompt, "completion": f" {prompt[:5]}"} for prompt in prompts],
        "labels": [{"text": prompt, "label": "ab"[len(prompt) % 2]} for prompt in prompts],
        "chat": [
            {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": prompt[::-1]}]}
            for prompt in prompts
        ],
    }
    for name, values in rows.items():
        (made / f"{name}.jsonl").write_text("\n".join(map(json.dumps, values)))
    for side, lines in zip(("en", "de"), zip(*pairs(300, seed=1), strict=True), strict=True):
        (made / f"pairs.{side}").write_text("\n".join(lines))
    (made / "settings.toml").write_text("preset = 'tiny'\n[training]\nseed = 4\n[model]\ndropout = 0.25\n")
    for name, flags in (("base", []), ("masked", ["--objective", "masked"])):
        assert run(["train", "text.txt", *TINY, "--vocab-size", "300", *flags, *STEPS, "-o", name]) == 0
    assert run(["prepare", "text.txt", "--validation", "0.2", "--tokenizer", "base", "-o", "tokens"]) == 0
    os.chdir(before)
    return made


PAIRS = ["--source", "pairs.en", "--target", "pairs.de"]
KINDS = {
    "text": ["text.txt", *TINY],
    "characters": ["text.txt", "--tokenizer", "char", *TINY],
    "examples": ["examples.jsonl", *TINY],
    "labels": ["labels.jsonl", "--label-column", "label", *TINY],
    "conversations": ["chat.jsonl", *TINY],
    "pairs": PAIRS,
    "decoder-only pairs": [*PAIRS, "--set", "model.decoder_only=true"],
    "masked": ["text.txt", "--objective", "masked", *TINY],
    "prepared": ["tokens", *TINY],
    "another tokenizer": ["text.txt", "--tokenizer", "base", *TINY],
    "from": ["text.txt", "--from", "base"],
    "LoRA": ["text.txt", "--from", "base", "--lora", "2"],
    "examples from": ["examples.jsonl", "--from", "base"],
    "labels from": ["labels.jsonl", "--label-column", "label", "--from", "masked"],
    "conversations from": ["chat.jsonl", "--from", "base"],
    "prepared from": ["tokens", "--from", "base"],
    "settings": ["text.txt", "--config", "settings.toml", *TINY],
    "portable": ["text.txt", "--portable"],
    "depth": ["text.txt", "--depth", "1"],
}


@pytest.mark.medium
@pytest.mark.parametrize("length", [STEPS, BUDGET, ["--epochs", "0.2"]], ids=["steps", "budget", "epochs"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_command_makes_the_planned_run(kind, length, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    planned: list[Planned] = []

    class Watched(Trainer):
        def __iter__(self):
            for event in super().__iter__():
                if isinstance(event, Planned):
                    planned.append(event)
                yield event

    monkeypatch.setattr(running, "Trainer", lambda spec, **given: Watched(spec, **given | steady()))
    assert run(["train", *KINDS[kind], *length, "--dry-run"]) == 0
    program, *words = shlex.split(capsys.readouterr().out)
    assert program == "lm"
    assert run([*words, "-o", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    made = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = json.loads(json.dumps(planned[0].config.to_dict()))
    if length == BUDGET:  # the command has the number of steps instead
        expected["training"] |= {"budget": None, "steps": expected["plan"]["steps"]}
        expected["plan"] |= {"budget_seconds": None, "max_steps": None}
    expected["base_sha256"] = made["base_sha256"]  # of adapters; known when a run is started
    assert made == expected
