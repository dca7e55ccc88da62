"""Conjugation: finite forms of present, preterite and the modals, and infinitives with 'zu'."""

from ..features import Number, Person
from ..lexicon.entries import GermanVerb
from ..syntax import Agreement

# First, second and third person singular, then the plural of the first and third person.
IRREGULAR_PRESENT: dict[str, tuple[str, str, str, str]] = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
    "mögen": ("mag", "magst", "mag", "mögen"),
    "können": ("kann", "kannst", "kann", "können"),
    "müssen": ("muss", "musst", "muss", "müssen"),
    "wollen": ("will", "willst", "will", "wollen"),
    "dürfen": ("darf", "darfst", "darf", "dürfen"),
    "sollen": ("sollte", "solltest", "sollte", "sollten"),
    "möchten": ("möchte", "möchtest", "möchte", "möchten"),
}
PRETERITE: dict[str, tuple[str, str, str, str]] = {
    "sein": ("war", "warst", "war", "waren"),
    "haben": ("hatte", "hattest", "hatte", "hatten"),
    "können": ("konnte", "konntest", "konnte", "konnten"),
    "müssen": ("musste", "musstest", "musste", "mussten"),
    "wollen": ("wollte", "wolltest", "wollte", "wollten"),
    "dürfen": ("durfte", "durftest", "durfte", "durften"),
}


def form(forms: tuple[str, str, str, str], agreement: Agreement) -> str:
    """Return the form of a row for person and number."""
    return forms[3] if agreement.number is Number.PLURAL else forms[agreement.person.value - 1]


def irregular(infinitive: str, agreement: Agreement) -> str:
    """Return the present of an auxiliary or modal."""
    return form(IRREGULAR_PRESENT[infinitive], agreement)


def preterite(infinitive: str, agreement: Agreement) -> str:
    """Return the preterite of an auxiliary or modal."""
    return form(PRETERITE[infinitive], agreement)


def present(verb: GermanVerb, agreement: Agreement) -> str:
    """Return the present of a verb, without its separable prefix."""
    if verb.infinitive in IRREGULAR_PRESENT:
        return irregular(verb.infinitive, agreement)
    if agreement.number is Number.PLURAL:
        return verb.infinitive
    match agreement.person:
        case Person.FIRST:
            return first_person(verb.infinitive)
        case Person.SECOND:
            stem = verb.third_person[:-1]
            return stem + ("t" if stem.endswith(("s", "ß", "x", "z")) else "st")
        case Person.THIRD:
            return verb.third_person


def first_person(infinitive: str) -> str:
    """Return the first person singular of the present ('ich lächle', 'ich füttere', 'ich gehe')."""
    if infinitive.endswith("eln"):
        return infinitive[:-3] + "le"
    return infinitive.removesuffix("n") + "e" * (not infinitive.endswith("en"))


def infinitive(verb: GermanVerb) -> str:
    """Return the infinitive with its prefix."""
    return verb.prefix + verb.infinitive


def zu_infinitive(verb: GermanVerb) -> str:
    """Return the infinitive with 'zu', which goes between a separable prefix and the verb."""
    return f"{verb.prefix}zu{verb.infinitive}" if verb.prefix else f"zu {verb.infinitive}"
