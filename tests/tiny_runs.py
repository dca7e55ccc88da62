"""Tiny runs, some of which have memorised a regular task, for tests that decode, score and serve: made when first used.

They are kept in the temporary folder until the sources of `lm` change.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import lm
from tests import forked
from tests.cli import toy_translation

_NUMBERS = ("one", "two", "three", "four", "five", "six")
_GERMAN = dict(zip(_NUMBERS, ("eins", "zwei", "drei", "vier", "fünf", "sechs"), strict=True))
_SHAPE = "--d-model 16 --n-layers 1 --n-heads 2 --context 24 --batch-size 16 --tokenizer char"
_TEXT = f"counting.txt --preset tiny {_SHAPE}"
_PAIRS = (
    "--source numbers.en --target numbers.de --preset translation-tiny --d-model 16 --n-layers 1 --n-heads 2 "
    "--set model.d_ff=32 --context 48 --batch-tokens 600 --tokenizer byte --dropout 0 --set training.ema=0 "
    "--set training.label_smoothing=0 --set training.best_by=loss"
)
RUNS_BY_NAME: Mapping[str, str] = {
    "gpt": f"{_TEXT} --steps 150",
    "llama": f"{_TEXT} --preset llama-15m --set model.d_ff=32 --steps 2",
    "questions": f"questions.jsonl --preset tiny {_SHAPE} --steps 2 --validation 0",
    "lora": "backwards.txt --from gpt --lora 4 --batch-size 16 --learning-rate 2e-2 --steps 9",
    "one-stack": f"{_PAIRS} --set model.decoder_only=true --steps 2",
    "syntax": f"{_PAIRS} --set model.n_encoder_layers=1 --steps 2 --set model.syntax=both --dependency-heads "
    "numbers.heads",
}
"""Arguments of `lm train`, those of runs that others start from first. Another run is `translation`."""
_ALL = "--evaluate-every 0 --set training.keep_checkpoints=1 --seed 1 --device cpu --dtype float32 --threads 1"


class _Runs:
    """A folder of texts and runs: RUNS / NAME makes what is not there."""

    def __truediv__(self, name: str) -> Path:
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of the other processes of the tests
            if not (self._folder / "texts").exists():
                _write_texts(self._folder)
            for each in ("gpt", "lora") if name == "lora" else (name,):
                if (self._folder / each / "last").exists():
                    continue
                if each in RUNS_BY_NAME:
                    self._train(each)
                elif each == "translation":
                    toy_translation.make_translation_run(self._folder / each)
        return self._folder / name

    @cached_property
    def _folder(self) -> Path:
        package = Path(lm.__file__).parent
        paths = [Path(__file__), Path(toy_translation.__file__), *sorted(package.rglob("*.py"))]
        key = hashlib.sha256(b"".join([str(package).encode(), *(path.read_bytes() for path in paths)])).hexdigest()
        folder = Path(tempfile.gettempdir(), f"lm-tiny-runs-{key[:16]}")
        folder.mkdir(exist_ok=True)
        return folder

    def _train(self, name: str) -> None:
        words = [*RUNS_BY_NAME[name].split(), *_ALL.split(), "-o", name]
        with contextlib.chdir(self._folder):
            done = forked.lm("train", *words, env=os.environ | {"LM_CACHE": str(self._folder / "data")})
        assert done.returncode == 0, done.stderr


RUNS = _Runs()


def _write_texts(folder: Path) -> None:
    counting = [" ".join(_NUMBERS[(first + place) % 6] for place in range(8)) for first in range(60)]
    _write(folder / "counting.txt", counting)
    _write(folder / "backwards.txt", [" ".join(reversed(line.split())) for line in counting])
    rows = [json.dumps({"prompt": f"after {word} comes ", "completion": word}) for word in _NUMBERS]
    _write(folder / "questions.jsonl", rows * 12)
    draw = random.Random(3)
    sources = [draw.sample(_NUMBERS, draw.randint(2, 3)) for _ in range(300)]
    _write(folder / "numbers.en", [" ".join(words) for words in sources])
    _write(folder / "numbers.de", [" ".join(_GERMAN[word] for word in words) for words in sources])
    _write(folder / "numbers.heads", [" ".join(str(place) for place in range(len(words))) for words in sources])
    (folder / "texts").touch()


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
