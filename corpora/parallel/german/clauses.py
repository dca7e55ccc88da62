"""The order of a German clause: prefield, finite verb, middle field, right bracket, postfield.

Main clauses and questions put the finite verb second or first; subordinate clauses put it at the end of the right
bracket. Source: the topological model, Drach 1937.
"""

from dataclasses import dataclass, replace

from ..features import Case, Slot, Tense
from ..lexicon.entries import Adverb
from ..lexicon.function_words import ALREADY, BARE, NEVER, NO, A
from ..syntax import (
    Agreement,
    Clause,
    Expletive,
    Mood,
    Nominal,
    NounPhrase,
    Pronoun,
    Sentence,
    Subordinate,
    agreement,
    asks_for_subject,
    is_definite,
)
from .conjugation import infinitive, irregular, present, preterite, zu_infinitive
from .phrases import GermanPhrases, Phrase


def relative_clause(clause: Clause) -> list[str]:
    """Spell out a relative clause, between commas."""
    return [",", *verb_final(clause), ","]


phrases = GermanPhrases(relative_clause)


@dataclass
class Brackets:
    """The finite verb and the rest of the verbal complex; a separable prefix rejoins its verb at the end."""

    finite: str
    right: list[str]
    prefix: str = ""

    def at_end(self) -> list[str]:
        """Return the verbal complex of a verb-final clause."""
        return [*self.right, self.prefix + self.finite]


def finite_agreement(clause: Clause) -> Agreement:
    """Return person and number of the German finite verb; 'es gibt' does not agree with its object."""
    return Agreement() if isinstance(clause.subject, Expletive) else agreement(clause)


def brackets(clause: Clause) -> Brackets:
    """Return the verbal complex: simple past and present perfect become Perfekt, except of 'be', 'have' and modals."""
    verb, person = clause.verb.german, finite_agreement(clause)
    past = clause.tense is Tense.PAST
    if clause.modal and clause.modal.german:
        conjugate = preterite if past else irregular
        return Brackets(conjugate(clause.modal.german, person), [infinitive(verb)])
    if past and verb.infinitive in ("sein", "haben"):
        return Brackets(preterite(verb.infinitive, person), [])
    if past or clause.tense is Tense.PERFECT:
        return Brackets(irregular(verb.auxiliary, person), [verb.participle])
    if clause.tense is Tense.FUTURE:
        return Brackets(irregular("werden", person), [infinitive(verb)])
    return Brackets(present(verb, person), [], verb.prefix)


def objects(clause: Clause) -> list[tuple[Nominal, Case]]:
    """Return the objects in their basic order (dative before accusative, but pronouns accusative first)."""
    found: list[tuple[Nominal, Case]] = []
    if clause.recipient:
        found.append((clause.recipient, Case.DATIVE))
    if clause.object and clause.fronted is not Slot.OBJECT:
        found.append((clause.object, clause.verb.object_case))
    return found[::-1] if found and isinstance(found[-1][0], Pronoun) else found


def place_negation(clause: Clause) -> Clause:
    """Return a negated clause with 'kein' on its indefinite object in place of 'nicht'."""
    if clause.negated and isinstance(clause.object, NounPhrase) and clause.object.determiner in (A, BARE):
        return replace(clause, negated=False, object=replace(clause.object, determiner=NO))
    return clause


def grouped_objects(clause: Clause) -> tuple[list[Phrase], list[Phrase], list[Phrase]]:
    """Return the objects in groups: pronouns, other definite ones, indefinite ones."""
    groups: tuple[list[Phrase], list[Phrase], list[Phrase]] = ([], [], [])
    for each, case in objects(clause):
        group = 0 if isinstance(each, Pronoun) else 1 if is_definite(each) else 2
        groups[group].append(phrases.nominal(each, case))
    return groups


def temporal_adverbs(clause: Clause) -> list[Adverb]:
    """Return the adverbs of time and frequency in the middle field, except those that stand where 'nicht' would."""
    found = [clause.time if clause.fronted is not Slot.TIME else None]
    found.append(clause.frequency if clause.frequency not in (NEVER, ALREADY) else None)
    return [each for each in found if each]


def focus_words(clause: Clause) -> list[str]:
    """Return 'nicht', 'nie', 'schon' and 'gern', which stand before the part of the clause they bear on."""
    words = ["nicht"] if clause.negated else []
    if clause.frequency and clause.frequency in (NEVER, ALREADY):
        words.append(clause.frequency.german)
    if clause.modal and clause.modal.adverb:
        words.append(clause.modal.adverb)
    return words


