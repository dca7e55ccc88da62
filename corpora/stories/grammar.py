"""English agreement: pronouns, verbs, articles, dialogue tags, and the nouns that carry them through a story."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from .dice import Dice

VOWEL_SPELLING = re.compile(
    r"(?!(?:one|once|use|used|useful|usual|unicorn|uniform)\b)(?:[aeiou]|hour|honest|honour)", re.I
)
ARTICLE = re.compile(r"\b([Aa])n? (?=(\w+))")

IRREGULAR_PRESENT = {"be": ("is", "are"), "have": ("has", "have"), "do": ("does", "do"), "go": ("goes", "go")}

TAGS = {
    "said": ("said",),
    "answered": ("said", "answered", "replied"),
    "asked": ("asked",),
    "cried": ("cried", "exclaimed"),
    "shouted": ("shouted", "called", "cried"),
    "whispered": ("whispered", "murmured", "said + softly", "said + quietly"),
    "laughed": ("laughed", "said + with a smile", "said + with a grin", "said + cheerfully"),
    "sighed": ("sighed", "said + sadly", "said + with a sigh"),
}


@dataclass(frozen=True)
class Pronouns:
    """One row of the pronoun table; `plural` is the number its verbs agree with (singular *they* takes *were*)."""

    he: str
    him: str
    his: str
    himself: str
    plural: bool = False


PRONOUNS = {
    "he": Pronouns("he", "him", "his", "himself"),
    "she": Pronouns("she", "her", "her", "herself"),
    "they": Pronouns("they", "them", "their", "themselves", plural=True),
}


class Entity(Protocol):
    """Whatever a slot can name and inflect."""

    @property
    def plural(self) -> bool:
        """The number that verbs after its pronoun agree with."""

    def form(self, name: str, dice: Dice) -> str:
        """The form called `name`; the empty name is the plain noun. Raises KeyError if there is none."""


@dataclass(frozen=True)
class Character:
    """Somebody in a story; `details` are further forms of its own (`intro`, `home`, `habit` …)."""

    name: str
    pronouns: Pronouns
    details: dict[str, str]

    @property
    def plural(self) -> bool:
        """Whether verbs after the pronoun are plural: so they are after singular *they*, though not after the name."""
        return self.pronouns.plural

    def form(self, name: str, dice: Dice) -> str:
        """A dialogue tag, a pronoun, an auxiliary, or one of the character's own details."""
        if name in TAGS:
            return dialogue_tag(self.name, name, dice)
        pronouns = self.pronouns
        forms = {
            "": self.name,
            "he": pronouns.he,
            "him": pronouns.him,
            "his": pronouns.his,
            "himself": pronouns.himself,
        }
        return (forms | past_and_present(self.plural) | self.details)[name]


@dataclass(frozen=True)
class Thing:
    """An object that keeps its adjective: the kite that is red in the first sentence is red in the last."""

    noun: str
    adjective: str
    measure: str = ""
    plural: bool = False

    def form(self, name: str, dice: Dice) -> str:
        """The noun with or without adjective and article (`full`, `the`, `a`, `a_plain`), a pronoun or an auxiliary."""
        full = f"{self.adjective} {self.noun}"
        number = {"it": "it", "them": "it", "its": "its", "this": "this", "that": "that"}
        if self.plural:
            number = {"it": "they", "them": "them", "its": "their", "this": "these", "that": "those"}
        measure = self.measure or "a"
        forms = {
            "": self.noun,
            "full": full,
            "the": dice.choose((f"the {full}", f"the {self.noun}")),
            "a": f"{measure} {full}",
            "a_plain": f"{measure} {self.noun}",
        }
        return (forms | number | past_and_present(self.plural))[name]


def past_and_present(plural: bool) -> dict[str, str]:
    """The auxiliaries that show number: were or was, are or is, have or has, do or does."""
    present = {verb: present_tense(verb, plural=plural) for verb in IRREGULAR_PRESENT}
    return {"was": "were" if plural else "was", "is": present["be"], "has": present["have"], "does": present["do"]}


def present_tense(verb: str, *, plural: bool) -> str:
    """The third person of `verb`: *carry* is *carries* for one and *carry* for many."""
    if verb in IRREGULAR_PRESENT:
        return IRREGULAR_PRESENT[verb][plural]
    if plural:
        return verb
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    return verb + ("es" if re.search(r"(s|x|ch|sh|o)$", verb) else "s")


def dialogue_tag(name: str, manner: str, dice: Dice) -> str:
    """Who spoke and how: *said Mia*, *Mia said softly*; an adverb in TAGS follows the plus sign."""
    verb, _, adverb = dice.choose(TAGS[manner]).partition(" + ")
    tag = dice.choose((f"{verb} {name}", f"{name} {verb}"))
    return f"{tag} {adverb}" if adverb else tag


def with_pronouns(paragraph: str, name: str, pronouns: Pronouns) -> str:
    """The name at the head of a sentence becomes a pronoun where the sentence before was about the same person.

    It was if it began with the name too, or if it was that person's speech.
    """
    subject = re.compile(rf"{name} (?!and\b)(was\b)?")
    topic = re.compile(rf'^{name} (?!and\b)|" (?:\w+ {name}|{name} \w+)\b[^"]*$')
    pronoun = capitalised(pronouns.he)
    sentences = re.split(r"(?<=[.!?]) ", paragraph)
    told = sentences[:1]
    for before, sentence in pairwise(sentences):
        follows = topic.search(before) and subject.match(sentence)
        verb = ("were" if pronouns.plural else "was") if follows and follows[1] else ""
        told.append(f"{pronoun} {verb}{sentence[follows.end() :]}" if follows else sentence)
    return " ".join(told)


def with_articles(text: str) -> str:
    """Every *a* or *an* made to fit the sound of the word after it."""

    def article(match: re.Match[str]) -> str:
        return match[1] + ("n " if VOWEL_SPELLING.match(match[2]) else " ")

    return ARTICLE.sub(article, text)


def capitalised(text: str) -> str:
    """`text` with its first letter raised, past an opening quote if there is one."""
    return re.sub(r'^("?)(\w)', lambda match: match[1] + match[2].upper(), text)


def with_capitals(paragraph: str) -> str:
    """Sentences begin with capitals, at the start and after a full stop.

    After `!"` or `?"` nothing is changed, since a dialogue tag may follow; templates spell those themselves.
    """
    return re.sub(r'(?<=[.!?] )"?[a-z]|(?<=\." )"?[a-z]', lambda match: match[0].upper(), capitalised(paragraph))
