"""Deriving clauses: a verb, what its frame asks for, and what may be added."""

from dataclasses import replace
from functools import cache

from ..features import Kind, Number, Person, Slot, Tense
from ..lexicon.entries import Adjective, Adverb, Modal, Noun, Preposition, Verb
from ..lexicon.function_words import (
    ALL,
    AT_HOME,
    BARE,
    EVERY,
    FREQUENCY,
    HABITUAL,
    HOME,
    LIKE_TO,
    LOCATIONS,
    MODALS,
    NEVER,
    THE,
    TIME,
    TO,
    TOO,
    VERY,
    A,
)
from ..lexicon.verbs import BE, BECOME, COST, EXIST, FRAMES, RAIN, SNOW, STAY
from ..randomness import RandomChoices
from ..syntax import (
    Clause,
    Comparison,
    Coordination,
    Expletive,
    Nominal,
    NounPhrase,
    Place,
    PredicateAdjective,
    Price,
    Pronoun,
    agreement,
    is_definite,
)
from .phrases import adjectives, noun_phrase, prepositional_phrase, subject, third_person

CONTRASTING = ("size", "age", "colour", "price", "temperature", "speed", "cleanness", "wealth", "length", "light")
PASSING = ("condition", "mood", "wealth")
PRICES = (2, 3, 5, 8, 10, 20, 30, 50)
TENSES = ((8, Tense.PRESENT), (3, Tense.PROGRESSIVE), (8, Tense.PAST), (2, Tense.PERFECT), (3, Tense.FUTURE))


@cache
def frames(kinds: Kind) -> tuple[tuple[int, tuple[Verb, ...]], ...]:
    """Return the weighted groups of verbs that take a subject of the given kinds."""
    groups = ((weight, tuple(verb for verb in verbs if verb.subjects & kinds)) for weight, verbs in FRAMES)
    return tuple((weight, verbs) for weight, verbs in groups if verbs)


@cache
def locations(kinds: Kind) -> tuple[Preposition, ...]:
    """Return the prepositions of place for places of the given kinds."""
    return tuple(each for each in LOCATIONS if each.kinds & kinds)


@cache
def with_tense(adverbs: tuple[Adverb, ...], tense: Tense) -> tuple[Adverb, ...]:
    """Return the adverbs that go with a tense."""
    return tuple(each for each in adverbs if tense in each.tenses)


def kinds_of(nominal: Nominal) -> Kind:
    """Return the kinds of what a nominal refers to; pronouns refer to people unless an antecedent says otherwise."""
    match nominal:
        case NounPhrase(noun=noun):
            return noun.kind
        case _:
            return Kind.HUMAN


def clause(dice: RandomChoices, tense: Tense, given: Nominal | None = None) -> Clause:
    """Derive a clause in a tense, about a given subject or any."""
    restriction = kinds_of(given) if given else Kind.ANIMATE | Kind.PORTABLE | Kind.VEHICLE
    if dice.chance(0.12) or not frames(restriction):
        return copular(dice, tense, given)
    verb = dice.choice(dice.weighted(frames(restriction)))
    chosen = given or subject(dice, verb.subjects)
    bare = Clause(chosen, verb, visible_tense(tense, verb, chosen))
    return modified(dice, with_complements(dice, bare))


def visible_tense(tense: Tense, verb: Verb, chosen: Nominal) -> Tense:
    """Return a tense that the English form shows ('they put' is present) and that suits a stative verb."""
    hidden = verb.english.past == verb.english.base and not agreement(Clause(chosen, verb)).is_third_singular
    if tense is Tense.PAST and hidden:
        return Tense.PRESENT
    if verb.stative and tense in (Tense.PROGRESSIVE, Tense.PERFECT):
        return Tense.PRESENT
    return tense


