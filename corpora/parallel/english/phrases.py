"""English noun phrases, prepositional phrases and predicates."""

from collections.abc import Callable
from dataclasses import dataclass

from ..features import Case, Kind
from ..lexicon.entries import Adverb
from ..lexicon.function_words import A
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
from .inflection import indefinite_article, personal_pronoun


@dataclass(frozen=True)
class EnglishPhrases:
    """Spells out phrases; as a noun phrase may hold a relative clause, it is given what spells that out."""

    relative_clause: Callable[[Clause], list[str]]

    def noun_phrase(self, phrase: NounPhrase) -> list[str]:
        """Spell out a noun phrase."""
        noun = phrase.noun.english if phrase.number.value == "singular" else phrase.noun.english_plural
        rest = [*(each.english for each in phrase.adjectives), *noun.split()]
        relative = self.relative_clause(phrase.relative) if phrase.relative else []
        if phrase.possessor:
            return [*self.possessive(phrase.possessor), *rest, *relative]
        determiner = phrase.determiner.english(phrase.number) or ""
        if phrase.determiner is A:
            determiner = indefinite_article(rest[0])
        return [*determiner.split(), *rest, *relative]

    def possessive(self, possessor: NounPhrase) -> list[str]:
        """Spell out a possessor in the singular."""
        words = self.noun_phrase(possessor)
        return [*words[:-1], words[-1] + "'s"]

    def nominal(self, phrase: Nominal, case: Case = Case.ACCUSATIVE) -> list[str]:
        """Spell out a nominal; the case only matters to pronouns."""
        match phrase:
            case NounPhrase():
                return self.noun_phrase(phrase)
            case Pronoun():
                return [personal_pronoun(phrase, case)]
            case Expletive(english):
                return [english]
            case RelativePronoun(noun):
                return ["who" if noun.kind & Kind.PERSON and case is Case.NOMINATIVE else "that"]
            case Interrogative(human):
                return ["who" if human else "what"]
            case Coordination(first, second):
                return [*self.noun_phrase(first), "and", *self.noun_phrase(second)]

    def place(self, phrase: Place) -> list[str]:
        """Spell out a prepositional phrase or an adverb of place."""
        if isinstance(phrase, Adverb):
            return phrase.english.split()
        return [*phrase.preposition.english.split(), *self.governed(phrase)]

    def governed(self, phrase: PrepositionalPhrase) -> list[str]:
        """Spell out what a preposition governs; it keeps relative pronouns and interrogatives by its side."""
        match phrase.nominal:
            case RelativePronoun(noun):
                return ["whom" if noun.kind & Kind.PERSON else "which"]
            case Interrogative(human=True):
                return ["whom"]
            case _:
                return self.nominal(phrase.nominal)

    def predicate(self, phrase: Predicate) -> list[str]:
        """Spell out a predicative complement."""
        match phrase:
            case PredicateAdjective(adjective, degree, correction):
                words = [*(degree.english.split() if degree else []), adjective.english]
                return [*words, "but", correction.english] if correction else words
            case Comparison(adjective, standard, equal):
                words = ["as", adjective.english, "as"] if equal else [*adjective.english_comparative.split(), "than"]
                return words + self.noun_phrase(standard)
            case Price(euros):
                return [str(euros), "euros"]
            case NounPhrase():
                return self.noun_phrase(phrase)
