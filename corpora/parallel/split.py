"""Which combinations of words are held out.

A combination is a pair of lexical choices in one sentence: an adjective with its noun, a subject with its verb, a
verb with its object or complement, or a kind of clause with its verb. One in `RATIO` of all possible combinations,
chosen by a checksum of their names, is reserved: sentences without reserved combinations are for training, sentences
with at least one are held out.
"""

from collections.abc import Iterator
from zlib import crc32

from .lexicon.verbs import BE
from .syntax import (
    Clause,
    Comparison,
    Coordination,
    Mood,
    Nominal,
    NounPhrase,
    PredicateAdjective,
    PrepositionalPhrase,
    RelativePronoun,
    Sentence,
)

RATIO = 24


def is_reserved(combination: str) -> bool:
    """Return whether a combination is kept out of training."""
    return crc32(combination.encode()) % RATIO == 0


def heads(nominal: Nominal | None) -> list[str]:
    """Return the nouns that head a nominal."""
    match nominal:
        case NounPhrase(noun=noun) | RelativePronoun(noun=noun):
            return [noun.english]
        case Coordination(first, second):
            return [first.noun.english, second.noun.english]
        case _:
            return []


def combinations(sentence: Sentence) -> tuple[str, ...]:
    """Return the combinations of a sentence."""
    label = "question" if sentence.mood is Mood.QUESTION else "main"
    found = list(in_clause(sentence.clause, label))
    if sentence.second:
        found += in_clause(sentence.second, "main")
    return tuple(found)


def in_clause(clause: Clause, label: str) -> Iterator[str]:
    """Yield the combinations of a clause and of the clauses and phrases in it."""
    verb = clause.verb.name
    places = [each.nominal for each in (clause.complement, clause.place) if isinstance(each, PrepositionalPhrase)]
    if label != "main" and clause.verb is not BE:
        yield f"clause and verb: {label}, {verb}"
    if clause.verb is not BE:
        yield from (f"subject and verb: {noun}, {verb}" for noun in heads(clause.subject))
    for nominal in (clause.object, *places[: 1 if clause.complement else 0]):
        yield from (f"verb and complement: {verb}, {noun}" for noun in heads(nominal))
    for nominal in (clause.subject, clause.object, clause.recipient, *places):
        yield from in_nominal(nominal)
    yield from in_predicate(clause)
    if clause.subordinate:
        yield from in_clause(clause.subordinate.clause, clause.subordinate.conjunction.german or "embedded")


def in_predicate(clause: Clause) -> Iterator[str]:
    """Yield the combinations of a predicate with its subject."""
    match clause.predicate:
        case PredicateAdjective(adjective=adjective) | Comparison(adjective=adjective):
            yield from (f"subject and predicate: {noun}, {adjective.english}" for noun in heads(clause.subject))
    if isinstance(clause.predicate, Comparison):
        yield from in_nominal(clause.predicate.standard)


def in_nominal(nominal: Nominal | None) -> Iterator[str]:
    """Yield the combinations in a nominal."""
    match nominal:
        case NounPhrase():
            for adjective in nominal.adjectives:
                yield f"adjective and noun: {adjective.english}, {nominal.noun.english}"
            yield from in_nominal(nominal.possessor)
            if nominal.relative:
                yield from in_clause(nominal.relative, "relative")
        case Coordination(first, second):
            yield from in_nominal(first)
            yield from in_nominal(second)
