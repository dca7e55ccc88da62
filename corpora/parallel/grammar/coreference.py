"""Which pronouns can refer back to something in an earlier clause, without ambiguity in English."""

from ..english.inflection import personal_pronoun
from ..features import Case
from ..syntax import Clause, Coordination, Nominal, NounPhrase, PrepositionalPhrase, Pronoun, pronoun_for


def referents(clause: Clause) -> list[Nominal]:
    """Return everything that a clause mentions, outermost first."""
    found: list[Nominal] = [each for each in (clause.subject, clause.object, clause.recipient) if each]
    for place in (clause.complement, clause.place):
        if isinstance(place, PrepositionalPhrase):
            found.append(place.nominal)
    if isinstance(clause.predicate, NounPhrase):
        found.append(clause.predicate)
    standard = getattr(clause.predicate, "standard", None)
    found += [standard] if standard else []
    found += [each.possessor for each in found if isinstance(each, NounPhrase) and each.possessor]
    return found


def english_pronoun(nominal: Nominal) -> str:
    """Return the English pronoun for a nominal; empty if there is none."""
    pronoun = pronoun_for(nominal) if isinstance(nominal, NounPhrase | Coordination) else nominal
    return personal_pronoun(pronoun, Case.NOMINATIVE) if isinstance(pronoun, Pronoun) else ""


def antecedents(clause: Clause) -> list[tuple[Pronoun, NounPhrase | Coordination]]:
    """Return pronouns for subject and object, with what they refer to, if nothing else fits their English form."""
    forms = [english_pronoun(each) for each in referents(clause)]
    found: list[tuple[Pronoun, NounPhrase | Coordination]] = []
    for nominal in (clause.subject, clause.object):
        if isinstance(nominal, NounPhrase | Coordination) and forms.count(english_pronoun(nominal)) == 1:
            pronoun = pronoun_for(nominal)
            found += [(pronoun, nominal)] if pronoun else []
    return found
