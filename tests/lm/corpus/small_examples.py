"""Examples for tests: as JSON Lines, and at random."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from lm.config.run_config import DataConfig, TokenizerConfig
from lm.text.find import find_text_files
from lm.text.text_file import TextFile
from lm.tokenizer import Tokenizer, training


def lines(pairs: Sequence[tuple[str, str]], first: str = "prompt", second: str = "completion") -> str:
    return "".join(json.dumps({first: prompt, second: completion}) + "\n" for prompt, completion in pairs)


def source(folder: Path, text: str, *, name: str = "task.jsonl") -> TextFile:
    path = folder / name
    path.write_text(text)
    return find_text_files([str(path)], DataConfig(label_column="label" if '"label"' in text else None))[0]


def tokenizer(kind: str = "byte") -> Tokenizer:
    return training.train(["abc"], TokenizerConfig(kind=kind), corpus_bytes=3)


def drawn(count: int, *, labels: int = 5, seed: int = 1) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    return [
        ("".join(draw.choices("abcdé ", k=draw.randrange(1, 30))), "x" * draw.randrange(1, labels))
        for _ in range(count)
    ]
