"""The compiled engine computes every activation that a configuration can name, as PyTorch does."""

import json
from typing import Any

import pytest

from cli.main import run
from lm.engine.compiled.build import compile_decode_step
from lm.kernels import code_cache
from tests.lm.interop.hugging_face.test_marian import SENTENCES, theirs_saved
from tests.lm.machine_code import kept_code

pytest.importorskip("numba")  # once numba is loaded, compiled code is used from the first token on

_HARDWARE = ["--device", "cpu", "--dtype", "float32", "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def _with_compiled_step(pytestconfig):
    with kept_code(pytestconfig):
        compile_decode_step()
        yield


def by_both(arguments: list[str], tmp_path, monkeypatch, capsys) -> tuple[list[Any], list[Any]]:
    """The JSON of a command by compiled code, and where none was compiled."""
    capsys.readouterr()
    results = []
    for is_compiled in (True, False):
        with monkeypatch.context() as patch:
            if not is_compiled:
                patch.setenv("LM_CACHE", str(tmp_path / "empty"))
            code_cache.is_complete.cache_clear()
            assert code_cache.is_complete() == is_compiled
            assert run([*arguments, "--json", *_HARDWARE]) == 0
        captured = capsys.readouterr()
        if "--stats" in arguments:
            assert ("compiled engine" in captured.err) == is_compiled
        results.append([json.loads(line) for line in captured.out.splitlines()])
    code_cache.is_complete.cache_clear()
    return results[0], results[1]


def test_translations_of_an_imported_marian_with_swish(tmp_path, monkeypatch, capsys):
    theirs_saved(tmp_path)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["activation_function"] == "swish"
    assert run(["import", str(tmp_path / "theirs"), "-o", str(tmp_path / "run")]) == 0
    (tmp_path / "source").write_text("\n".join(SENTENCES) + "\n")
    arguments = ["translate", str(tmp_path / "run"), str(tmp_path / "source"), "--beam", "3"]
    found, expected = by_both(arguments, tmp_path, monkeypatch, capsys)
    assert len(found) == len(SENTENCES)
    for one, other in zip(found, expected, strict=True):
        assert one["translations"][0]["tokens"] == other["translations"][0]["tokens"]
        assert one["translations"][0]["score"] == pytest.approx(other["translations"][0]["score"], abs=1e-4)
