"""A file is read once to survey it, once for a tokenizer that has to be trained, and once to be tokenized."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from lm.text import decode
from tests.lm.corpus.parallel_text import lines
from tests.system.conftest import SMALL

SHAPE = ["--vocab-size", "300", "--d-model", "32", "--n-layers", "1"]
PAIRS = ["--source", "text.en", "--target", "text.de", "--preset", "translation-tiny", "--set",
         "model.n_encoder_layers=1", "--set", "training.bleu_sentences=2"]  # fmt: skip


@pytest.fixture
def readings(tmp_path, monkeypatch) -> Counter[str]:
    """How often each file has been read from its start to its end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    for name, side in zip(("text.en", "text.de"), lines(300), strict=True):
        Path(name).write_text("\n".join(side))
    found: Counter[str] = Counter()
    blocks = decode.read_blocks

    def counted(path: Path, name: str) -> Iterator[bytes]:
        yield from blocks(path, name)
        found[name] += 1

    monkeypatch.setattr(decode, "read_blocks", counted)
    return found


@pytest.mark.parametrize(
    "corpus",
    [
        ["prepare", "text.en", "--vocab-size", "300"],
        ["train", "text.en", *SMALL[:-2], "--vocab-size", "300"],
        ["train", *PAIRS, *SHAPE],
    ],
)
def test_a_file_is_read_three_times_and_once_if_it_is_prepared(corpus, readings):
    for number, count in enumerate((3, 1)):
        readings.clear()
        length = ["--steps", "1", "--evaluate-every", "0", "-o", f"run-{number}"] if corpus[0] == "train" else []
        assert run([*corpus, *length]) == 0
        assert set(readings.values()) == {count}
