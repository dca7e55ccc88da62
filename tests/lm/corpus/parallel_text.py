"""Made-up languages that translate each other word by word, for tests of parallel text."""

import random
from pathlib import Path

_SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


def lines(count: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Sentences of 3 to 18 words, and their translations."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(300)]
    translations = ["".join(chance.choices(_SYLLABLES, k=max(1, len(word) // 2))) + "ß" for word in words]
    sources, targets = [], []
    for _ in range(count):
        chosen = [min(chance.randrange(300), chance.randrange(300)) for _ in range(chance.randint(3, 18))]
        sources.append(" ".join(words[number] for number in chosen) + ".")
        targets.append(" ".join(translations[number] for number in reversed(chosen)) + ".")
    return sources, targets


def write(folder: Path, sources: list[str], targets: list[str], *, name: str = "train") -> tuple[str, str]:
    """Two files, name.en and name.de; returns their paths."""
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for path, text in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(line + "\n" for line in text), encoding="utf-8", newline="")
    return str(paths[0]), str(paths[1])