def with_complements(dice: RandomChoices, bare: Clause) -> Clause:
    """Add the object, recipient and complement that the verb asks for."""
    verb = bare.verb
    noun = bare.subject.noun if isinstance(bare.subject, NounPhrase) else None
    theme: Nominal | None = None
    recipient = complement = None
    if verb.objects:
        theme = noun_phrase(dice, verb.objects, other_than=noun)
        if verb.objects & Kind.PERSON and dice.chance(0.25):
            theme = object_pronoun(dice, bare.subject)
    if verb.recipient:
        recipient = recipient_of(dice, bare.subject)
    if verb.complements:
        complement = complement_of(dice, verb, noun)
    return replace(bare, object=theme, recipient=recipient, complement=complement)


def complement_of(dice: RandomChoices, verb: Verb, other_than: Noun | None) -> Place:
    """Derive the prepositional complement of a verb, or where home is."""
    if verb is STAY and dice.chance(0.3):
        return AT_HOME
    if TO in verb.complements and not verb.objects and dice.chance(0.2):
        return HOME
    while True:
        complement = prepositional_phrase(dice, dice.choice(verb.complements))
        if other_than is None or getattr(complement.nominal, "noun", None) is not other_than:
            return complement


def object_pronoun(dice: RandomChoices, chosen: Nominal) -> Pronoun:
    """Derive an object pronoun that does not refer back to a subject of the first or second person."""
    if (isinstance(chosen, Pronoun) and chosen.person is not Person.THIRD) or dice.chance(0.6):
        return third_person(dice)
    return Pronoun(dice.choice((Person.FIRST, Person.SECOND)), Number.SINGULAR)


def recipient_of(dice: RandomChoices, chosen: Nominal) -> Nominal:
    """Derive a definite recipient."""
    if dice.chance(0.3):
        return object_pronoun(dice, chosen)
    noun = chosen.noun if isinstance(chosen, NounPhrase) else None
    recipient = noun_phrase(dice, Kind.PERSON, other_than=noun)
    return recipient if is_definite(recipient) else replace(recipient, determiner=THE)


def modified(dice: RandomChoices, core: Clause) -> Clause:
    """Add adverbials, a modal or a negation to a clause with all its complements."""
    changed = core
    voluntary = not core.verb.stative and not core.verb.involuntary
    if voluntary and core.tense in (Tense.PRESENT, Tense.PAST) and dice.chance(0.25):
        changed = replace(changed, modal=modal(dice, core.tense))
    if core.verb.manners and dice.chance(0.2):
        changed = replace(changed, manner=dice.choice(core.verb.manners))
    if core.verb.places and dice.chance(0.3):
        changed = with_place(dice, changed)
    changed = with_time(dice, changed)
    return replace(changed, negated=True) if negatable(changed) and dice.chance(0.2) else changed


def modal(dice: RandomChoices, tense: Tense) -> Modal:
    """Choose a modal that has the tense."""
    choices = [each for each in MODALS if tense is Tense.PRESENT or each.english_past]
    return dice.choice(choices)


def with_place(dice: RandomChoices, core: Clause) -> Clause:
    """Add where something happens."""
    place = prepositional_phrase(dice, dice.choice(locations(core.verb.places)), core.verb.places)
    fronted = Slot.PLACE if dice.chance(0.2) else core.fronted
    return replace(core, place=place, fronted=fronted)


def with_time(dice: RandomChoices, core: Clause) -> Clause:
    """Add when or how often something happens."""
    plain = core.modal is None
    often = with_tense(FREQUENCY, core.tense)
    if plain and often and dice.chance(0.15 if core.tense is not Tense.PERFECT else 0.6):
        chosen = dice.choice(often)
        if chosen is not NEVER or plainly_definite(core.subject):
            return replace(core, frequency=chosen)
    when = with_tense(TIME, core.tense)
    if not core.verb.stative and when and dice.chance(0.35):
        fronted = Slot.TIME if core.fronted is Slot.SUBJECT and dice.chance(0.45) else core.fronted
        return replace(core, time=dice.choice(when), fronted=fronted)
    return core


def negatable(core: Clause) -> bool:
    """Return whether a clause can be negated as a whole without an ambiguity of scope."""
    if core.frequency or core.time in HABITUAL or core.modal is LIKE_TO or not plainly_definite(core.subject):
        return False
    if isinstance(core.object, NounPhrase) and core.object.determiner in (A, BARE):
        return True
    governed = getattr(core.complement, "nominal", None)
    return all(each is None or plainly_definite(each) for each in (core.object, governed))


