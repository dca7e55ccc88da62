"""A plot scheme, and how it becomes a story.

A scheme has outlines (orders in which the story may be told) and tables. A row of a table says one thing at several
points of the story: the wish in the second sentence and its fulfilment in the ninth, or an obstacle and the way round
it. One row of each table is chosen before the first word is written, so that what comes late follows from what came
early.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .dice import Dice
from .grammar import PRONOUNS, Character, Entity, Thing
from .lexicon import (
    BIRDS,
    ELDERS,
    FOODS,
    KINDS,
    NAMES,
    NEIGHBOURS,
    SEASONS,
    SHARED_FACTS,
    SOUPS,
    TRAITS,
    TREES,
    HeroKind,
    StoryNoun,
)
from .template import Scene, paragraph

Row = Mapping[str, str]


@dataclass(frozen=True)
class Scheme:
    """One kind of plot: the things it can be about, its tables of facts, and the outlines that it is told along."""

    name: str
    things: tuple[StoryNoun, ...]
    tables: tuple[tuple[Row, ...], ...]
    outlines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Story:
    """A finished story, and the three choices that decide which file it belongs to."""

    kind: str
    scheme: str
    thing: str
    text: str


def tell(scheme: Scheme, dice: Dice) -> Story:
    """One story along `scheme`."""
    kind = dice.choose(KINDS)
    noun = dice.choose(scheme.things)
    scene = Scene(cast(kind, noun, dice), facts(scheme, dice))
    paragraphs = [paragraph(template, scene, dice) for template in dice.choose(scheme.outlines)]
    return Story(kind.noun, scheme.name, noun.noun, "\n\n".join(text for text in paragraphs if text))


def cast(kind: HeroKind, noun: StoryNoun, dice: Dice) -> dict[str, Entity]:
    """Everyone in the story. Nobody shares the hero's pronoun, so that none is ever in doubt."""
    gender = dice.choose(kind.pronouns)
    other = {"he": "she", "she": "he"}.get(gender) or dice.choose(("he", "she"))
    return {
        "hero": hero(kind, gender, dice),
        "friend": Character(dice.choose(NAMES[kind.world][other]), PRONOUNS[other], {}),
        "elder": Character(dice.choose(ELDERS[other]), PRONOUNS[other], {}),
        "neighbour": neighbour(other, dice),
        "thing": Thing(noun.noun, dice.choose(noun.adjectives), noun.measure, plural=bool(noun.measure)),
    }


def hero(kind: HeroKind, gender: str, dice: Dice) -> Character:
    """A hero of `kind`, with a name, a trait and a home."""
    name, trait = dice.choose(NAMES[kind.world][gender]), dice.choose(TRAITS)
    details = {
        "kind": kind.noun,
        "a_kind": f"a {trait.adjective} {kind.noun}",
        "intro": f"a {trait.adjective} {kind.noun} named {name}",
        "home": kind.home,
        "paws": kind.paws,
        "habit": trait.habit,
        "closing": trait.closing,
    }
    return Character(name, PRONOUNS[gender], details)


def neighbour(gender: str, dice: Dice) -> Character:
    """A neighbour, called by the full name once (`full`) and by the first name after that."""
    full = dice.choose(NEIGHBOURS[gender])
    return Character(full.split()[0], PRONOUNS[gender], {"full": full})


def facts(scheme: Scheme, dice: Dice) -> dict[str, str]:
    """What is true in one story: a row of each table, a season, and the small things that keep their names."""
    small = {
        "food": dice.choose(FOODS),
        "soup": dice.choose(SOUPS),
        "tree": dice.choose(TREES),
        "bird": dice.choose(BIRDS),
    }
    together: dict[str, str] = {**SHARED_FACTS, **small, **dice.choose(SEASONS)}
    for table in scheme.tables:
        together.update(dice.choose(table))
    return together
