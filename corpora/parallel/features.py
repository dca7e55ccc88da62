"""Grammatical categories, and the semantic kinds by which verbs and adjectives select nouns."""

from enum import Enum, Flag, auto


class Gender(Enum):
    """Grammatical gender of a German noun; the value is its article in the nominative singular."""

    MASCULINE = "der"
    FEMININE = "die"
    NEUTER = "das"


class Number(Enum):
    """Grammatical number."""

    SINGULAR = "singular"
    PLURAL = "plural"


class Person(Enum):
    """Grammatical person."""

    FIRST = 1
    SECOND = 2
    THIRD = 3


class Case(Enum):
    """Grammatical case; the value is the row of a declension table."""

    NOMINATIVE = 0
    ACCUSATIVE = 1
    DATIVE = 2
    GENITIVE = 3


class Tense(Enum):
    """Tense and aspect of an English verb group, with what it becomes in German."""

    PRESENT = "Präsens"
    PROGRESSIVE = "Präsens of a present progressive"
    PAST = "Perfekt of a simple past; Präteritum of 'be', 'have' and modal verbs"
    PERFECT = "Perfekt of a present perfect"
    FUTURE = "Futur"


class Slot(Enum):
    """Constituents of a clause, as far as one of them can be fronted."""

    SUBJECT = auto()
    OBJECT = auto()
    COMPLEMENT = auto()
    PLACE = auto()
    TIME = auto()
    SUBORDINATE = auto()


class Kind(Flag):
    """Semantic kind of a noun; a verb or adjective selects a union of kinds."""

    NOTHING = 0
    HUMAN = auto()
    NAME = auto()
    ANIMAL = auto()
    FRUIT = auto()
    PASTRY = auto()
    DISH = auto()
    DRINK = auto()
    TEXT = auto()
    TOOL = auto()
    TOY = auto()
    VALUABLE = auto()
    CONTAINER = auto()
    PICTURE = auto()
    CLOTHING = auto()
    SEAT = auto()
    TABLE = auto()
    OPENING = auto()
    ROOM = auto()
    BUILDING = auto()
    SHOP = auto()
    AREA = auto()
    GROUND = auto()
    VENUE = auto()
    SITE = auto()
    CAR = auto()
    TRANSPORT = auto()
    PLANT = auto()

    PERSON = HUMAN | NAME
    ANIMATE = PERSON | ANIMAL
    FOOD = FRUIT | PASTRY | DISH
    THING = TOOL | TOY | VALUABLE | CONTAINER | PICTURE
    PORTABLE = THING | TEXT | CLOTHING
    FURNITURE = SEAT | TABLE
    VEHICLE = CAR | TRANSPORT
    ENCLOSURE = ROOM | BUILDING | SHOP
    PLACE = ENCLOSURE | AREA | GROUND | VENUE | SITE
    INANIMATE = FOOD | DRINK | PORTABLE | FURNITURE | OPENING | PLACE | VEHICLE | PLANT
