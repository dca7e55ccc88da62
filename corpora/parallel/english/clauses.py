"""English verb groups and the order of English clauses."""

from dataclasses import dataclass

from ..features import Case, Slot, Tense
from ..lexicon.entries import Modal
from ..lexicon.function_words import BE_ALLOWED_TO, HAVE_TO, MUST
from ..syntax import Agreement, Clause, Mood, Pronoun, Sentence, Subordinate, agreement, asks_for_subject
from .inflection import be, past, present, present_participle
from .phrases import EnglishPhrases


def relative_clause(clause: Clause) -> list[str]:
    """Spell out a relative clause."""
    return finite_clause(clause)


phrases = EnglishPhrases(relative_clause)


@dataclass
class VerbGroup:
    """A finite verb and the verbs after it; without `auxiliary` it takes 'do' to negate or to invert."""

    finite: str
    rest: list[str]
    auxiliary: bool


def verb_group(clause: Clause) -> VerbGroup:
    """Return the verb group of an affirmative statement."""
    verb, person = clause.verb.english, agreement(clause)
    if clause.modal:
        return modal_group(clause.modal, verb.base, person, clause.tense is Tense.PAST)
    match clause.tense:
        case Tense.PRESENT:
            return VerbGroup(present(verb.base, person), [], verb.base == "be")
        case Tense.PROGRESSIVE:
            return VerbGroup(be(person), [present_participle(verb.base)], auxiliary=True)
        case Tense.PAST:
            return VerbGroup(past(verb, person), [], verb.base == "be")
        case Tense.PERFECT:
            return VerbGroup(present("have", person), [verb.participle], auxiliary=True)
        case Tense.FUTURE:
            return VerbGroup("will", [verb.base], auxiliary=True)


def modal_group(modal: Modal, base: str, person: Agreement, is_past: bool) -> VerbGroup:
    """Return the verb group of a modal."""
    if modal is BE_ALLOWED_TO:
        return VerbGroup(be(person, past=is_past), ["allowed", "to", base], auxiliary=True)
    finite, *rest = (modal.english_past if is_past else modal.english).split()
    if not modal.auxiliary and not is_past:
        finite = present(finite, person)
    return VerbGroup(finite, [*rest, base], (modal.auxiliary and modal is not MUST) or (modal is MUST and not is_past))


def with_do(group: VerbGroup, clause: Clause) -> VerbGroup:
    """Return the verb group with an auxiliary, 'do' if it had none."""
    if group.auxiliary:
        return group
    finite = "did" if clause.tense is Tense.PAST else present("do", agreement(clause))
    base = clause.verb.english.base
    if clause.modal:
        lexical = (HAVE_TO if clause.modal is MUST else clause.modal).english.split()[0]
        return VerbGroup(finite, [lexical, *group.rest], auxiliary=True)
    return VerbGroup(finite, [base], auxiliary=True)


def predication(clause: Clause, subject: list[str], *, inverted: bool) -> list[str]:
    """Return subject and verb group with 'not' and adverbs of frequency in their places."""
    group = verb_group(clause)
    if clause.negated or inverted:
        group = with_do(group, clause)
    adverb = ["not"] * clause.negated + ([clause.frequency.english] if clause.frequency else [])
    if inverted:
        return [group.finite, *subject, *adverb, *group.rest]
    if group.auxiliary:
        return [*subject, group.finite, *adverb, *group.rest]
    return [*subject, *adverb, group.finite, *group.rest]


def objects(clause: Clause) -> list[str]:
    """Return the objects and the particle of the verb."""
    particle = clause.verb.english.particle.split()
    theme = phrases.nominal(clause.object) if clause.object and clause.fronted is not Slot.OBJECT else []
    if clause.recipient:
        recipient = phrases.nominal(clause.recipient)
        if clause.verb.recipient_after_to or isinstance(clause.object, Pronoun):
            return [*theme, "to", *recipient]
        return [*recipient, *theme]
    if clause.verb.english.movable and isinstance(clause.object, Pronoun):
        return [*theme, *particle]
    return [*particle, *theme]


def after_verb(clause: Clause) -> list[str]:
    """Return everything after the verb group: objects, predicate, manner, complement, place, time, clause."""
    words = objects(clause)
    if clause.predicate:
        words += phrases.predicate(clause.predicate)
    if clause.manner:
        words += clause.manner.english.split()
    if clause.complement and clause.fronted is not Slot.COMPLEMENT:
        words += phrases.place(clause.complement)
    if clause.place and clause.fronted is not Slot.PLACE:
        words += phrases.place(clause.place)
    if clause.time and clause.fronted is not Slot.TIME:
        words += clause.time.english.split()
    if clause.subordinate and clause.fronted is not Slot.SUBORDINATE:
        words += subordinate(clause.subordinate)
    return words


def front(clause: Clause) -> list[str]:
    """Return the fronted constituent; empty if it is the subject."""
    match clause.fronted:
        case Slot.OBJECT if clause.object:
            return phrases.nominal(clause.object)
        case Slot.COMPLEMENT if clause.complement:
            return phrases.place(clause.complement)
        case Slot.PLACE if clause.place:
            return phrases.place(clause.place)
        case Slot.TIME if clause.time:
            return clause.time.english.split()
        case Slot.SUBORDINATE if clause.subordinate:
            return [*subordinate(clause.subordinate), ","]
        case _:
            return []


def finite_clause(clause: Clause, *, inverted: bool = False, subject_omitted: bool = False) -> list[str]:
    """Spell out a clause; questions invert subject and auxiliary."""
    subject = [] if subject_omitted else phrases.nominal(clause.subject, Case.NOMINATIVE)
    return [*front(clause), *predication(clause, subject, inverted=inverted), *after_verb(clause)]


def subordinate(clause: Subordinate) -> list[str]:
    """Spell out a subordinate clause or a to-infinitive with its conjunction."""
    if clause.conjunction.finite:
        return [*clause.conjunction.english.split(), *finite_clause(clause.clause)]
    return [*clause.conjunction.english.split(), clause.clause.verb.english.base, *after_verb(clause.clause)]


def sentence(tree: Sentence) -> list[str]:
    """Spell out a sentence, without its final mark."""
    inverted = tree.mood is Mood.QUESTION and not asks_for_subject(tree.clause)
    words = finite_clause(tree.clause, inverted=inverted)
    if tree.conjunction and tree.second:
        comma = [","] if not tree.shared_subject else []
        words += [*comma, tree.conjunction.english]
        words += finite_clause(tree.second, subject_omitted=tree.shared_subject)
    return words
