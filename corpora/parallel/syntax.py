"""Abstract syntax: the structures that both languages share and that each spells out by its own grammar."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .features import Gender, Kind, Number, Person, Slot, Tense
from .lexicon.entries import Adjective, Adverb, Conjunction, Determiner, Modal, Noun, Preposition, Verb
from .lexicon.function_words import HOW_MANY, WHICH


@dataclass(frozen=True)
class NounPhrase:
    """A determiner, adjectives and a noun, with a possessor in the genitive or a relative clause."""

    determiner: Determiner
    noun: Noun
    number: Number = Number.SINGULAR
    adjectives: tuple[Adjective, ...] = ()
    possessor: NounPhrase | None = None
    relative: Clause | None = None


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun. The antecedent's kind decides between English he, she and it, its gender the German."""

    person: Person
    number: Number
    gender: Gender = Gender.MASCULINE
    human: bool = True


@dataclass(frozen=True)
class Expletive:
    """A subject without meaning: 'it' of the weather, 'there' of existence."""

    english: str


@dataclass(frozen=True)
class RelativePronoun:
    """The relative pronoun of a relative clause, in the place of the noun it belongs to."""

    noun: Noun
    number: Number


@dataclass(frozen=True)
class Interrogative:
    """'who' or 'what', in the place it asks about."""

    human: bool


@dataclass(frozen=True)
class Coordination:
    """Two noun phrases joined by 'and'."""

    first: NounPhrase
    second: NounPhrase


Nominal = NounPhrase | Pronoun | Expletive | RelativePronoun | Interrogative | Coordination


@dataclass(frozen=True)
class PrepositionalPhrase:
    """A preposition and what it governs."""

    preposition: Preposition
    nominal: Nominal


@dataclass(frozen=True)
class PredicateAdjective:
    """A predicative adjective, with a degree ('very old') or a correction ('not red but green')."""

    adjective: Adjective
    degree: Adverb | None = None
    correction: Adjective | None = None


@dataclass(frozen=True)
class Comparison:
    """A comparison of inequality or, if `equal`, of equality."""

    adjective: Adjective
    standard: NounPhrase
    equal: bool = False


@dataclass(frozen=True)
class Price:
    """An amount of money."""

    euros: int


Predicate = PredicateAdjective | Comparison | Price | NounPhrase
Place = PrepositionalPhrase | Adverb


@dataclass(frozen=True)
class Subordinate:
    """A clause with its conjunction."""

    conjunction: Conjunction
    clause: Clause


@dataclass(frozen=True)
class Clause:
    """A clause; `fronted` names the constituent that comes first instead of the subject."""

    subject: Nominal
    verb: Verb
    tense: Tense = Tense.PRESENT
    modal: Modal | None = None
    negated: bool = False
    object: Nominal | None = None
    recipient: Nominal | None = None
    predicate: Predicate | None = None
    complement: Place | None = None
    place: Place | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    subordinate: Subordinate | None = None
    fronted: Slot = Slot.SUBJECT


class Mood(Enum):
    """What kind of sentence a clause makes."""

    STATEMENT = auto()
    QUESTION = auto()


@dataclass(frozen=True)
class Sentence:
    """One clause, or two with a coordinating conjunction, which share their subject if `shared_subject`."""

    clause: Clause
    mood: Mood = Mood.STATEMENT
    conjunction: Conjunction | None = None
    second: Clause | None = None
    shared_subject: bool = False


@dataclass(frozen=True)
class Agreement:
    """Person and number of a finite verb."""

    person: Person = Person.THIRD
    number: Number = Number.SINGULAR

    @property
    def is_third_singular(self) -> bool:
        """Whether English marks the present with -s."""
        return self.person is Person.THIRD and self.number is Number.SINGULAR


def agreement(clause: Clause) -> Agreement:
    """Return the person and number of the English finite verb of a clause."""
    match clause.subject:
        case Pronoun(person, number):
            return Agreement(person, number)
        case NounPhrase(number=number) | RelativePronoun(number=number):
            return Agreement(number=number)
        case Coordination():
            return Agreement(number=Number.PLURAL)
        case Expletive("there") if isinstance(clause.object, NounPhrase):
            return Agreement(number=clause.object.number)
        case _:
            return Agreement()


def asks_for_subject(clause: Clause) -> bool:
    """Return whether the subject of a clause is or contains a question word."""
    match clause.subject:
        case NounPhrase(determiner=determiner):
            return determiner in (WHICH, HOW_MANY)
        case _:
            return isinstance(clause.subject, Interrogative)


def is_definite(nominal: Nominal | None) -> bool:
    """Return whether a nominal refers to something known."""
    match nominal:
        case NounPhrase(determiner=determiner):
            return determiner.definite
        case Coordination(first, second):
            return is_definite(first) and is_definite(second)
        case _:
            return nominal is not None


def pronoun_for(nominal: NounPhrase | Coordination) -> Pronoun | None:
    """Return the pronoun for an antecedent; None where natural and grammatical gender part ('das Mädchen')."""
    if isinstance(nominal, Coordination) or nominal.number is Number.PLURAL:
        return Pronoun(Person.THIRD, Number.PLURAL)
    human = bool(nominal.noun.kind & Kind.PERSON)
    if human and nominal.noun.gender is Gender.NEUTER:
        return None
    return Pronoun(Person.THIRD, Number.SINGULAR, nominal.noun.gender, human)
