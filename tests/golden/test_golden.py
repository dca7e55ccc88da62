"""The comparison translates command lines, and reports a difference."""

import numpy as np
import pytest

from tests.golden.cases import Case, cases
from tests.golden.compare import differences
from tests.golden.flags import translate

RENAMED = {
    "--typical": "--typical-p", "--experts": "model.experts", "--supervised": None, "--greedy": "--temperature 0",
    "--draft": "--draft-model", "--draft prompt": "--prompt-lookup", "--bias": "model.bias",
    "translate --sample": "--draw",
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("generate run --typical 0.6 -n 2", "generate run --typical-p 0.6 -n 2"),
        ("train a b --experts 4 --bias -o run", "train a b --set model.experts=4 --set model.bias=true -o run"),
        ("train a --no-bias --seed 1", "train a --set model.bias=false --seed 1"),
        ("train a --supervised --seed 1", "train a --seed 1"),
        ("generate run 'The road' --greedy --json", "generate run 'The road' --temperature 0 --json"),
        ("generate run --draft prompt --json", "generate run --prompt-lookup --json"),
        ("generate run --draft other --json", "generate run --draft-model other --json"),
        ("translate run --sample --seed 3", "translate run --draw --seed 3"),
        ("train a --sample The", "train a --sample The"),
        ("export run --to gguf -o out", "export gguf run -o out"),
    ],
)
def test_flags_are_translated(old, new):
    forms = ((r"^export (\S+) --to (\S+)", r"export \2 \1"),)
    assert translate(old, RENAMED, forms) == translate(new, {}, ())


def test_names_of_cases_differ():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)


@pytest.fixture
def record():
    return {
        "2 results: weights norm.weight": np.ones((2, 3), np.float32), "3 generate: tokens": np.array([4, 5, 6]),
        "3 generate: text": np.array(["a road"]),
    }  # fmt: skip


def test_a_changed_tensor_or_token_is_reported(record):
    case, changed = Case("any", ()), {name: values.copy() for name, values in record.items()}
    assert differences(case, record, changed) == []
    changed["2 results: weights norm.weight"][1, 2] = np.nextafter(np.float32(1), np.float32(2))
    changed["3 generate: tokens"][1] = 7
    tensor, token = differences(case, record, changed)
    assert tensor.startswith("2 results: weights norm.weight[1, 2]: 1.0 -> 1.0000001")
    assert token == "3 generate: tokens[1]: 5 -> 7 (1 differ)"
    assert differences(Case("any", (), tolerance=1e-5), record, changed) == [token]


def test_what_is_missing_and_what_fails_is_reported(record):
    shorter = {"2 results: weights norm.weight": np.ones((2, 2), np.float32), "3 generate: exit": np.array(["no run"])}
    assert differences(Case("any", ()), record, shorter) == [
        "3 generate: exit: no run", "2 results: weights norm.weight: shape (2, 3) -> (2, 2)",
        "3 generate: tokens: only in the base commit", "3 generate: text: only in the base commit",
    ]  # fmt: skip
