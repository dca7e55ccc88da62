"""Deriving noun phrases and prepositional phrases."""

from functools import cache

from ..features import Kind, Number, Person
from ..lexicon.adjectives import ADJECTIVES
from ..lexicon.compounds import NOUNS
from ..lexicon.entries import Adjective, Determiner, Noun, Preposition
from ..lexicon.function_words import (
    ALL,
    BARE,
    EVERY,
    MANY,
    NAMED,
    NUMERALS,
    POSSESSIVES,
    SOME,
    THE,
    THIS,
    A,
)
from ..randomness import RandomChoices
from ..syntax import Coordination, Nominal, NounPhrase, PrepositionalPhrase, Pronoun

SINGULAR = ((16, (THE,)), (9, (A,)), (6, POSSESSIVES), (3, (THIS,)), (1, (EVERY,)))
PLURAL = (
    (10, (THE,)),
    (3, (BARE,)),
    (4, POSSESSIVES),
    (2, (THIS,)),
    (5, NUMERALS),
    (2, (MANY,)),
    (2, (SOME,)),
    (1, (ALL,)),
)
MASS = ((6, (THE,)), (5, (BARE,)), (2, POSSESSIVES), (1, (THIS,)))
NAME = ((1, (NAMED,)),)
LANDMARK = ((9, (THE,)), (2, (A,)), (1, (THIS,)))

PUBLIC = Kind.SITE | Kind.GROUND | Kind.VENUE | Kind.TRANSPORT | Kind.SHOP | Kind.AREA
NOBODY_S = ("man", "woman", "boy", "girl", "garden")
FIRST_AND_SECOND_PERSON = (
    Pronoun(Person.FIRST, Number.SINGULAR),
    Pronoun(Person.SECOND, Number.SINGULAR),
    Pronoun(Person.FIRST, Number.PLURAL),
)


@cache
def nouns(kinds: Kind) -> tuple[Noun, ...]:
    """Return the nouns of the given kinds."""
    return tuple(noun for noun in NOUNS if noun.kind & kinds)


@cache
def adjectives(kind: Kind) -> tuple[Adjective, ...]:
    """Return the adjectives for nouns of the given kind."""
    return tuple(adjective for adjective in ADJECTIVES if adjective.kinds & kind)


def determiner(dice: RandomChoices, noun: Noun, number: Number) -> Determiner:
    """Choose a determiner that goes with a noun."""
    if noun.kind is Kind.NAME:
        return NAMED
    choices = MASS if noun.is_mass else SINGULAR if number is Number.SINGULAR else PLURAL
    chosen = dice.choice(dice.weighted(choices))
    if chosen in POSSESSIVES and (noun.kind & PUBLIC or noun.english in NOBODY_S):
        return THE
    return chosen


def attributes(dice: RandomChoices, noun: Noun) -> tuple[Adjective, ...]:
    """Choose no, one or two adjectives, in the order of their rank."""
    candidates = adjectives(noun.kind)
    if not candidates or dice.chance(0.65):
        return ()
    first = dice.choice(candidates)
    second = dice.choice(candidates)
    if first.rank == second.rank or dice.chance(0.75):
        return (first,)
    return (first, second) if first.rank < second.rank else (second, first)


def noun_phrase(dice: RandomChoices, kinds: Kind, *, other_than: Noun | None = None) -> NounPhrase:
    """Derive a noun phrase whose noun is of the given kinds."""
    noun = dice.choice(nouns(kinds))
    while noun is other_than:
        noun = dice.choice(nouns(kinds))
    number = Number.PLURAL if noun.plural and dice.chance(0.3) else Number.SINGULAR
    chosen = determiner(dice, noun, number)
    adjective = attributes(dice, noun)
    possessor = None
    if chosen is THE and not noun.kind & (PUBLIC | Kind.PERSON) and dice.chance(0.12):
        possessor = NounPhrase(THE, dice.choice(nouns(Kind.HUMAN)))
    return NounPhrase(chosen, noun, number, adjective, possessor)


def coordination(dice: RandomChoices, kinds: Kind) -> Coordination:
    """Derive two coordinated noun phrases with different nouns."""
    first = noun_phrase(dice, kinds)
    return Coordination(first, noun_phrase(dice, kinds, other_than=first.noun))


def subject(dice: RandomChoices, kinds: Kind) -> Nominal:
    """Derive a subject of the given kinds, often a pronoun where people are among them."""
    if kinds & Kind.PERSON and dice.chance(0.25):
        return dice.choice(FIRST_AND_SECOND_PERSON) if dice.chance(0.5) else third_person(dice)
    if kinds & Kind.HUMAN and dice.chance(0.06):
        return coordination(dice, Kind.PERSON)
    return noun_phrase(dice, kinds)


def third_person(dice: RandomChoices) -> Pronoun:
    """Derive 'he', 'she' or 'they'."""
    noun = dice.choice(nouns(Kind.NAME))
    number = Number.PLURAL if dice.chance(0.3) else Number.SINGULAR
    return Pronoun(Person.THIRD, number, noun.gender)


def prepositional_phrase(
    dice: RandomChoices, preposition: Preposition, kinds: Kind | None = None
) -> PrepositionalPhrase:
    """Derive a prepositional phrase; people may be pronouns, landmarks have few attributes."""
    allowed = preposition.kinds if kinds is None else preposition.kinds & kinds
    if allowed & Kind.PERSON and dice.chance(0.15):
        return PrepositionalPhrase(preposition, third_person(dice))
    if allowed & (Kind.PERSON | Kind.TEXT):
        return PrepositionalPhrase(preposition, noun_phrase(dice, allowed))
    noun = dice.choice(nouns(allowed))
    chosen = dice.choice(dice.weighted(MASS[:1] if noun.is_mass else LANDMARK))
    return PrepositionalPhrase(preposition, NounPhrase(chosen, noun, Number.SINGULAR, attributes(dice, noun)))
