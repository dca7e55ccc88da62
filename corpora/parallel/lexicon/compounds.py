"""Noun compounds: a modifier with its linking element (-n-, -en-, -er-, -s- or none) before a head noun.

The head gives a German compound its gender and all its endings. Where English has a word of its own ('study',
Arbeitszimmer), that word is given.
"""

from collections.abc import Iterator

from .entries import Noun
from .nouns import SIMPLE_NOUNS, english_plural

MODIFIERS: dict[str, str] = {
    "apple": "Apfel",
    "cherry": "Kirsch",
    "plum": "Pflaumen",
    "potato": "Kartoffel",
    "lemon": "Zitronen",
    "kitchen": "Küchen",
    "garden": "Garten",
    "house": "Haus",
    "children's": "Kinder",
    "winter": "Winter",
    "car": "Auto",
    "picture": "Bilder",
    "city": "Stadt",
    "travel": "Reise",
}

TRANSPARENT: dict[str, str] = {
    "tree": "apple cherry plum",
    "cake": "apple cherry plum lemon",
    "juice": "apple cherry",
    "soup": "potato",
    "table": "kitchen garden",
    "chair": "kitchen garden",
    "door": "kitchen house car",
    "window": "kitchen",
    "knife": "kitchen",
    "key": "house car",
    "book": "children's picture",
    "coat": "winter",
    "shoe": "winter children's",
    "bag": "travel",
    "map": "city",
}

OPAQUE: dict[str, tuple[str, str]] = {
    "study": ("Arbeits", "room"),
    "bedroom": ("Schlaf", "room"),
    "living room": ("Wohn", "room"),
    "bathroom": ("Bade", "room"),
}


def compound(english: str, plural: str, modifier: str, head: Noun) -> Noun:
    """Return the noun with two English forms whose German is `modifier`, linking element included, and `head`."""
    german, genitive, german_plural = (
        modifier + form.lower() if form else "" for form in (head.german, head.genitive, head.plural)
    )
    return Noun(english, plural, head.gender, german, genitive, german_plural, head.kind)


def entries() -> Iterator[Noun]:
    """Yield all compounds."""
    heads = {noun.english: noun for noun in SIMPLE_NOUNS}
    for name, modifiers in TRANSPARENT.items():
        head = heads[name]
        for modifier in modifiers.split():
            plural = f"{modifier} {head.english_plural}" if head.plural else ""
            yield compound(f"{modifier} {name}", plural, MODIFIERS[modifier], head)
    for english, (german, name) in OPAQUE.items():
        yield compound(english, english_plural(english), german, heads[name])


NOUNS: tuple[Noun, ...] = (*SIMPLE_NOUNS, *entries())
