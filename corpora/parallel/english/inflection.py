"""Inflection of English verbs and pronouns, and the form of the indefinite article."""

from ..features import Case, Gender, Number, Person
from ..lexicon.entries import EnglishVerb
from ..lexicon.verbs import consonant_vowel_consonant
from ..syntax import Agreement, Pronoun

BE_PRESENT = {Person.FIRST: "am", Person.SECOND: "are", Person.THIRD: "is"}
IRREGULAR_THIRD_PERSON = {"have": "has", "go": "goes", "do": "does"}
IRREGULAR_PARTICIPLE = {"lie": "lying", "forget": "forgetting", "begin": "beginning"}
SPEAKER_AND_HEARER = {
    (Person.FIRST, Number.SINGULAR): ("I", "me"),
    (Person.SECOND, Number.SINGULAR): ("you", "you"),
    (Person.FIRST, Number.PLURAL): ("we", "us"),
    (Person.THIRD, Number.PLURAL): ("they", "them"),
}
GENDERED = {Gender.MASCULINE: ("he", "him"), Gender.FEMININE: ("she", "her")}


def be(agreement: Agreement, *, past: bool = False) -> str:
    """Return the form of 'be' for person and number."""
    if past:
        return "was" if agreement.number is Number.SINGULAR and agreement.person is not Person.SECOND else "were"
    return "are" if agreement.number is Number.PLURAL else BE_PRESENT[agreement.person]


def present(base: str, agreement: Agreement) -> str:
    """Return the present of a verb."""
    if base == "be":
        return be(agreement)
    if not agreement.is_third_singular:
        return base
    if base in IRREGULAR_THIRD_PERSON:
        return IRREGULAR_THIRD_PERSON[base]
    if base.endswith("y") and base[-2] not in "aeou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x")) else "s")


def past(verb: EnglishVerb, agreement: Agreement) -> str:
    """Return the simple past of a verb."""
    return be(agreement, past=True) if verb.base == "be" else verb.past


def present_participle(base: str) -> str:
    """Return the form in -ing."""
    if base in IRREGULAR_PARTICIPLE:
        return IRREGULAR_PARTICIPLE[base]
    if base.endswith("e"):
        return base[:-1] + "ing"
    return base + base[-1] * consonant_vowel_consonant(base) + "ing"


def personal_pronoun(pronoun: Pronoun, case: Case) -> str:
    """Return a personal pronoun as subject (nominative) or object (any other case)."""
    column = 0 if case is Case.NOMINATIVE else 1
    if pronoun.person is not Person.THIRD or pronoun.number is Number.PLURAL:
        return SPEAKER_AND_HEARER[pronoun.person, pronoun.number][column]
    return GENDERED[pronoun.gender][column] if pronoun.human else "it"


def indefinite_article(following: str) -> str:
    """Return 'a' or 'an' by the sound of the next word."""
    return "an" if following[0] in "aeiou" else "a"
