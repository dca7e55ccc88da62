"""TAB: asked as the shells ask, with the completion scripts' own variables, in a process of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from cli.main import run
from lm.config.presets import PRESETS
from lm.config.training import Schedule
from lm.text.public.catalogue import CORPORA
from lm.training import run_summaries
from tests.documented_help import commands
from tests.system.conftest import SMALL

ROOT = Path(__file__).parents[3]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with runs in runs/, elsewhere, and beside files."""
    made = tmp_path_factory.mktemp("completion")
    for checkpoint in ("runs/novel/checkpoints/step-9", "runs/novel/checkpoints/step-100",
                       "runs/letters/checkpoints", "more/other/checkpoints", "here/checkpoints"):  # fmt: skip
        (made / checkpoint).mkdir(parents=True)
    (made / "runs" / "notes").mkdir()
    (made / "rumours.txt").write_text("x")
    return made


_ANSWERS = """
import contextlib, io, json, os, sys
from cli.main import main
own, sys.argv, questions = dict(os.environ), ['lm'], sys.stdin
for line in questions:
    sys.stdin = open(os.devnull)
    where, environment = json.loads(line)
    os.chdir(where)
    os.environ.clear()
    os.environ.update(own | environment)
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out, contextlib.suppress(SystemExit):
        main()
    out.flush()
    heavy = {'torch', 'numpy', 'tokenizers', 'safetensors'} & set(sys.modules)
    print(json.dumps([out.buffer.getvalue().decode(), sorted(heavy)]), flush=True)
"""


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str, str, Path], list[str]]]:
    """What a shell would offer at the end of a command line; nothing means its own files and folders.

    One process answers all questions, and imports nothing heavy for them.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _ANSWERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "LM_STEP": "1", "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip

        def ask(shell: str, line: str, where: Path) -> list[str]:
            asked = {
                "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
                "zsh": {"_TYPER_COMPLETE_ARGS": line},
                "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            }[shell]
            process.stdin.write(json.dumps([str(where), {"_LM_COMPLETE": f"complete_{shell}", **asked}]) + "\n")
            process.stdin.flush()
            output, heavy = json.loads(process.stdout.readline())
            assert heavy == []
            return _values(shell, output)

        yield ask
        process.stdin.close()
        assert process.stderr.read() == ""


def _values(shell: str, output: str) -> list[str]:
    if shell == "zsh":
        if output.strip() == "_files":
            return []
        items = output.strip().removeprefix("_arguments '*: :((").removesuffix("))'").splitlines()
        return [item.split('"')[1] for item in items]
    return [line.split("\t")[0] for line in output.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lm generate ", ["runs/letters", "runs/novel", "here"]),
        ("lm generate ru", ["runs/letters", "runs/novel"]),
        ("lm generate more/", ["more/other"]),
        ("lm generate runs/novel/", ["runs/novel/checkpoints/step-100", "runs/novel/checkpoints/step-9"]),
        ("lm generate rumours", []),
        ("lm train rum", []),
        ("lm train --preset nano", [name for name in PRESETS if name.startswith("nano")]),
        ("lm perplexity runs/novel x --versus runs/l", ["runs/letters"]),
    ],
)
def test_every_shell_offers(ask, shell, line, offered, folder):
    assert ask(shell, line, folder) == offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lm train --resume ", ["runs/letters", "runs/novel", "here"]),
        ("lm train --from he", ["here"]),
        ("lm train --tokenizer runs/l", ["runs/letters"]),
        ("lm tokenizer encode runs/l", ["runs/letters"]),
        ("lm plot runs/novel runs/l", ["runs/letters"]),
        ("lm plot runs/novel --what learning", ["learning_rate"]),
        ("lm info gpt2-", [name for name in PRESETS if name.startswith("gpt2-")]),
        ("lm corpus get tiny", [corpus.name for corpus in CORPORA if corpus.name.startswith("tiny")]),
        ("lm prepare text.txt --tokenizer runs/l", ["runs/letters"]),
        ("lm train --config ", []),
        ("lm tokenizer tr", ["train"]),
        ("lm train --warmup", ["--warmup-steps"]),
        ("lm train --expert", []),
        ("lm train --help-s", ["--help-settings"]),
        ("lm train --set model.rope_s", ["model.rope_scaling=", "model.rope_slow="]),
        ("lm train --set training.best", ["training.best_by=loss", "training.best_by=bleu"]),
        ("lm train --set model.zero", ["model.zero_init=true", "model.zero_init=false"]),
    ],
)
def test_each_thing_is_offered_where_it_belongs(ask, line, offered, folder):
    assert ask("bash", line, folder) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_values_of_a_setting(ask, shell, folder):
    assert ask(shell, "lm train --set model.experts=", folder) == []
    norms = ["model.norm=layernorm", "model.norm=rmsnorm"]
    assert ask(shell, "lm train --set model.norm=", folder) == norms
    assert ask(shell, "lm train --set model.norm=r", folder) == norms[1:]


NAMES_OF_RUNS = [
    pytest.param(command, parameter, id=f"{path} {parameter.name}")
    for path, command in commands()
    for parameter in command.params
    if re.search(r"\bRUN|^TOKENIZER", str(getattr(parameter, "metavar", None)))
]


@pytest.mark.parametrize(("command", "parameter"), NAMES_OF_RUNS)
def test_whatever_names_a_run_offers_runs(command, parameter, folder, monkeypatch):
    monkeypatch.chdir(folder)
    context = command.make_context("x", [], resilient_parsing=True)
    assert "runs/letters" in [item.value for item in parameter.shell_complete(context, "runs/l")]


def test_values_of_a_choice(ask, folder):
    assert ask("bash", "lm train --schedule ", folder) == list(get_args(Schedule))


CHOICES = [
    pytest.param(command, parameter, id=f"{path} {parameter.opts[0]}")
    for path, command in commands()
    for parameter in command.params
    if hasattr(parameter, "setting") and parameter.setting.option.choices
]


@pytest.mark.parametrize(("command", "parameter"), CHOICES)
def test_completions_are_the_values_that_are_accepted(command, parameter):
    context = command.make_context("x", [], resilient_parsing=True)
    option = parameter.setting.option
    offered = [item.value for item in parameter.shell_complete(context, "")]
    assert offered == list(option.choices)
    for value in offered:
        option.check(value)
    if command.has_advanced_settings:
        by_key = next(each for each in command.params if "--set" in each.opts)
        key = parameter.setting.key
        offered = [item.value for item in by_key.shell_complete(context, f"{key}=")]
        assert offered == [f"{key}={value}" for value in option.choices]


def test_curves_that_are_offered_are_those_that_a_run_has(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("one two three four\n" * 100)
    assert run(["train", str(text), "-o", str(folder), "--steps", "1", *SMALL]) == 0
    assert set(run_summaries.load_curves(folder)) <= set(ask("bash", "lm plot x --what ", tmp_path))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_that_is_installed_is_accepted_by_its_shell(shell, tmp_path):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "cli.main", "--show-completion", shell]
    script = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900).stdout
    assert "_LM_COMPLETE=complete_" + shell in script
    path = tmp_path / "script"
    path.write_text(script)
    done = subprocess.run([program, "-n", str(path)], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_with_the_installed_program(folder):
    """The whole way: the script, the program, and what bash would put on the line."""
    bash, program = shutil.which("bash"), Path(sys.executable).with_name("lm")
    if bash is None or not program.exists():
        pytest.skip("no bash here, or lm is not installed")
    script = (
        f'eval "$({program} --show-completion bash)"\n'
        f'COMP_WORDS=(lm generate runs/n); COMP_CWORD=2; _lm_completion {program}; echo "${{COMPREPLY[*]}}"'
    )
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [bash, "-c", script], capture_output=True, text=True, cwd=folder, env=environment, timeout=900
    )
    assert done.stdout.strip() == "runs/novel", done.stderr
