"""Declension of articles, other determiners, adjectives, nouns and pronouns.

The tables have one row for each case (nominative, accusative, dative, genitive) and one column for each gender in the
singular (masculine, feminine, neuter) and the plural.
"""

from ..features import Case, Gender, Number, Person
from ..lexicon.entries import Adjective, Determiner, Noun, Paradigm

Table = tuple[tuple[str, ...], ...]


def table(text: str) -> Table:
    """Parse a table of forms; '-' is an empty ending."""
    return tuple(tuple(form.strip("-") for form in row.split()) for row in text.strip().splitlines())


ARTICLE = table("""
    der die das die
    den die das die
    dem der dem den
    des der des der
""")
DER_WORD = table("""
    er e es e
    en e es e
    em er em en
    es er es er
""")
EIN_WORD = table("""
    - e - e
    en e - e
    em er em en
    es er es er
""")
WEAK = table("""
    e e e en
    en e e en
    en en en en
    en en en en
""")
MIXED = table("""
    er e es en
    en e es en
    en en en en
    en en en en
""")
STRONG = table("""
    er e es e
    en e es e
    em er em en
    en er en er
""")
RELATIVE_PRONOUN = table("""
    der die das die
    den die das die
    dem der dem denen
    dessen deren dessen deren
""")
THIRD_PERSON = table("""
    er sie es sie
    ihn sie es sie
    ihm ihr ihm ihnen
""")
SPEAKER_AND_HEARER = {
    (Person.FIRST, Number.SINGULAR): ("ich", "mich", "mir"),
    (Person.SECOND, Number.SINGULAR): ("du", "dich", "dir"),
    (Person.FIRST, Number.PLURAL): ("wir", "uns", "uns"),
}
WHO = ("wer", "wen", "wem")

COLUMNS = {Gender.MASCULINE: 0, Gender.FEMININE: 1, Gender.NEUTER: 2}


def cell(forms: Table, gender: Gender, number: Number, case: Case) -> str:
    """Return the form of a table for gender, number and case."""
    return forms[case.value][3 if number is Number.PLURAL else COLUMNS[gender]]


def determiner_form(determiner: Determiner, gender: Gender, number: Number, case: Case) -> str:
    """Return the inflected determiner, empty where there is none."""
    match determiner.paradigm:
        case Paradigm.ARTICLE:
            return cell(ARTICLE, gender, number, case)
        case Paradigm.DER_WORD | Paradigm.QUANTIFIER:
            return determiner.stem + cell(DER_WORD, gender, number, case)
        case Paradigm.EIN_WORD:
            return determiner.stem + cell(EIN_WORD, gender, number, case)
        case Paradigm.INVARIANT:
            return determiner.stem


def adjective_form(adjective: Adjective, paradigm: Paradigm, gender: Gender, number: Number, case: Case) -> str:
    """Return the attributive adjective after a determiner of the given paradigm."""
    match paradigm:
        case Paradigm.ARTICLE | Paradigm.DER_WORD:
            endings = WEAK
        case Paradigm.EIN_WORD:
            endings = MIXED
        case Paradigm.QUANTIFIER | Paradigm.INVARIANT:
            endings = STRONG
    return adjective.attributive + cell(endings, gender, number, case)


def noun_form(noun: Noun, number: Number, case: Case) -> str:
    """Return the noun in a number and case."""
    if number is Number.PLURAL:
        return noun.plural + "n" * (case is Case.DATIVE and not noun.plural.endswith(("n", "s")))
    if case is Case.GENITIVE or (noun.is_weak and case is not Case.NOMINATIVE):
        return noun.genitive
    return noun.german


def personal_pronoun(person: Person, number: Number, gender: Gender, case: Case) -> str:
    """Return a personal pronoun; English 'you' is familiar and singular."""
    if person is Person.THIRD:
        return cell(THIRD_PERSON, gender, number, case)
    return SPEAKER_AND_HEARER[person, number][case.value]


def relative_pronoun(noun: Noun, number: Number, case: Case) -> str:
    """Return the relative pronoun that agrees with a noun and stands in a case of its own."""
    return cell(RELATIVE_PRONOUN, noun.gender, number, case)
