import json

import pytest

from cli.main import run
from tests.cli.small_runs import make_run

LINES = [
    "The owl",
    "",
    "The owl saw the fox by the mill. The owl saw the fox by the mill.",
    "The fox",
    "Über den Bäumen",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {"bpe": make_run(folder / "bpe"), "char": make_run(folder / "char", kind="char")}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def lm(capsys):
    """Runs a command line that must succeed; returns its standard output."""

    def succeed(*arguments) -> str:
        code = run(["generate", *map(str, arguments)])
        output = capsys.readouterr()
        assert code == 0, output.err
        assert output.err == ""
        return output.out

    return succeed


@pytest.fixture
def refused(capsys):
    """Runs a command line that must fail; returns its exit code and the line on stderr."""

    def fail(*arguments) -> tuple[int, str]:
        code = run(["generate", *map(str, arguments)])
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return code, error

    return fail


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_results_come_in_the_order_of_the_lines(runs, prompts, lm):
    found = objects(lm(runs["bpe"], "--prompts", prompts, "--max-tokens", 9, "--seed", 4, "--json", "--batch-size", 2))
    assert [one["prompt"] for one in found] == LINES
    assert all(len(one["tokens"]) <= 9 and one["seed"] == 4 for one in found)
    (alone,) = objects(lm(runs["bpe"], LINES[0], "--max-tokens", 9, "--seed", 4, "--json"))
    assert found[0]["text"] == alone["text"]
    assert set(found[0]) == set(alone)


@pytest.mark.parametrize(("n", "processes"), [(1, 1), (3, 1), (2, 2)])
def test_samples_depend_neither_on_how_many_there_are_nor_on_the_order_of_the_lines(runs, lm, tmp_path, n, processes):
    flags = ("--max-tokens", 5, "--seed", 4, "--json", "--threads", 1)
    alone = {line: objects(lm(runs["bpe"], line, *flags, "-n", 4)) for line in LINES}
    path = tmp_path / "reversed.txt"
    path.write_text("".join(f"{line}\n" for line in [*reversed(LINES), LINES[0]]), encoding="utf-8")
    command = ("--prompts", path, "-n", n, "--batch-size", 4, "--processes", processes)
    found = [sample["tokens"] for sample in objects(lm(runs["bpe"], *flags, *command))]
    assert found[:-n] == [sample["tokens"] for line in reversed(LINES) for sample in alone[line][:n]]
    assert found[-n:] != found[-2 * n : -n], "a prompt that comes again has other samples"


def test_texts_are_separated_as_documents_and_may_go_to_a_file(runs, prompts, lm, tmp_path):
    flags = ("--prompts", prompts, "--max-tokens", 5, "--greedy")
    written = lm(runs["bpe"], *flags)
    assert written.count("<|endoftext|>\n") == len(LINES) - 1
    assert written.startswith("The owl")
    assert lm(runs["bpe"], *flags, "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == written
    bare = lm(runs["bpe"], *flags, "--no-echo")
    assert len(bare) < len(written)
    assert "The fox" not in bare


def test_several_samples_of_each_and_their_alternatives(runs, prompts, lm):
    flags = ("--max-tokens", 4, "--seed", 1, "--json", "-n", 2, "--top-alternatives", 3)
    found = objects(lm(runs["bpe"], "--prompts", prompts, *flags))
    assert [one["prompt"] for one in found] == [line for line in LINES for _ in range(2)]
    assert all(len(one["alternatives"]) == len(one["tokens"]) for one in found)
    assert found[0]["tokens"] != found[1]["tokens"]


def test_objects_with_settings_of_their_own(runs, lm, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "The owl", "seed": 8, "max_tokens": 3}\n{"text": "The owl"}\n')
    first, second = objects(lm(runs["bpe"], "--prompts", path, "--max-tokens", 6, "--seed", 1, "--json"))
    (alone,) = objects(lm(runs["bpe"], "The owl", "--max-tokens", 3, "--seed", 8, "--json"))
    assert (first["tokens"], first["seed"]) == (alone["tokens"], 8)
    assert (len(second["tokens"]), second["seed"]) == (6, 1)


def test_beam_search_returns_the_best_texts_of_each_prompt(runs, prompts, lm):
    found = objects(lm(runs["bpe"], "--prompts", prompts, "--max-tokens", 5, "--beam", 3, "-n", 2, "--json"))
    assert len(found) == 2 * len(LINES)
    assert found[0]["score"] >= found[1]["score"]
    alone = objects(lm(runs["bpe"], LINES[0], "--max-tokens", 5, "--beam", 3, "-n", 2, "--json"))
    assert found[:2] == alone


def test_an_empty_file_has_no_results_and_that_is_said(runs, capsys, tmp_path):
    empty, out = tmp_path / "none.txt", tmp_path / "out.txt"
    empty.write_text("")
    assert run(["generate", str(runs["bpe"]), "--prompts", str(empty), "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", f"{empty}: no prompts, so nothing to do\n")
    assert out.read_text() == ""


@pytest.mark.parametrize(("dtype", "told"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_speed_dtype_and_seed_are_printed(runs, prompts, capsys, dtype, told):
    flags = ["--max-tokens", "3", "--seed", "5", "--stats", "--dtype", dtype]
    assert run(["generate", str(runs["bpe"]), "--prompts", str(prompts), *flags]) == 0
    assert "5 prompts, 15 tokens in " in (error := capsys.readouterr().err)
    assert error.endswith(f" tokens/s, {told}, seed 5\n")


def test_mistakes_are_reported_in_one_line(runs, prompts, refused, tmp_path):
    missing = tmp_path / "missing.txt"
    assert refused(runs["bpe"], "--prompts", missing) == (1, f"lm: {missing}: no such file or folder\n")
    code, error = refused(runs["bpe"], "--prompts", tmp_path)
    assert (code, "not one file" in error) == (1, True)
    code, error = refused(runs["bpe"], "a prompt", "--prompts", prompts, "--interactive")
    assert (code, error.startswith("lm: PROMPT, --interactive have no effect with --prompts")) == (2, True)
    code, error = refused(runs["bpe"], "a prompt", "--processes", 2)
    assert (code, error.startswith("lm: --processes has no effect without --prompts")) == (2, True)
    code, error = refused(runs["bpe"], "a prompt", "-o", tmp_path / "x")
    assert (code, error.startswith("lm: --out has no effect without --prompts")) == (2, True)
    code, error = refused(runs["char"], "--prompts", prompts)
    assert (code, f"{prompts}: line 2: the prompt is empty" in error) == (2, True)
    code, error = refused(runs["bpe"], "--prompts", prompts, "-o", tmp_path / "nowhere" / "x", "--max-tokens", 0)
    assert code == 2


def test_prompts_are_distributed_over_processes_without_changing_texts(runs, prompts, lm):
    flags = ("--prompts", prompts, "--max-tokens", 6, "--seed", 3, "--json", "--threads", 2)
    one, two = (objects(lm(runs["bpe"], *flags, "--processes", number)) for number in (1, 2))
    assert [result["tokens"] for result in two] == [result["tokens"] for result in one]
    assert [result["prompt"] for result in two] == LINES
