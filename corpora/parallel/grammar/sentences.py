"""Deriving sentences: the constructions of the corpus, each a function of the dice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..features import Kind, Number, Slot, Tense
from ..lexicon.entries import Conjunction, Verb
from ..lexicon.function_words import (
    ALTHOUGH,
    AND,
    BECAUSE,
    BUT,
    HOW_MANY,
    IF,
    IN_ORDER_TO,
    INDIRECT,
    THAT,
    TO_INFINITIVE,
    WHEN,
    WHEN_PAST,
    WHEN_PRESENT,
    WHERE,
    WHERE_TO,
    WHETHER,
    WHICH,
    WHY,
)
from ..lexicon.verbs import ACCUSATIVE, BELIEVING, DATIVE, MOTION, STAY, TRYING, VERBS, WONDERING
from ..randomness import RandomChoices
from ..syntax import (
    Clause,
    Interrogative,
    Mood,
    Nominal,
    NounPhrase,
    Sentence,
    Subordinate,
)
from .clauses import (
    TENSES,
    clause,
    copular,
    existential,
    kinds_of,
    modified,
    visible_tense,
    weather,
    with_complements,
)
from .coreference import antecedents
from .phrases import noun_phrase, nouns, subject
from .relatives import with_relative

EARLIER = ("bake", "buy", "clean", "cook", "find", "hear", "invite", "meet", "plant", "repair", "see", "wash", "write")
LATER = (
    "ask",
    "bring",
    "call",
    "cut",
    "draw",
    "drink",
    "eat",
    "forget",
    "greet",
    "lose",
    "read",
    "sell",
    "steal",
    "throw",
    "watch",
    "wear",
)
FIRST_VERBS = tuple(verb for verb in ACCUSATIVE if verb.english.base in EARLIER)
SECOND_VERBS = tuple(verb for verb in ACCUSATIVE if verb.english.base in LATER)
LOCATED_VERBS = tuple(verb for verb in VERBS if verb.places)
VOLUNTARY_VERBS = tuple(
    verb for verb in VERBS if verb.subjects & Kind.PERSON and not verb.stative and not verb.involuntary
)


def statement(dice: RandomChoices) -> Sentence:
    """Derive a statement ('The man buys an apple')."""
    draw = dice.uniform()
    if draw < 0.06:
        return Sentence(existential(dice))
    core = clause(dice, dice.weighted(TENSES))
    return Sentence(with_relative(dice, core) if draw < 0.4 else core)


def yes_no_question(dice: RandomChoices) -> Sentence:
    """Derive a question to answer with yes or no ('Does the man buy an apple?')."""
    core = clause(dice, dice.weighted(TENSES))
    return Sentence(replace(core, negated=False, fronted=Slot.SUBJECT), Mood.QUESTION)


def subject_question(dice: RandomChoices) -> Sentence:
    """Derive a question for the subject ('Who buys an apple?')."""
    tense = dice.weighted(TENSES)
    asked: Nominal = Interrogative(human=True)
    if dice.chance(0.5):
        number = Number.PLURAL if dice.chance(0.3) else Number.SINGULAR
        asked = NounPhrase(WHICH, dice.choice(nouns(Kind.HUMAN | Kind.ANIMAL)), number)
        if number is Number.PLURAL and dice.chance(0.5):
            asked = replace(asked, determiner=HOW_MANY)
    return question(clause(dice, tense, asked), Slot.SUBJECT)


def object_question(dice: RandomChoices) -> Sentence:
    """Derive a question for the object ('What does the man buy?')."""
    verb = dice.choice(ACCUSATIVE + DATIVE[:-1])
    core = bare(dice, verb)
    noun = dice.choice(nouns(verb.objects))
    asked: Nominal = NounPhrase(WHICH, noun) if noun.kind is not Kind.NAME else Interrogative(human=True)
    if noun.plural and dice.chance(0.3):
        asked = NounPhrase(HOW_MANY if dice.chance(0.5) else WHICH, noun, Number.PLURAL)
    elif dice.chance(0.5):
        asked = Interrogative(human=bool(verb.objects & Kind.PERSON))
    return question(modified(dice, replace(core, object=asked)), Slot.OBJECT)


def adverbial_question(dice: RandomChoices) -> Sentence:
    """Derive a question for place, direction, time or cause ('When does the man buy an apple?')."""
    draw = dice.uniform()
    if draw < 0.35:
        verb = dice.choice(LOCATED_VERBS)
        core = with_complements(dice, bare(dice, verb))
        return question(replace(core, place=WHERE), Slot.PLACE)
    if draw < 0.5:
        core = bare(dice, dice.choice(MOTION[:3]))
        return question(replace(core, complement=WHERE_TO), Slot.COMPLEMENT)
    core = clause(dice, dice.weighted(TENSES))
    return question(replace(core, time=WHEN if draw < 0.75 and not core.verb.stative else WHY), Slot.TIME)


def bare(dice: RandomChoices, verb: Verb) -> Clause:
    """Derive a clause that is only a subject and a given verb."""
    chosen = subject(dice, verb.subjects)
    return Clause(chosen, verb, visible_tense(dice.weighted(TENSES), verb, chosen))


def question(core: Clause, slot: Slot) -> Sentence:
    """Return the question for a constituent."""
    return Sentence(replace(core, negated=False, frequency=None, fronted=slot), Mood.QUESTION)


def adverbial_clause(dice: RandomChoices) -> Sentence:
    """Derive a sentence with an adverbial clause ('The man sleeps because he is tired')."""
    conjunction = dice.weighted(((4, BECAUSE), (3, ALTHOUGH), (2, IF), (2, WHEN_PRESENT), (3, WHEN_PAST)))
    past = conjunction is WHEN_PAST or (conjunction in (BECAUSE, ALTHOUGH) and dice.chance(0.5))
    tense = Tense.PAST if past else Tense.PRESENT
    main_tense = Tense.FUTURE if conjunction is IF and dice.chance(0.4) else tense
    if dice.chance(0.45):
        inner = condition(dice, conjunction, tense)
        outer = following(dice, inner, main_tense)
        inner = replace(inner, time=None) if outer.time else inner
        return Sentence(replace(outer, subordinate=Subordinate(conjunction, inner), fronted=Slot.SUBORDINATE))
    outer = clause(dice, main_tense)
    inner = reason(dice, conjunction, outer, tense)
    inner = replace(inner, time=None) if outer.time else inner
    return Sentence(replace(outer, subordinate=Subordinate(conjunction, inner)))


def condition(dice: RandomChoices, conjunction: Conjunction, tense: Tense) -> Clause:
    """Derive the content of an adverbial clause that comes first."""
    while True:
        core = weather(dice, tense) if dice.chance(0.1) else replace(clause(dice, tense), fronted=Slot.SUBJECT)
        if suits(conjunction, core, tense):
            return core


def reason(dice: RandomChoices, conjunction: Conjunction, outer: Clause, tense: Tense) -> Clause:
    """Derive the content of an adverbial clause that comes last."""
    while True:
        core = weather(dice, tense) if dice.chance(0.1) else following(dice, outer, tense)
        if suits(conjunction, core, tense):
            return core


def suits(conjunction: Conjunction, core: Clause, tense: Tense) -> bool:
    """Return whether a clause kept its tense and, after 'when', tells of an event."""
    return core.tense is tense and not (conjunction in (WHEN_PRESENT, WHEN_PAST) and core.predicate)


def following(dice: RandomChoices, previous: Clause, tense: Tense) -> Clause:
    """Derive a clause whose subject may be a pronoun for something in the clause before it."""
    candidates = antecedents(previous)
    if candidates and dice.chance(0.6):
        pronoun, referent = dice.choice(candidates)
        acts = kinds_of(referent) & (Kind.ANIMATE | Kind.VEHICLE) and dice.chance(0.65)
        core = clause(dice, tense, referent) if acts else copular(dice, tense, referent)
        return replace(core, subject=pronoun, fronted=Slot.SUBJECT)
    return replace(clause(dice, tense), fronted=Slot.SUBJECT)


def complement_clause(dice: RandomChoices) -> Sentence:
    """Derive a sentence with a clause as its object ('The man knows that the dog is old')."""
    asking = dice.chance(0.3)
    verb = dice.choice(WONDERING if asking else BELIEVING)
    chosen = subject(dice, Kind.PERSON)
    tense = Tense.PAST if dice.chance(0.4) else Tense.PRESENT
    inner_tense = dice.weighted(((3, Tense.PRESENT), (2, Tense.PAST), (1, Tense.FUTURE)))
    if tense is Tense.PAST:
        inner_tense = Tense.PAST
    outer = Clause(chosen, verb, tense)
    if asking and dice.chance(0.4):
        return Sentence(replace(outer, subordinate=Subordinate(INDIRECT, indirect_question(dice, inner_tense))))
    inner = replace(following(dice, outer, inner_tense), fronted=Slot.SUBJECT)
    return Sentence(replace(outer, subordinate=Subordinate(WHETHER if asking else THAT, inner)))


def indirect_question(dice: RandomChoices, tense: Tense) -> Clause:
    """Derive '... where the dog sleeps', '... why the woman laughs', '... who bought the house'."""
    draw = dice.uniform()
    if draw < 0.3:
        core = clause(dice, tense, Interrogative(human=True))
        return replace(core, fronted=Slot.SUBJECT)
    core = replace(clause(dice, tense), negated=False, frequency=None)
    if draw < 0.6:
        return replace(core, time=WHY, fronted=Slot.TIME)
    verb = dice.choice(LOCATED_VERBS)
    chosen = subject(dice, verb.subjects)
    core = with_complements(dice, Clause(chosen, verb, visible_tense(tense, verb, chosen)))
    return replace(core, place=WHERE, fronted=Slot.PLACE)


def infinitive_complement(dice: RandomChoices) -> Sentence:
    """Derive a sentence with an infinitive clause ('The man tries to open the window')."""
    if dice.chance(0.5):
        outer, conjunction = bare(dice, dice.choice(TRYING)), TO_INFINITIVE
    else:
        outer, conjunction = with_complements(dice, bare(dice, dice.choice((*MOTION[:4], STAY)))), IN_ORDER_TO
    if outer.tense is Tense.PERFECT:
        outer = replace(outer, tense=Tense.PAST)
    verb = dice.choice(VOLUNTARY_VERBS)
    inner = with_complements(dice, Clause(outer.subject, verb))
    if verb.manners and dice.chance(0.2):
        inner = replace(inner, manner=dice.choice(verb.manners))
    return Sentence(replace(outer, subordinate=Subordinate(conjunction, inner)))


def coordinated_clauses(dice: RandomChoices) -> Sentence:
    """Derive two coordinated clauses ('The table is old, but it is beautiful')."""
    tense = dice.weighted(TENSES)
    first = clause(dice, tense)
    conjunction = dice.choice((AND, BUT))
    return Sentence(first, Mood.STATEMENT, conjunction, following(dice, first, tense))


def coordinated_predicates(dice: RandomChoices) -> Sentence:
    """Derive two coordinated predicates with one subject ('The woman buys an apple and eats it')."""
    first_verb = dice.choice(FIRST_VERBS)
    chosen = subject(dice, Kind.PERSON)
    theme = noun_phrase(dice, first_verb.objects, other_than=getattr(chosen, "noun", None))
    first = Clause(chosen, first_verb, visible_tense(dice.weighted(TENSES), first_verb, chosen), object=theme)
    candidates = [each for each in SECOND_VERBS if each.objects & theme.noun.kind]
    pronouns = [pronoun for pronoun, referent in antecedents(first) if referent is theme]
    if not candidates or not pronouns:
        return coordinated_predicates(dice)
    verb = dice.choice(candidates)
    second = Clause(chosen, verb, visible_tense(first.tense, verb, chosen), object=pronouns[0])
    return Sentence(first, Mood.STATEMENT, AND, second, shared_subject=True)


CONSTRUCTIONS: tuple[tuple[int, Callable[[RandomChoices], Sentence]], ...] = (
    (40, statement),
    (7, yes_no_question),
    (4, subject_question),
    (4, object_question),
    (5, adverbial_question),
    (16, adverbial_clause),
    (9, complement_clause),
    (6, infinitive_complement),
    (5, coordinated_clauses),
    (4, coordinated_predicates),
)


def derive(dice: RandomChoices) -> Sentence:
    """Derive one sentence."""
    return dice.weighted(CONSTRUCTIONS)(dice)