def plainly_definite(nominal: Nominal) -> bool:
    """Return whether a nominal is definite and no quantifier."""
    return is_definite(nominal) and getattr(nominal, "determiner", None) not in (EVERY, ALL)


def qualities(kind: Kind) -> tuple[Adjective, ...]:
    """Return the predicative adjectives for a kind; people with names can be what other people are."""
    return adjectives(Kind.HUMAN if kind is Kind.NAME else kind)


def unstated(nominal: Nominal, kind: Kind) -> tuple[Adjective, ...]:
    """Return the predicative adjectives of dimensions that the attributes of a nominal say nothing about."""
    phrases = (nominal.first, nominal.second) if isinstance(nominal, Coordination) else (nominal,)
    stated = [each.dimension for phrase in phrases for each in getattr(phrase, "adjectives", ())]
    return tuple(each for each in qualities(kind) if each.dimension not in stated) or qualities(kind)


def copular(dice: RandomChoices, tense: Tense, given: Nominal | None = None) -> Clause:
    """Derive a clause that says what somebody or something is like."""
    chosen = given or subject(dice, Kind.ANIMATE | Kind.INANIMATE & ~Kind.SITE & ~Kind.VENUE)
    quality = dice.choice(unstated(chosen, kinds_of(chosen)))
    finite = Tense.PAST if tense in (Tense.PAST, Tense.PERFECT) else Tense.PRESENT
    draw = dice.uniform()
    if isinstance(chosen, NounPhrase) and draw < 0.15 and quality.comparative:
        standard = replace(noun_phrase(dice, chosen.noun.kind, other_than=chosen.noun), possessor=None)
        return Clause(chosen, BE, finite, predicate=Comparison(quality, standard, equal=dice.chance(0.3)))
    if isinstance(chosen, NounPhrase) and draw < 0.4 and chosen.noun.kind & COST.subjects:
        return Clause(chosen, COST, visible_tense(finite, COST, chosen), predicate=Price(dice.choice(PRICES)))
    if quality.dimension in PASSING and draw < 0.5:
        return Clause(chosen, BECOME, finite, predicate=PredicateAdjective(quality))
    return predication(dice, chosen, quality, finite)


def contrast(first: Adjective, second: Adjective) -> bool:
    """Return whether two adjectives exclude each other, so that one can correct the other."""
    return first is not second and first.dimension == second.dimension and first.dimension in CONTRASTING


def predication(dice: RandomChoices, chosen: Nominal, quality: Adjective, tense: Tense) -> Clause:
    """Derive a clause with a predicative adjective, with a degree, negated or corrected."""
    rivals = [each for each in qualities(kinds_of(chosen)) if contrast(each, quality)]
    plain = plainly_definite(chosen)
    if plain and rivals and dice.chance(0.12):
        predicate = PredicateAdjective(quality, correction=dice.choice(rivals))
        return Clause(chosen, BE, tense, negated=True, predicate=predicate)
    degree = dice.choice((VERY, TOO)) if quality.comparative and dice.chance(0.3) else None
    predicate = PredicateAdjective(quality, degree)
    return Clause(chosen, BE, tense, negated=plain and dice.chance(0.15), predicate=predicate)


def weather(dice: RandomChoices, tense: Tense) -> Clause:
    """Derive a clause about rain or snow."""
    return Clause(Expletive("it"), dice.choice((RAIN, SNOW)), tense)


def existential(dice: RandomChoices) -> Clause:
    """Derive 'there is', German 'es gibt'."""
    theme = noun_phrase(dice, Kind.ANIMATE & ~Kind.NAME | Kind.FURNITURE | Kind.PLANT | Kind.CONTAINER)
    if is_definite(theme):
        theme = replace(theme, determiner=A if theme.number is Number.SINGULAR else BARE, possessor=None)
    place = prepositional_phrase(dice, dice.choice(LOCATIONS))
    fronted = Slot.PLACE if dice.chance(0.4) else Slot.SUBJECT
    return Clause(Expletive("there"), EXIST, object=theme, place=place, fronted=fronted)
