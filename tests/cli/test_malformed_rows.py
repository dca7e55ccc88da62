"""`--skip-malformed` leaves out malformed rows, and says which."""

import json
import re
from pathlib import Path

import pytest

from cli.main import run
from lm.run_folder import load_config

SMALL = ["--preset", "tiny", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--context", "32"]
SMALL += ["--steps", "1", "--vocab-size", "300", "--threads", "1", "--dtype", "float32", "--batch-size", "2"]
ASKED = [{"role": "user", "content": "What do you see?"}]
UNANSWERED = json.dumps({"messages": ASKED}), json.dumps({"messages": [*ASKED, *ASKED]})
WORDS = [f"owl {number} sees {number * 7} mice by night" for number in range(60)]


def files(folder: Path, *, malformed: bool) -> dict[str, list[str]]:
    """Files of the same rows, with malformed ones among them or without; returns how they are named."""
    texts = {
        "rows.jsonl": [json.dumps({"text": word}) for word in WORDS],
        "rows.csv": ["id,text", *(f"1,{word}" for word in WORDS)],
        "rows.tsv": ["id\ttext", *(f"1\t{word}" for word in WORDS)],
        "pairs.txt": [f"{word}\t{word[::-1]}" for word in WORDS],
        "pairs.jsonl": [json.dumps({"source": word, "target": word[::-1]}) for word in WORDS],
        "chats.jsonl": [json.dumps({"messages": [*ASKED, {"role": "assistant", "content": word}]}) for word in WORDS],
    }
    wrong = {
        "jsonl": ('{"text":', '{"other": 1}'), "csv": ("1,2,3", "1"), "tsv": ("1", "1\t2\t3"), "txt": ("a", "\t\tb"),
    }  # fmt: skip
    for name, good in texts.items():
        first, second = UNANSWERED if name == "chats.jsonl" else wrong[name.rpartition(".")[2]]
        lines = [*good[:5], first, *good[5:20], second, *good[20:]] if malformed else good
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return {name: ["--pairs", str(folder / name)] if "pairs" in name else [str(folder / name)] for name in texts}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv", "pairs.txt", "pairs.jsonl", "chats.jsonl"])
def test_skipped_rows_are_reported_once_and_change_nothing_else(tmp_path, capsys, name):
    (tmp_path / "good").mkdir()
    good, bad = files(tmp_path / "good", malformed=False)[name], files(tmp_path, malformed=True)[name]
    preset = [*SMALL, *(["--n-encoder-layers", "1"] if "pairs" in name else [])]
    assert run(["train", *bad, *preset, "-o", str(tmp_path / "none")]) in (1, 2)
    assert capsys.readouterr().err.rstrip().endswith("--skip-malformed)")
    weights = []
    for number, named in enumerate((good, [*bad, "--skip-malformed"])):
        folder = tmp_path / str(number)
        assert run(["train", *named, *preset, "-o", str(folder)]) == 0
        weights.append((folder / "checkpoints" / "step-1" / "model.safetensors").read_bytes())
        said = re.findall(r".* malformed rows are left out \(lines (.*)\)", capsys.readouterr().err)
        assert len(said) == number
        assert load_config(folder).files.skip_malformed is bool(number)
    assert weights[0] == weights[1]
    assert said == ["6, 22"]


@pytest.mark.parametrize("name", ["rows.jsonl", "pairs.txt", "pairs.jsonl", "chats.jsonl"])
def test_other_malformed_rows_are_named_with_the_first(tmp_path, capsys, name):
    named = files(tmp_path, malformed=True)[name]
    lines = (tmp_path / name).read_text().splitlines()
    lines[5] = lines[21]  # a line that is no JSON at all is refused before any row is parsed
    (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    preset = [*SMALL, *(["--n-encoder-layers", "1"] if "pairs" in name else [])]
    assert run(["train", *named, *preset, "-o", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{name}: line 6" in error
    assert "; malformed too: line 22 (" in error


def test_malformed_records_of_an_array_are_left_out(tmp_path, capsys):
    path, malformed = tmp_path / "rows.json", [{"text": word} for word in WORDS]
    malformed[3:3], malformed[9:9] = ["not an object"], [{"text": 3}]
    path.write_text(json.dumps(malformed))
    assert run(["train", str(path), *SMALL, "-o", str(tmp_path / "none")]) == 1
    assert run(["train", str(path), *SMALL, "--skip-malformed", "-o", str(tmp_path / "run")]) == 0
    assert "2 malformed rows are left out (rows 4, 10)" in capsys.readouterr().err


def train_classifier(folder: Path) -> Path:
    rows = [json.dumps({"text": word, "label": ("even", "odd")[n % 2]}) for n, word in enumerate(WORDS)]
    (folder / "labels.jsonl").write_text("".join(f"{row}\n" for row in rows))
    labelled = [str(folder / "labels.jsonl"), "--supervised", "--objective", "masked"]
    assert run(["train", *labelled, *SMALL, "-o", str(folder / "classifier")]) == 0
    return folder / "labels.jsonl"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of text, sentence pairs and labels, with their rows and the same rows among malformed ones."""
    folder = tmp_path_factory.mktemp("trained")
    for kind, malformed in ("good", False), ("bad", True):
        (folder / kind).mkdir()
        files(folder / kind, malformed=malformed)
    labels = train_classifier(folder).read_text().splitlines(keepends=True)
    (folder / "good" / "labels.jsonl").write_text("".join(labels))
    labels[5:5], labels[21:21] = ['{"text": 3}\n'], ['{"label": "odd"}\n']
    (folder / "bad" / "labels.jsonl").write_text("".join(labels))
    pairs = ["--pairs", str(folder / "good" / "pairs.txt"), "--n-encoder-layers", "1"]
    assert run(["train", *pairs, *SMALL, "-o", str(folder / "pairs")]) == 0
    assert run(["train", str(folder / "good" / "rows.jsonl"), *SMALL, "-o", str(folder / "text")]) == 0
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "perplexity ../text rows.jsonl", "perplexity ../text rows.csv", "tokenizer inspect ../text rows.jsonl",
        "perplexity ../pairs --pairs pairs.txt", "perplexity ../pairs --pairs pairs.jsonl",
        "evaluate ../pairs --pairs pairs.txt --max-length-extra 1", "evaluate ../classifier labels.jsonl",
        "classify ../classifier labels.jsonl",
    ],
)  # fmt: skip
def test_commands_that_measure_skip_rows_as_training_does(trained, capsys, monkeypatch, command):
    monkeypatch.chdir(trained / "bad")
    assert run(command.split()) == 1
    assert capsys.readouterr().err.rstrip().endswith("--skip-malformed)")
    assert run([*command.split(), "--skip-malformed"]) == 0
    skipping = capsys.readouterr()
    assert re.findall(r": 2 malformed rows are left out \(lines (.*)\)", skipping.err) == ["6, 22"]
    monkeypatch.chdir(trained / "good")
    assert run(command.split()) == 0
    assert capsys.readouterr().out == skipping.out


def test_rows_that_cannot_be_skipped_name_no_flag(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained / "bad")
    assert run(["generate", "../text", "--prompts", "rows.jsonl"]) == 1
    assert run(["classify", "../classifier", "../good/labels.jsonl", "--labels", "labels.jsonl"]) == 1
    assert "--skip-malformed" not in capsys.readouterr().err
