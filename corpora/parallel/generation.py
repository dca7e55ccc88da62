"""Generating the corpus: distinct sentences, split by their combinations of words."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from .english.clauses import sentence as english
from .german.clauses import sentence as german
from .grammar.sentences import derive
from .orthography import written
from .randomness import RandomChoices
from .split import combinations, is_reserved
from .syntax import Sentence

SEED = 1
TRAINING_PAIRS = 20_000
HELD_OUT_PAIRS = 1_000
LENGTHS = range(3, 26)
OCCURRENCES = 10


class TranslatedPair(NamedTuple):
    """A sentence in both languages and the combinations of words it is made of."""

    english: str
    german: str
    combinations: tuple[str, ...]


@dataclass
class GeneratedCorpus:
    """Training pairs, and held-out pairs that each have a combination that training never has."""

    training: list[TranslatedPair] = field(default_factory=list)
    held_out: list[TranslatedPair] = field(default_factory=list)


def pair(sentence: Sentence) -> TranslatedPair:
    """Spell out a sentence in both languages."""
    return TranslatedPair(
        written(english(sentence), sentence.mood), written(german(sentence), sentence.mood), combinations(sentence)
    )


def words(line: str) -> list[str]:
    """Return the word forms of a line, without case and punctuation."""
    return line.lower().replace(",", "").rstrip(".?").split()


def generate(seed: int = SEED, training: int = TRAINING_PAIRS, held_out: int = HELD_OUT_PAIRS) -> GeneratedCorpus:
    """Generate a corpus with the given numbers of pairs, a function of the seed alone."""
    dice, corpus, candidates = RandomChoices(seed), GeneratedCorpus(), list[TranslatedPair]()
    seen: set[str] = set()
    while len(corpus.training) < training or len(candidates) < 2 * held_out:
        new = pair(derive(dice))
        if new.english in seen or not all(len(words(line)) in LENGTHS for line in new[:2]):
            continue
        seen.add(new.english)
        if any(map(is_reserved, new.combinations)):
            candidates.append(new)
        elif len(corpus.training) < training:
            corpus.training.append(new)
    corpus.held_out = with_frequent_words(candidates, corpus.training)[:held_out]
    return corpus


def with_frequent_words(candidates: list[TranslatedPair], training: list[TranslatedPair]) -> list[TranslatedPair]:
    """Return the candidates whose word forms occur often enough in training, each language counted by itself."""
    english_words = frequent_words([each.english for each in training])
    german_words = frequent_words([each.german for each in training])
    return [
        each
        for each in candidates
        if english_words.issuperset(words(each.english)) and german_words.issuperset(words(each.german))
    ]


def frequent_words(lines: list[str]) -> set[str]:
    """Return the word forms with at least `OCCURRENCES` occurrences."""
    counts = Counter(word for line in lines for word in words(line))
    return {word for word, count in counts.items() if count >= OCCURRENCES}
