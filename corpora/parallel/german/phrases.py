"""Noun phrases and prepositional phrases.

Words are lists of strings in which "," stands for a comma. A phrase keeps its relative clause apart, because at the
end of the middle field it moves behind the verb.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..features import Case, Number
from ..lexicon.entries import Adverb, Paradigm
from ..syntax import (
    Clause,
    Comparison,
    Coordination,
    Expletive,
    Interrogative,
    Nominal,
    NounPhrase,
    Place,
    Predicate,
    PredicateAdjective,
    PrepositionalPhrase,
    Price,
    Pronoun,
    RelativePronoun,
)
from .declension import WHO, adjective_form, determiner_form, noun_form, personal_pronoun, relative_pronoun

CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
}


@dataclass
class Phrase:
    """The words of a phrase, and those of a relative clause at its end."""

    words: list[str]
    relative: list[str] = field(default_factory=list)

    def all_words(self) -> list[str]:
        """Return the words with the relative clause in place, between commas."""
        return [*self.words, *self.relative]


@dataclass(frozen=True)
class GermanPhrases:
    """Spells out phrases; as a noun phrase may hold a relative clause, it is given what spells that out."""

    relative_clause: Callable[[Clause], list[str]]

    def noun_phrase(self, phrase: NounPhrase, case: Case) -> Phrase:
        """Spell out a noun phrase in a case."""
        noun, number, determiner = phrase.noun, phrase.number, phrase.determiner
        words = [determiner_form(determiner, noun.gender, number, case)]
        words += [adjective_form(each, determiner.paradigm, noun.gender, number, case) for each in phrase.adjectives]
        words.append(noun_form(noun, number, case))
        if phrase.possessor:
            words += self.noun_phrase(phrase.possessor, Case.GENITIVE).words
        relative = self.relative_clause(phrase.relative) if phrase.relative else []
        return Phrase([word for form in words for word in form.split()], relative)

    def nominal(self, phrase: Nominal, case: Case) -> Phrase:
        """Spell out a nominal in a case."""
        match phrase:
            case NounPhrase():
                return self.noun_phrase(phrase, case)
            case Pronoun(person, number, gender):
                return Phrase([personal_pronoun(person, number, gender, case)])
            case Expletive():
                return Phrase(["es"])
            case RelativePronoun(noun, number):
                return Phrase([relative_pronoun(noun, number, case)])
            case Interrogative(human):
                return Phrase([WHO[case.value] if human else "was"])
            case Coordination(first, second):
                last = self.noun_phrase(second, case)
                return Phrase([*self.noun_phrase(first, case).all_words(), "und", *last.words], last.relative)

    def place(self, phrase: Place) -> Phrase:
        """Spell out a prepositional phrase or an adverb of place."""
        if isinstance(phrase, Adverb):
            return Phrase(phrase.german.split())
        return self.prepositional_phrase(phrase)

    def prepositional_phrase(self, phrase: PrepositionalPhrase) -> Phrase:
        """Spell out a prepositional phrase, contracting preposition and article unless a relative clause follows."""
        governed = self.nominal(phrase.nominal, phrase.preposition.case)
        preposition, first = phrase.preposition.german, governed.words[0]
        if contracts(phrase.nominal) and (preposition, first) in CONTRACTIONS:
            return Phrase([CONTRACTIONS[preposition, first], *governed.words[1:]], governed.relative)
        return Phrase([preposition, *governed.words], governed.relative)

    def predicate(self, phrase: Predicate) -> Phrase:
        """Spell out a predicative complement."""
        match phrase:
            case PredicateAdjective(adjective, degree, correction):
                words = [*(degree.german.split() if degree else []), adjective.german]
                return Phrase([*words, ",", "sondern", correction.german] if correction else words)
            case Comparison(adjective, standard, equal):
                words = ["so", adjective.german, "wie"] if equal else [adjective.comparative, "als"]
                return Phrase(words + self.noun_phrase(standard, Case.NOMINATIVE).words)
            case Price(euros):
                return Phrase([str(euros), "Euro"])
            case NounPhrase():
                return self.noun_phrase(phrase, Case.NOMINATIVE)


def contracts(phrase: Nominal) -> bool:
    """Return whether the article of a noun phrase may contract with a preposition before it."""
    return (
        isinstance(phrase, NounPhrase)
        and phrase.determiner.paradigm is Paradigm.ARTICLE
        and phrase.number is Number.SINGULAR
        and phrase.relative is None
    )
