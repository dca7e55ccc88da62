"""The examples of docs/how-to run as they stand there, one after another."""

import re
from pathlib import Path

import pytest

from lm.text.find import find_text_files
from tests.cli.small_runs import TEXT, make_run
from tests.cli.toy_translation import pairs

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def read_examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_a_chat_log_becomes_conversations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = [
        "Anna: Hello?",
        *[f"{name}: {number}: é" for number in range(9) for name in ("Ben", "Cem", "Anna")],
        "Ben: Bye",
    ]
    Path("log.txt").write_text("\n".join(log), encoding="utf-8")
    exec(read_examples("chat.md")[0], {})
    (file,) = find_text_files(["chats.jsonl"])
    assert [tuple(part) for record in file.records() for part in record.parts] == [
        turn for number in range(9) for turn in (("user", f"{number}: é\n{number}: é"), ("assistant", f"{number}: é"))
    ]


@pytest.mark.medium
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "novel")
    make_run(tmp_path / "runs" / "masked", objective="masked")
    make_run(tmp_path / "runs" / "labels", objective="masked", labels=("cat", "dog"))
    make_run(tmp_path / "runs" / "en-de", n_encoder_layers=1)
    for name in ("held-out.txt", "book.txt"):
        Path(name).write_text(TEXT * 50, encoding="utf-8")
    rows = '{"text": "the owl", "label": "cat"}\n{"text": "the fox", "label": "dog"}\n'
    Path("held-out.jsonl").write_text(rows, encoding="utf-8")
    for split, count in (("train", 300), ("test", 20)):
        sides = zip(*pairs(count, seed=count), strict=True)
        for language, lines in zip(("en", "de"), sides, strict=True):
            Path(f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    examples = read_examples("python.md")
    assert len(examples) > 5
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "python.md", "exec"), names)
    assert "validation" in capsys.readouterr().out
