"""The examples of docs/how-to/python.md run as they stand there, one after another."""

import re
from pathlib import Path

import pytest

from tests.cli.small_runs import TEXT, make_run
from tests.cli.toy_translation import make_translation_run, pairs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python.md"


@pytest.mark.medium
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "novel")
    make_run(tmp_path / "runs" / "masked", objective="masked")
    make_run(tmp_path / "runs" / "labels", objective="masked", labels=("cat", "dog"))
    make_translation_run(tmp_path / "runs" / "en-de", steps=30)
    for name in ("held-out.txt", "book.txt"):
        Path(name).write_text(TEXT * 50, encoding="utf-8")
    rows = '{"text": "the owl", "label": "cat"}\n{"text": "the fox", "label": "dog"}\n'
    Path("held-out.jsonl").write_text(rows, encoding="utf-8")
    for split, count in (("train", 300), ("test", 20)):
        sides = zip(*pairs(count, seed=count), strict=True)
        for language, lines in zip(("en", "de"), sides, strict=True):
            Path(f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) > 5
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert "validation" in capsys.readouterr().out
