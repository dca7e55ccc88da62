"""Kinds of lexical entry: what a word is called in both languages and how it inflects."""

from dataclasses import dataclass
from enum import Enum

from ..features import Case, Gender, Kind, Number, Tense


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun; the plural is empty where the noun has none in this corpus (mass nouns and names)."""

    english: str
    english_plural: str
    gender: Gender
    german: str
    genitive: str
    plural: str
    kind: Kind

    @property
    def is_mass(self) -> bool:
        """Whether the noun is a mass noun ('milk')."""
        return not self.plural and self.kind is not Kind.NAME

    @property
    def is_weak(self) -> bool:
        """Whether the noun takes -(e)n in every case but the nominative singular (n-declension)."""
        return self.gender is Gender.MASCULINE and self.genitive != self.german and self.genitive.endswith("n")


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; `attributive` is the stem that endings are added to, `dimension` what it measures or describes."""

    english: str
    english_comparative: str
    german: str
    attributive: str
    comparative: str
    kinds: Kind
    dimension: str

    @property
    def rank(self) -> int:
        """The place among adjectives before a noun: colour comes last, age before it."""
        return {"age": 1, "colour": 2}.get(self.dimension, 0)


class Paradigm(Enum):
    """How a German determiner inflects; it also decides the declension of the adjectives that follow."""

    ARTICLE = "the definite article; weak adjectives"
    DER_WORD = "dieser, jeder, alle, welcher; weak adjectives"
    EIN_WORD = "ein, kein and the possessives; mixed adjectives"
    QUANTIFIER = "viele, einige; strong adjectives"
    INVARIANT = "numerals and no determiner at all; strong adjectives"


@dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner; an English form is None where the number is not possible."""

    english_singular: str | None
    english_plural: str | None
    stem: str
    paradigm: Paradigm
    definite: bool

    def english(self, number: Number) -> str | None:
        """Return the English form for a number."""
        return self.english_singular if number is Number.SINGULAR else self.english_plural


@dataclass(frozen=True, eq=False)
class Preposition:
    """A preposition with the case it governs in this use and the kinds of noun it goes with."""

    english: str
    german: str
    case: Case
    kinds: Kind


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverbial with a fixed form; a time adverb says which tenses it goes with."""

    english: str
    german: str
    tenses: tuple[Tense, ...] = ()


@dataclass(frozen=True, eq=False)
class Conjunction:
    """A coordinating or subordinating conjunction; `finite` is False where it introduces a zu-infinitive."""

    english: str
    german: str
    finite: bool = True


@dataclass(frozen=True, eq=False)
class EnglishVerb:
    """Principal parts of an English verb; `movable` tells 'pick it up' from 'look at it'."""

    base: str
    past: str
    participle: str
    particle: str = ""
    movable: bool = False


@dataclass(frozen=True, eq=False)
class GermanVerb:
    """Principal parts of a German verb, without its separable prefix."""

    infinitive: str
    third_person: str
    participle: str
    auxiliary: str
    prefix: str = ""


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb and its frame: the kinds of its subject and object and the prepositions of its complement."""

    english: EnglishVerb
    german: GermanVerb
    subjects: Kind
    objects: Kind = Kind.NOTHING
    object_case: Case = Case.ACCUSATIVE
    recipient: bool = False
    recipient_after_to: bool = False
    complements: tuple[Preposition, ...] = ()
    places: Kind = Kind.NOTHING
    stative: bool = False
    involuntary: bool = False
    manners: tuple[Adverb, ...] = ()

    @property
    def name(self) -> str:
        """A name for the verb with its frame, unique in the lexicon."""
        preposition = self.complements[0].german if len(self.complements) == 1 else ""
        return f"{self.german.prefix}{self.german.infinitive} {self.english.base} {preposition}".strip()


@dataclass(frozen=True, eq=False)
class Modal:
    """A modal: English words before the base form, and a German modal verb or adverb.

    Where `auxiliary` is True the first English word inverts and negates by itself, otherwise with 'do'. `german` is
    the key of the German paradigm; it is empty where German has an adverb instead ('likes to read', 'liest gern').
    """

    english: str
    english_past: str
    auxiliary: bool
    german: str
    adverb: str = ""