def middle_field(clause: Clause) -> list[Phrase]:
    """Return the middle field without the subject.

    The order is: pronouns, time, definite objects, focus words, manner, place, indefinite objects, prepositional and
    directional complements, predicate; with 'nicht', definite objects come before time.
    """
    clause = place_negation(clause)
    pronouns, definite, indefinite = grouped_objects(clause)
    adverbs = [Phrase(each.german.split()) for each in temporal_adverbs(clause)]
    known = definite + adverbs if clause.negated else adverbs + definite
    field = pronouns + known + [Phrase([word]) for word in focus_words(clause)]
    if clause.manner:
        field.append(Phrase([clause.manner.german]))
    if clause.place and clause.fronted is not Slot.PLACE:
        field.append(phrases.place(clause.place))
    field += indefinite
    if clause.complement and clause.fronted is not Slot.COMPLEMENT:
        field.append(phrases.place(clause.complement))
    return [*field, phrases.predicate(clause.predicate)] if clause.predicate else field


def prefield(clause: Clause) -> list[str]:
    """Return the constituent before the finite verb of a main clause, or that introduces a relative clause."""
    match clause.fronted:
        case Slot.OBJECT if clause.object:
            return phrases.nominal(clause.object, clause.verb.object_case).all_words()
        case Slot.COMPLEMENT if clause.complement:
            return phrases.place(clause.complement).all_words()
        case Slot.PLACE if clause.place:
            return phrases.place(clause.place).all_words()
        case Slot.TIME if clause.time:
            return clause.time.german.split()
        case Slot.SUBORDINATE if clause.subordinate:
            return [*subordinate(clause.subordinate), ","]
        case _:
            return subject(clause)


def subject(clause: Clause) -> list[str]:
    """Return the subject."""
    return phrases.nominal(clause.subject, Case.NOMINATIVE).all_words()


def end(field: list[Phrase], bracket: list[str], clause: Clause) -> list[str]:
    """Return middle field, bracket and postfield; a relative clause at the end of the middle field is extraposed."""
    words = [word for phrase in field[:-1] for word in phrase.all_words()]
    if field:
        words += [*field[-1].words, *bracket, *field[-1].relative]
    else:
        words += bracket
    if clause.subordinate and clause.fronted is not Slot.SUBORDINATE:
        words += [",", *subordinate(clause.subordinate), ","]
    return words


def main_clause(clause: Clause, *, subject_omitted: bool = False) -> list[str]:
    """Spell out a main clause: the finite verb comes second."""
    verb = brackets(clause)
    first = [] if subject_omitted else prefield(clause)
    after = [] if clause.fronted is Slot.SUBJECT else subject(clause)
    return [*first, verb.finite, *after, *end(middle_field(clause), [*verb.right, *prefix(verb)], clause)]


def question(clause: Clause) -> list[str]:
    """Spell out a yes/no question: the finite verb comes first."""
    verb = brackets(clause)
    return [verb.finite, *subject(clause), *end(middle_field(clause), [*verb.right, *prefix(verb)], clause)]


def prefix(verb: Brackets) -> list[str]:
    """Return the separated prefix, if any."""
    return [verb.prefix] if verb.prefix else []


def verb_final(clause: Clause) -> list[str]:
    """Spell out a subordinate clause without its conjunction: the finite verb comes last."""
    first = [] if clause.fronted is Slot.SUBJECT else prefield(clause)
    return [*first, *subject(clause), *end(middle_field(clause), brackets(clause).at_end(), clause)]


def infinitive_clause(clause: Clause) -> list[str]:
    """Spell out an infinitive with 'zu', without its subject."""
    return end(middle_field(clause), zu_infinitive(clause.verb.german).split(), clause)


def subordinate(clause: Subordinate) -> list[str]:
    """Spell out a subordinate clause with its conjunction."""
    spell_out = verb_final if clause.conjunction.finite else infinitive_clause
    return [*clause.conjunction.german.split(), *spell_out(clause.clause)]


def sentence(tree: Sentence) -> list[str]:
    """Spell out a sentence, without its final mark."""
    if tree.mood is Mood.QUESTION and tree.clause.fronted is Slot.SUBJECT and not asks_for_subject(tree.clause):
        return question(tree.clause)
    words = main_clause(tree.clause)
    if tree.conjunction and tree.second:
        comma = [","] if tree.conjunction.german == "aber" or words[-1] == "," else []
        words += [*comma, tree.conjunction.german, *second_conjunct(tree.clause, tree.second, tree.shared_subject)]
    return words


def second_conjunct(first: Clause, second: Clause, shared_subject: bool) -> list[str]:
    """Spell out the second of two coordinated clauses; with the subject they also share an auxiliary."""
    words = main_clause(second, subject_omitted=shared_subject)
    before, after = brackets(first), brackets(second)
    shared_auxiliary = shared_subject and before.finite == after.finite and before.right and after.right
    return words[1:] if shared_auxiliary else words
