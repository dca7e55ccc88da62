"""Properties of the story corpus: the files follow from the code, and the English in them is right."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import corpora.stories
from corpora.stories import corpus
from corpora.stories.dice import Dice
from corpora.stories.grammar import PRONOUNS, Character, Thing, present_tense, with_articles, with_pronouns
from corpora.stories.lexicon import KINDS, StoryNoun
from corpora.stories.scheme import Scheme, cast, facts
from corpora.stories.schemes import SCHEMES
from corpora.stories.template import Scene, expand, paragraph

FOLDER = Path(corpora.stories.__file__).parent
BREAK = "\n<|endoftext|>\n"
SOUNDS_LIKE_A_VOWEL = {"hour", "hours", "honest", "honour", "heir"}
SOUNDS_LIKE_A_CONSONANT = {"one", "once", "use", "used", "useful", "usual", "unicorn", "uniform", "unit", "european"}


def read(name: str) -> str:
    return (FOLDER / name).read_bytes().decode("ascii")


def split(text: str) -> list[str]:
    return text.removesuffix("\n").split(BREAK)


@pytest.fixture(scope="module")
def train() -> list[str]:
    return split(read("train.txt"))


@pytest.fixture(scope="module")
def heldout() -> list[str]:
    return split(read("heldout.txt"))


@pytest.fixture(scope="module")
def every_story(train, heldout) -> list[str]:
    return train + heldout


@pytest.fixture(scope="module")
def paragraphs(every_story) -> list[str]:
    return [text for story in every_story for text in story.split("\n\n")]


def test_regeneration_gives_the_committed_bytes(tmp_path):
    for path in corpus.write(tmp_path):
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_another_seed_gives_other_stories(train):
    assert not set(split(corpus.generate(seed=corpus.SEED + 1)[0])) & set(train)


def test_sizes_are_in_range():
    assert 950_000 <= len(read("train.txt")) <= 1_100_000
    assert 55_000 <= len(read("heldout.txt")) <= 66_000


def test_separator_stands_between_stories_and_nowhere_else(every_story):
    for name in ("train.txt", "heldout.txt"):
        text = read(name)
        assert text.endswith("\n")
        assert not text.endswith(("\n\n", "<|endoftext|>\n"))
        assert text.count("<|endoftext|>") == len(split(text)) - 1
    assert all(story == story.strip() and "|" not in story for story in every_story)


def test_no_story_is_told_twice_in_either_file(every_story):
    assert len(set(every_story)) == len(every_story)


def test_held_out_combinations_are_in_no_other_file(train, heldout):
    sides: dict[bool, set[tuple[str, str, str]]] = {True: set(), False: set()}
    in_train, in_heldout = set(train), set(heldout)
    wanted = len(train) + len(heldout)
    for story in corpus.stories(corpus.SEED):
        if story.text in in_train or story.text in in_heldout:
            sides[story.text in in_heldout].add((story.kind, story.scheme, story.thing))
            wanted -= 1
        if not wanted:
            break
    assert sides[True]
    assert not sides[True] & sides[False]


def test_heldout_words_are_known_from_training(train, heldout):
    assert len(words(heldout) - words(train)) < 0.01 * len(words(heldout))


def test_stories_have_the_promised_shape(every_story):
    for story in every_story:
        assert 80 <= len(story.split()) <= 200
        assert 2 <= story.count("\n\n") + 1 <= 6


def test_vocabulary_is_wide_and_sentences_are_mostly_distinct(train):
    sentences = [sentence for story in train for sentence in re.split(r'(?<=[.!?])"?\s+', story)]
    assert len(words(train)) >= 1_500
    assert len(set(sentences)) > len(sentences) / 2


def test_every_scheme_is_told_often_and_no_outline_opens_too_many_stories(train):
    openings = Counter(" ".join(story.split()[:4]) for story in train)
    assert len(SCHEMES) >= 10
    assert openings.most_common(1)[0][1] < len(train) / 20


def words(stories: list[str]) -> set[str]:
    return {word for story in stories for word in re.findall(r"[a-z]+(?:'[a-z]+)?", story.lower())}


def test_articles_fit_the_word_after_them(paragraphs):
    for text in paragraphs:
        for article, word in re.findall(r"\b(an?) (\w+)", text.lower()):
            vowel = word in SOUNDS_LIKE_A_VOWEL or (word[0] in "aeiou" and word not in SOUNDS_LIKE_A_CONSONANT)
            assert article == ("an" if vowel else "a"), text


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(r"\b(\w+) \1\b", id="doubled word"),
        pytest.param(r"  | [,.!?;:]|[,;:][.!?]|\.\.|,,", id="spacing and punctuation"),
        pytest.param(r"[{}\[\]|_<>]", id="template left over"),
        pytest.param(r"\b[Tt]hey (was|is|has|does)\b", id="they with a singular verb"),
        pytest.param(r"\b([Ss]?[Hh]e|[Ii]t) (were(?! made)|are|have|do)\b", id="singular with a plural verb"),
        pytest.param(r"(^|[.!?] |\.\" )\"?[a-z]", id="sentence without a capital"),
        pytest.param(r'[\w]"', id="quote without punctuation before its end"),
        pytest.param(r"\.\" (said|asked|cried|whispered|answered|replied) ", id="full stop before a dialogue tag"),
    ],
)
def test_mistake_does_not_occur(mistake, paragraphs):
    allowed = re.compile(r'"(stars and stripes|please stop|friend|I am sorry)"')
    assert not [text for text in paragraphs if re.search(mistake, allowed.sub("these words", text))]


def test_quotes_balance_and_paragraphs_end_sentences(paragraphs):
    for text in paragraphs:
        assert text.count('"') % 2 == 0, text
        assert re.search(r'[.!?]"?$', text), text


def test_pronouns_never_outrun_the_people_in_the_story(every_story):
    for story in every_story:
        first = re.search(r"\b(he|she|his|her|him)\b", re.sub(r'"[^"]*"', "", story))
        assert not first or re.search(r"[A-Z][a-z]+", story[: first.start()])


def every_template(scheme: Scheme) -> Iterator[str]:
    """Every template that `scheme` holds, in its outlines and in all rows of its tables."""
    for outline in scheme.outlines:
        yield from outline
    for table in scheme.tables:
        for row in table:
            yield from row.values()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_scheme_has_variety_and_closed_brackets(scheme):
    assert len(scheme.outlines) >= 2
    assert len(scheme.things) >= 8
    assert all(len({frozenset(row) for row in table}) == 1 for table in scheme.tables), "uneven rows"
    for template in every_template(scheme):
        assert template.count("[") == template.count("]")
        assert template.count("{") == template.count("}")


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_no_table_hides_a_fact_of_another(scheme):
    names = [name for table in scheme.tables for name in table[0]]
    bare = facts(Scheme("bare", (StoryNoun("kite", ("red",)),), (), ()), Dice(0))
    assert len(set(names)) == len(names)
    assert not set(names) & set(bare)


def test_dice_are_fair_and_repeat():
    rolls = [[dice.choose("abc") for _ in range(3_000)] for dice in (Dice(7), Dice(7))]
    assert rolls[0] == rolls[1]
    assert all(900 < count < 1_100 for count in Counter(rolls[0]).values())


@pytest.mark.parametrize(
    ("verb", "singular"),
    [("look", "looks"), ("carry", "carries"), ("play", "plays"), ("watch", "watches"), ("have", "has"), ("go", "goes")],
)
def test_present_tense_agrees(verb, singular):
    assert present_tense(verb, plural=False) == singular
    assert present_tense(verb, plural=True) == verb


def test_articles_are_corrected_both_ways():
    assert (
        with_articles("An kite, a apple, a hour, an unicorn, A egg") == "A kite, an apple, an hour, a unicorn, An egg"
    )


def test_repeated_names_become_pronouns_that_agree():
    text = '"Yes," said Robin. Robin was glad. Robin and Mia left. Mia was tired. Tom slept.'
    expected = '"Yes," said Robin. They were glad. Robin and Mia left. Mia was tired. Tom slept.'
    assert with_pronouns(text, "Robin", PRONOUNS["they"]) == expected


def test_paragraph_fills_slots_and_agrees():
    boots = Thing("boots", "red", "a pair of", plural=True)
    scene = Scene({"hero": Character("Ada", PRONOUNS["she"], {}), "thing": boots}, {"food": "apple tart"})
    template = "{hero} had {thing.a} and a {food}. {Thing.it} {thing.was} new[.|.]"
    assert paragraph(template, scene, Dice(1)) == "Ada had a pair of red boots and an apple tart. They were new."
    with pytest.raises(KeyError):
        expand("{hero.tail}", scene, Dice(1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.noun)
def test_nobody_shares_the_pronoun_of_the_hero(kind):
    dice = Dice(3)
    for _ in range(50):
        people = cast(kind, StoryNoun("kite", ("red",)), dice)
        hero = people["hero"].form("he", dice)
        assert hero not in {people[other].form("he", dice) for other in ("friend", "elder", "neighbour")}


def test_git_keeps_their_line_ends():
    """On systems where it changes those of texts."""
    folder = Path(corpora.__file__).parent
    files = [path for path in folder.rglob("*") if path.suffix in {".txt", ".en", ".de"}]
    asked = ["git", "-C", str(folder), "check-attr", "text", "--", *map(str, files)]
    if shutil.which("git") is None or subprocess.run([*asked[:3], "rev-parse"], capture_output=True).returncode:
        pytest.skip("not a checkout")
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == len(files) > 0
    assert all(line.endswith(": text: unset") for line in said)
