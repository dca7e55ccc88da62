"""The language that the sentences are written in.

A template is text that may hold

    [red|green|]       one of the alternatives, chosen again each time; they nest, and one may be empty
    {food}             a fact of this story, which may itself be a template
    {hero}             the plain noun of an entity
    {hero.his}         one of its forms
    {thing:look}       a verb in the present tense, agreeing with the entity's pronoun
    {Hero.he}          a capital in the slot gives a capital in the text
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .dice import Dice
from .grammar import Character, Entity, capitalised, present_tense, with_articles, with_capitals, with_pronouns

INNERMOST_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(\w+)(?:\.(\w+)|:(\w+))?\}")


@dataclass(frozen=True)
class Scene:
    """All that one story has fixed: who is in it, and what is true in it."""

    entities: Mapping[str, Entity]
    facts: Mapping[str, str]


def expand(template: str, scene: Scene, dice: Dice) -> str:
    """`template` with its alternatives chosen and its slots filled.

    Raises:
        KeyError: a slot names a fact, an entity or a form that the scene lacks.
    """
    while INNERMOST_ALTERNATIVES.search(template):
        template = INNERMOST_ALTERNATIVES.sub(lambda match: dice.choose(match[1].split("|")), template)
    return SLOT.sub(lambda match: fill(match, scene, dice), template)


def fill(slot: re.Match[str], scene: Scene, dice: Dice) -> str:
    """The text for one slot."""
    name, form, verb = slot[1], slot[2], slot[3]
    key = name.lower()
    if key in scene.facts:
        text = expand(scene.facts[key], scene, dice)
    elif verb:
        text = present_tense(verb, plural=scene.entities[key].plural)
    else:
        text = expand(scene.entities[key].form(form or "", dice), scene, dice)
    return text if name == key else capitalised(text)


def paragraph(template: str, scene: Scene, dice: Dice) -> str:
    """One finished paragraph: expanded, spaces closed up, pronouns, articles and capitals set right."""
    text = re.sub(r"\s+", " ", expand(template, scene, dice)).strip()
    for entity in scene.entities.values():
        if isinstance(entity, Character):
            text = with_pronouns(text, entity.name, entity.pronouns)
    return with_capitals(with_articles(text))
