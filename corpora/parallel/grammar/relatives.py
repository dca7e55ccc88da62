"""Deriving relative clauses, whose pronoun is the subject, the object or part of a prepositional complement."""

from dataclasses import replace
from functools import cache
from typing import TypeGuard

from ..features import Kind, Slot, Tense
from ..lexicon.entries import Noun, Verb
from ..lexicon.function_words import LIKE_TO, NO, POSSESSIVES
from ..lexicon.verbs import ACCUSATIVE, BE, DATIVE, INTRANSITIVE, POSITION, PREPOSITIONAL
from ..randomness import RandomChoices
from ..syntax import Clause, Nominal, NounPhrase, PredicateAdjective, PrepositionalPhrase, RelativePronoun
from .clauses import unstated, visible_tense, with_complements
from .phrases import adjectives, subject

SUBJECT_VERBS = INTRANSITIVE + ACCUSATIVE + DATIVE
OBJECT_VERBS = ACCUSATIVE + DATIVE
COMPLEMENT_VERBS = PREPOSITIONAL + POSITION[:1]


@cache
def verbs_by_role(kind: Kind) -> tuple[tuple[Verb, ...], tuple[Verb, ...], tuple[Verb, ...]]:
    """Return the verbs to which a noun of a kind can be subject, object or complement."""
    return (
        tuple(verb for verb in SUBJECT_VERBS if verb.subjects & kind),
        tuple(verb for verb in OBJECT_VERBS if verb.objects & kind),
        tuple(verb for verb in COMPLEMENT_VERBS if any(each.kinds & kind for each in verb.complements)),
    )


def relative_clause(dice: RandomChoices, phrase: NounPhrase) -> Clause:
    """Derive a relative clause for a noun phrase."""
    pronoun, kind = RelativePronoun(phrase.noun, phrase.number), phrase.noun.kind
    tense = Tense.PAST if dice.chance(0.5) else Tense.PRESENT
    draw = dice.uniform()
    as_subject, as_object, as_complement = verbs_by_role(kind)
    if as_subject and draw < 0.35:
        verb = dice.choice(as_subject)
        return with_complements(dice, Clause(pronoun, verb, visible_tense(tense, verb, pronoun)))
    if as_object and draw < 0.75:
        return object_relative(dice, dice.choice(as_object), pronoun, tense)
    if as_complement and draw < 0.9:
        return complement_relative(dice, dice.choice(as_complement), pronoun, tense)
    return Clause(pronoun, BE, tense, predicate=PredicateAdjective(dice.choice(unstated(phrase, kind))))


def object_relative(dice: RandomChoices, verb: Verb, pronoun: RelativePronoun, tense: Tense) -> Clause:
    """Derive 'that the man buys'."""
    agent = other_subject(dice, verb, pronoun.noun)
    return Clause(agent.subject, verb, visible_tense(tense, verb, agent.subject), object=pronoun, fronted=Slot.OBJECT)


def complement_relative(dice: RandomChoices, verb: Verb, pronoun: RelativePronoun, tense: Tense) -> Clause:
    """Derive 'for whom the man waits'."""
    agent = other_subject(dice, verb, pronoun.noun)
    preposition = dice.choice([each for each in verb.complements if each.kinds & pronoun.noun.kind])
    complement = PrepositionalPhrase(preposition, pronoun)
    return replace(agent, tense=tense, complement=complement, fronted=Slot.COMPLEMENT)


def other_subject(dice: RandomChoices, verb: Verb, noun: Noun) -> Clause:
    """Derive a clause of a verb and a subject that is not the noun itself."""
    while True:
        chosen = subject(dice, verb.subjects)
        if getattr(chosen, "noun", None) is not noun:
            return Clause(chosen, verb)


def takes_relative(phrase: Nominal | None) -> TypeGuard[NounPhrase]:
    """Return whether a restrictive relative clause may follow."""
    return (
        isinstance(phrase, NounPhrase)
        and phrase.noun.kind is not Kind.NAME
        and phrase.determiner not in (*POSSESSIVES, NO)
        and phrase.possessor is None
        and bool(adjectives(phrase.noun.kind))
    )


def with_relative(dice: RandomChoices, core: Clause) -> Clause:
    """Add a relative clause to the subject or to what ends the clause, if either can take one."""
    last = core.complement.nominal if isinstance(core.complement, PrepositionalPhrase) else core.object
    if takes_relative(last) and nothing_follows(core) and dice.chance(0.6):
        phrase = replace(last, relative=relative_clause(dice, last))
        if isinstance(core.complement, PrepositionalPhrase):
            return replace(core, complement=replace(core.complement, nominal=phrase))
        return replace(core, object=phrase)
    if takes_relative(core.subject):
        return replace(core, subject=replace(core.subject, relative=relative_clause(dice, core.subject)))
    return core


def nothing_follows(core: Clause) -> bool:
    """Return whether nothing comes between the last object or complement and the end of the middle field."""
    bare = not (core.frequency or core.manner or core.negated or core.modal is LIKE_TO or core.recipient)
    no_time = core.time is None or core.fronted is Slot.TIME
    return bare and no_time and (core.place is None or core.fronted is Slot.PLACE)
