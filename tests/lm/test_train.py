"""What Python trains is what the command trains, tensor by tensor."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import lm
from cli.main import run
from lm.config.run_config import SECTIONS
from lm.config.settings import list_all_settings
from lm.run_folder import find_checkpoint, load_config, load_state
from lm.training.trainer import Started, train_events

SMALL = {"tokenizer": "byte", "d_model": 16, "n_layers": 1, "n_heads": 2, "context": 16, "batch_size": 4, "seed": 7,
         "evaluate_every": 2, "device": "cpu", "dtype": "float32"}  # fmt: skip
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "training.py"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with texts, sentence pairs and labelled texts."""
    folder, chance = tmp_path_factory.mktemp("files"), random.Random(3)
    words = {"one": "eins", "two": "zwei", "three": "drei", "fox": "Fuchs", "owl": "Eule", "good": "gut", "bad": "arg"}
    lines = [chance.choices(list(words), k=chance.randint(3, 7)) for _ in range(400)]
    (folder / "text.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "letters.txt").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    (folder / "train.en").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "train.de").write_text("".join(" ".join(map(words.get, line)) + "\n" for line in lines))
    examples = [{"text": " ".join(line), "label": "long" if len(line) > 4 else "short"} for line in lines]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    return folder


@pytest.fixture(autouse=True)
def elsewhere(files, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(files)


def tensors(folder: Path) -> dict[str, str]:
    """The checksums of the weights and the optimizer's state of the last checkpoint of a run."""
    manifest = json.loads((find_checkpoint(folder, which="last") / "manifest.json").read_text())
    return {name: sha256 for name, sha256 in manifest["sha256"].items() if name.endswith(".safetensors")}


def command(*arguments: object, **options: object) -> None:
    """Train by `lm train`, with the keywords of Python: settings by their keys, others by their flags."""
    keys, flags = {setting.keyword: setting.key for setting in list_all_settings(SECTIONS)}, list[str]()
    for name, value in options.items():
        flag = "--" + {"from_run": "from"}.get(name, name).replace("_", "-")
        flags += ["--set", f"{keys[name]}={str(value).lower()}"] if name in keys else [flag, str(value)]
    assert run(["train", *map(str, arguments), *flags]) == 0


@pytest.mark.medium
def test_text_and_fine_tuning_by_all_weights_or_adapters(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    lm.train("text.txt", out=ours / "base", steps=5, **SMALL)
    command("text.txt", out=theirs / "base", steps=5, **SMALL)
    assert tensors(ours / "base") == tensors(theirs / "base")
    for name, more in (("tuned", {}), ("adapted", {"lora": 2, "lora_on": "attention"})):
        settings = {"steps": 3, "batch_size": 4, **more}
        lm.train("letters.txt", out=ours / name, from_run=ours / "base", **settings)
        command("letters.txt", out=theirs / name, from_run=theirs / "base", **settings)
        assert tensors(ours / name) == tensors(theirs / name)
    assert tensors(ours / "tuned") != tensors(ours / "adapted")


@pytest.mark.medium
def test_a_loop_that_is_left_is_saved_and_resumed_as_if_it_had_never_stopped(tmp_path):
    command("text.txt", out=tmp_path / "whole", steps=9, ema=0.5, **SMALL)
    for number, leave_at in enumerate((lm.Step, lm.Evaluation, lm.Saved)):
        folder = tmp_path / f"left-{number}"
        with closing(train_events(lm.run_spec("text.txt", out=folder, steps=9, ema=0.5, **SMALL))) as events:
            next(event for event in events if isinstance(event, leave_at) and event.step >= 4)
        assert load_state(find_checkpoint(folder, which="last")).step >= 4
        lm.train(resume=folder)
        assert tensors(folder) == tensors(tmp_path / "whole")
        assert (folder / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_ctrl_c_during_a_step_saves_after_it(tmp_path):
    def interrupt(event: object) -> None:
        if isinstance(event, Started):
            event.run.optimizers[0].register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        lm.train("text.txt", out=tmp_path / "run", steps=6, on_event=interrupt, **SMALL)
    assert load_state(find_checkpoint(tmp_path / "run", which="last")).step == 1


def test_an_exception_of_the_callers_saves_and_closes(tmp_path):
    def fail(event: object) -> None:
        if isinstance(event, lm.Step) and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm.train("text.txt", out=tmp_path / "run", steps=6, on_event=fail, **SMALL)
    assert load_state(find_checkpoint(tmp_path / "run", which="last")).step == 3
    lm.train(resume=tmp_path / "run", steps=7)
    assert load_config(find_checkpoint(tmp_path / "run", which="last")).training.steps == 7


@pytest.mark.slow
def test_the_script_in_the_docs_runs(tmp_path, monkeypatch, files):
    """Each of its runs is there in the end, and one that was resumed has the weights of one that never stopped."""
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "letters.txt", "train.en", "train.de", "reviews.jsonl"):
        (tmp_path / name).write_text((files / name).read_text())
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    subprocess.run([sys.executable, str(SCRIPT)], check=True, timeout=900, env=environment)
    names = {"budget", "base", "again", "tuned", "adapted", "translator", "masked", "labels"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names
    assert all(load_state(find_checkpoint(tmp_path / "runs" / name, which="last")).finished for name in names)
    assert tensors(tmp_path / "runs" / "again") == tensors(tmp_path / "runs" / "base")
