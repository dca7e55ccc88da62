"""The app itself."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.cli.small_runs import make_run
from tests.documented_help import helps
from tests.forked import Forked, run_main, start


def test_the_version_says_with_which_torch(succeed):
    assert succeed("--version") == f"lm {version('lm-toolkit')} (torch {version('torch')})\n"


@pytest.mark.parametrize(
    "arguments", [["train", "-", "--steps", "1"], ["perplexity", "run"], ["tokenizer", "encode", "run"]]
)
def test_a_closed_stdin_is_an_empty_one(tmp_path, monkeypatch, arguments):
    make_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with start(*arguments, stdin=None, stderr=PIPE) as process:
        assert "Traceback" not in process.stderr.read()
        assert process.wait() == (0 if arguments[0] == "tokenizer" else 1)


def test_pipes_are_utf_8_whatever_the_system_uses(tmp_path):
    """Stdin, stdout and stderr; a session of `--interactive` reads its lines in another way than other commands."""
    command = "generate", make_run(tmp_path / "run"), "--max-tokens", "9"
    for arguments, given in ((["日本 café"], ""), (["--interactive"], f"owl\n/save {tmp_path}/日本 café\n")):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
        with Forked(run_with_pipes_in_cp1252, *command, *arguments, **pipes) as process:
            with process.stdin:
                process.stdin.write(given)
            assert "日本" in (process.stderr if given else process.stdout).read()
            assert process.wait() == 0


def run_with_pipes_in_cp1252(*arguments: str) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(encoding="cp1252")
    run_main(*arguments)


def test_help_imports_nothing_heavy():
    """So that it is there at once."""
    code = (
        "import sys; from cli.main import run\n"
        "for command in sys.argv[1:]:\n"
        "    run(command.split())\n"
        "    heavy = {'torch', 'tokenizers', 'numpy', 'safetensors', 'sacrebleu', 'matplotlib'} & set(sys.modules)\n"
        "    heavy |= {name for name in sys.modules if name.startswith(('lm.data', 'lm.model', 'lm.decoding'))}\n"
        "    if heavy: sys.exit(f'{command}: {heavy}')"
    )
    names = [f"{name.removeprefix('lm')} --help" for name, _ in helps()]
    names += [f"train {page}" for page in ("-h", "--help-settings")]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: lm") == len(names) - 1  # the settings have none


def test_a_command_imports_no_other():
    code = (
        "import sys; from cli.main import COMMANDS, run; run(['generate', '--help']);"
        "others = {where.partition(':')[0] for where in COMMANDS.values()} - {'cli.generate'};"
        "sys.exit(f'{others & set(sys.modules)}' if others & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_without_a_word_while_modules_are_being_imported():
    code = (
        "import sys; from cli.__main__ import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted()); main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


_COMMAND_AND_ABORT = (
    "import atexit, ctypes, sys; from cli.__main__ import main\n"
    "ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p))\n"
    "class LaterImport:\n"
    "    def find_spec(self, name, *_):\n"
    "        if name == 'typer': atexit.register(print, 'exit function')\n"
    "sys.meta_path.insert(0, LaterImport()); main()"
)
"""A command of a process that aborts when Python is torn down, with an exit function of something that it imports."""


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["runs", "nosuch"], 1), (["train", "--nosuch"], 2)])
def test_a_command_ends_its_process_without_tearing_python_down(arguments, code):
    """Extension modules check for leaks then (nanobind's), and torch's objects are searched for cycles."""
    command = [sys.executable, "-c", _COMMAND_AND_ABORT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stderr
    assert done.stdout.endswith("exit function\n")
    assert "Usage: lm" in done.stdout or done.stderr.startswith("lm: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written_when_the_process_ends_is_a_failure():
    code = "import sys; from cli import main as commands; commands.main = lambda: sys.exit(print('text'))\n"
    code += "from cli.__main__ import main; main()"
    command, buffered = [sys.executable, "-c", code], {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered, timeout=900)
    assert done.returncode == 120
    assert b"No space left on device" in done.stderr
