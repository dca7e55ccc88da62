"""What names stand for: files, folders, globs, stdin and pipes."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lm.config.run_config import DataConfig, FilesConfig
from lm.errors import InputError
from lm.text.find import find_text_files


def read(file):
    return "".join(file.text())


@pytest.fixture
def folder(tmp_path):
    names = (
        "b.txt", "a.MD", "c/d.jsonl.gz", "c/e.csv", "c/f.py", "tests/g.py", ".hidden/h.txt", "c/.i.txt", "j.html",
        "k.tar.gz", "l.json", "Makefile", "c/m/n.py",
    )  # fmt: skip
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "reading", "expected"),
    [
        ([""], {}, "a.MD b.txt c/d.jsonl.gz c/e.csv"),
        (["**/*.py", "j.html", "c/f.py"], {}, "c/f.py c/m/n.py tests/g.py j.html"),
        (["b.txt", ""], {}, "b.txt a.MD c/d.jsonl.gz c/e.csv"),
        ([""], {"include": ("*.py",)}, "c/f.py c/m/n.py tests/g.py"),
        ([""], {"include": ("*.py", "Make*"), "exclude": ("tests",)}, "Makefile c/f.py c/m/n.py"),
        ([""], {"include": ("c/*",), "exclude": ("*.jsonl",)}, "c/e.csv c/f.py c/m/n.py"),
    ],
)
def test_names_folders_and_globs(folder, patterns, reading, expected):
    files = find_text_files([f"{folder}/{pattern}" for pattern in patterns], None, FilesConfig(**reading))
    assert [file.path.relative_to(folder).as_posix() for file in files] == expected.split()


def test_what_holds_nothing_is_named(folder):
    with pytest.raises(InputError, match=r"\*\.pdf"):
        find_text_files([f"{folder}/*.pdf"])


def test_stdin_can_be_read_twice_and_its_copy_is_deleted_at_exit(tmp_path):
    code = "from lm.text.find import *; [f] = find_text_files('-'); print(*f.text(), *f.text(), f.path, sep='')"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", code], input="고양이\n".encode(), capture_output=True, env=environment)
    assert done.stdout.decode().startswith(f"고양이\n고양이\n{tmp_path}")
    assert not [*tmp_path.iterdir()]


def test_a_pipe_can_be_read_twice():
    receiving, sending = os.pipe()
    os.write(sending, b"text")
    os.close(sending)
    (file,), (again,) = (find_text_files([f"/dev/fd/{receiving}"]) for _ in range(2))
    os.close(receiving)
    assert read(file) == read(file) == read(again) == "text"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"body": "one"}\n{"body": "two"}\n', ["one", "two"]),
        (b"{plain text}\n", ["{plain text}\n"]),
        (b"", []),
    ],
)
def test_stdin_is_json_lines_if_it_begins_with_an_object(data, expected, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    (file,) = find_text_files(["-"], DataConfig(text_column="body"))
    assert [record.text for record in file.records()] == expected
