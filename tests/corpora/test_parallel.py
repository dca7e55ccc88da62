"""The parallel corpus: reproducible, a function from English to German, correct German, and honestly held out."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import corpora.parallel
from corpora.parallel import GeneratedCorpus, TranslatedPair, generate
from corpora.parallel.__main__ import write
from corpora.parallel.features import Case, Gender, Kind, Number, Person
from corpora.parallel.german.conjugation import present, zu_infinitive
from corpora.parallel.german.declension import adjective_form, noun_form
from corpora.parallel.lexicon.adjectives import ADJECTIVES
from corpora.parallel.lexicon.compounds import NOUNS
from corpora.parallel.lexicon.entries import Paradigm
from corpora.parallel.lexicon.verbs import VERBS, german_verb
from corpora.parallel.syntax import Agreement

FOLDER = Path(corpora.parallel.__file__).parent
FILES = ("train.en", "train.de", "heldout.en", "heldout.de")

# Gender, number and case that each form of the definite article can stand for, written by hand.
ARTICLES = {
    "der": {"m sg nom", "f sg dat", "f sg gen", "pl gen"},
    "die": {"f sg nom", "f sg acc", "pl nom", "pl acc"},
    "das": {"n sg nom", "n sg acc"},
    "den": {"m sg acc", "pl dat"},
    "dem": {"m sg dat", "n sg dat"},
    "des": {"m sg gen", "n sg gen"},
    "im": {"m sg dat", "n sg dat"},
    "am": {"m sg dat", "n sg dat"},
    "zum": {"m sg dat", "n sg dat"},
    "vom": {"m sg dat", "n sg dat"},
    "zur": {"f sg dat"},
    "ins": {"n sg acc"},
}
SUBORDINATE = r"\b(?:weil|obwohl|dass|ob) ([^,.?]*)[,.?]((?: \w+){0,2})"
RELATIVE_PRONOUN = r", (\w+ )?(der|die|das|den|dem|denen)\b"
INTERRUPTING = {"der", "die", "das", "den", "dem", "denen", "sondern"}
AUXILIARIES = """
    bin bist ist sind war warst waren habe hast hat haben hatte hattest hatten werde wirst wird werden
    kann kannst können konnte konntest konnten muss musst müssen musste musstest mussten
    will willst wollen wollte wolltest wollten darf darfst dürfen durfte durftest durften
    sollte solltest sollten möchte möchtest möchten weiß regnet schneit kostet kosten
"""


@pytest.fixture(scope="module")
def corpus() -> GeneratedCorpus:
    """The beginning of the corpus, generated again."""
    return generate(training=4_000, held_out=200)


@pytest.fixture(scope="module")
def lines() -> dict[str, list[str]]:
    return {name: (FOLDER / name).read_text(encoding="utf-8").splitlines() for name in FILES}


@pytest.fixture(scope="module")
def pairs(lines) -> list[TranslatedPair]:
    """All pairs of the files, without their combinations."""
    english, german = ([*lines[f"train.{side}"], *lines[f"heldout.{side}"]] for side in ("en", "de"))
    return [TranslatedPair(*sides, ()) for sides in zip(english, german, strict=True)]


def word_forms(line: str) -> list[str]:
    return re.findall(r"[\w'-]+", line.lower())


def noun_cells() -> dict[str, set[str]]:
    """Map each German noun form to the gender, number and case it can stand for."""
    cells: dict[str, set[str]] = defaultdict(set)
    letters = {Gender.MASCULINE: "m", Gender.FEMININE: "f", Gender.NEUTER: "n"}
    for noun in NOUNS:
        for case, name in zip(Case, ("nom", "acc", "dat", "gen"), strict=True):
            cells[noun_form(noun, Number.SINGULAR, case)].add(f"{letters[noun.gender]} sg {name}")
            if noun.plural:
                cells[noun_form(noun, Number.PLURAL, case)].add(f"pl {name}")
    return cells


def test_regeneration_begins_as_the_files_do(corpus, lines):
    """Which pairs are held out depends on all of training: of those that fewer allow, none is new."""
    for at, side in enumerate(("en", "de")):
        assert [pair[at] for pair in corpus.training] == lines[f"train.{side}"][:4_000]
    assert len(corpus.held_out) > 100
    held_out = dict(zip(lines["heldout.en"], lines["heldout.de"], strict=True))
    assert all(held_out[pair.english] == pair.german for pair in corpus.held_out)


@pytest.mark.slow
def test_regeneration_is_byte_identical(tmp_path):
    write(generate(), tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_files_are_aligned_lines(lines):
    assert len(lines["train.en"]) == len(lines["train.de"]) == 20_000
    assert len(lines["heldout.en"]) == len(lines["heldout.de"]) == 1_000


def test_another_seed_gives_another_corpus():
    few = [generate(seed, training=30, held_out=2) for seed in (1, 1, 2)]
    assert few[0] == few[1] != few[2]


def test_english_sides_are_distinct_whatever_their_case(pairs):
    assert len({pair.english.lower() for pair in pairs}) == len(pairs)


def test_translation_is_a_function_of_the_english_words(pairs):
    translation: dict[tuple[str, ...], str] = {}
    for pair in pairs:
        assert translation.setdefault(tuple(word_forms(pair.english)), pair.german) == pair.german


def test_each_held_out_pair_has_a_combination_that_training_never_has(corpus):
    trained = {combination for pair in corpus.training for combination in pair.combinations}
    assert all(set(pair.combinations) - trained for pair in corpus.held_out)


def test_each_held_out_word_form_is_frequent_in_training(lines):
    for side in ("en", "de"):
        counts = Counter(form for line in lines[f"train.{side}"] for form in word_forms(line))
        assert all(counts[form] >= 10 for line in lines[f"heldout.{side}"] for form in word_forms(line))


def test_vocabulary_and_lengths(pairs):
    assert len({form for pair in pairs for form in word_forms(pair.english)}) >= 400
    assert len({form for pair in pairs for form in word_forms(pair.german)}) >= 600
    for side in (0, 1):
        lengths = Counter(len(pair[side].split()) for pair in pairs)
        assert min(lengths) >= 3
        assert max(lengths) <= 25
        assert len(lengths) >= 20


def test_typography(pairs):
    for pair in pairs:
        for line in pair[:2]:
            assert re.fullmatch(r"[A-ZÄÖÜ0-9][\w',.-]*( [\w'-]+,?)+[.?]", line), line
            assert "  " not in line
            assert ",." not in line
        assert (pair.english[-1] == "?") == (pair.german[-1] == "?")


def test_articles_agree_with_their_nouns(pairs):
    cells, checked = noun_cells(), 0
    for pair in pairs:
        line = re.sub(RELATIVE_PRONOUN, ",", pair.german)
        for article, noun in re.findall(rf"\b({'|'.join(ARTICLES)}) ([A-ZÄÖÜ]\w+)", line):
            if noun in cells:
                assert ARTICLES[article] & cells[noun], (article, noun)
                checked += 1
    assert checked > 5_000


def test_adjectives_after_a_definite_article_are_weak(pairs):
    stems = "|".join(sorted((adjective.attributive for adjective in ADJECTIVES), key=len, reverse=True))
    weak = re.compile(rf"\b(des|dem|den|im|am|zum|vom|zur|das) (?:{stems})(\w*) [A-ZÄÖÜ]")
    for pair in pairs:
        for article, ending in weak.findall(re.sub(RELATIVE_PRONOUN, ",", pair.german)):
            assert ending == ("e" if article == "das" else "en"), pair.german


def test_subordinate_clauses_end_with_a_finite_verb(pairs):
    finite = set(AUXILIARIES.split())
    for verb in VERBS:
        for agreement in (*map(Agreement, Person), Agreement(number=Number.PLURAL)):
            finite.add(verb.german.prefix + present(verb.german, agreement))
    checked = 0
    for pair in pairs:
        for match in re.finditer(SUBORDINATE, pair.german):
            interrupted = INTERRUPTING & set(match[2].split())  # a relative clause or 'sondern' comes before the verb
            assert match[1].split()[-1] in finite or interrupted, pair.german
            checked += not interrupted
    assert checked > 1_000


def test_conjunctions_and_relative_pronouns_follow_a_comma_or_begin_the_sentence(pairs):
    for pair in pairs:
        for before in re.findall(r"(\S+) (?:weil|obwohl|dass|aber|sondern)\b", pair.german):
            assert before.endswith(","), pair.german


@pytest.mark.parametrize(
    ("paradigm", "gender", "number", "endings"),
    [
        (Paradigm.ARTICLE, Gender.MASCULINE, Number.SINGULAR, "alte alten alten alten"),
        (Paradigm.ARTICLE, Gender.FEMININE, Number.SINGULAR, "alte alte alten alten"),
        (Paradigm.ARTICLE, Gender.NEUTER, Number.SINGULAR, "alte alte alten alten"),
        (Paradigm.DER_WORD, Gender.NEUTER, Number.PLURAL, "alten alten alten alten"),
        (Paradigm.EIN_WORD, Gender.MASCULINE, Number.SINGULAR, "alter alten alten alten"),
        (Paradigm.EIN_WORD, Gender.FEMININE, Number.SINGULAR, "alte alte alten alten"),
        (Paradigm.EIN_WORD, Gender.NEUTER, Number.SINGULAR, "altes altes alten alten"),
        (Paradigm.EIN_WORD, Gender.FEMININE, Number.PLURAL, "alten alten alten alten"),
        (Paradigm.INVARIANT, Gender.MASCULINE, Number.SINGULAR, "alter alten altem alten"),
        (Paradigm.INVARIANT, Gender.FEMININE, Number.SINGULAR, "alte alte alter alter"),
        (Paradigm.INVARIANT, Gender.NEUTER, Number.SINGULAR, "altes altes altem alten"),
        (Paradigm.QUANTIFIER, Gender.MASCULINE, Number.PLURAL, "alte alte alten alter"),
    ],
)
def test_adjective_endings(paradigm, gender, number, endings):
    old = next(adjective for adjective in ADJECTIVES if adjective.german == "alt")
    assert [adjective_form(old, paradigm, gender, number, case) for case in Case] == endings.split()


@pytest.mark.parametrize(
    ("english", "forms"),
    [
        ("boy", "Junge Jungen Jungen Jungen | Jungen Jungen Jungen Jungen"),
        ("student", "Student Studenten Studenten Studenten | Studenten Studenten Studenten Studenten"),
        ("child", "Kind Kind Kind Kindes | Kinder Kinder Kindern Kinder"),
        ("apple tree", "Apfelbaum Apfelbaum Apfelbaum Apfelbaumes | Apfelbäume Apfelbäume Apfelbäumen Apfelbäume"),
        ("room", "Zimmer Zimmer Zimmer Zimmers | Zimmer Zimmer Zimmern Zimmer"),
        ("sofa", "Sofa Sofa Sofa Sofas | Sofas Sofas Sofas Sofas"),
        ("garden", "Garten Garten Garten Gartens | Gärten Gärten Gärten Gärten"),
    ],
)
def test_noun_declension(english, forms):
    noun = next(noun for noun in NOUNS if noun.english == english)
    singular, plural = (half.split() for half in forms.split("|"))
    assert [noun_form(noun, Number.SINGULAR, case) for case in Case] == singular
    assert [noun_form(noun, Number.PLURAL, case) for case in Case] == plural


@pytest.mark.parametrize(
    ("infinitive", "forms", "zu"),
    [
        ("essen", "esse isst isst essen", "zu essen"),
        ("einladen", "lade lädst lädt laden", "einzuladen"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten", "zu arbeiten"),
        ("zeichnen", "zeichne zeichnest zeichnet zeichnen", "zu zeichnen"),
        ("lächeln", "lächle lächelst lächelt lächeln", "zu lächeln"),
        ("füttern", "füttere fütterst füttert füttern", "zu füttern"),
        ("sitzen", "sitze sitzt sitzt sitzen", "zu sitzen"),
        ("mögen", "mag magst mag mögen", "zu mögen"),
        ("anrufen", "rufe rufst ruft rufen", "anzurufen"),
    ],
)
def test_conjugation(infinitive, forms, zu):
    verb = next(each.german for each in VERBS if each.german.prefix + each.german.infinitive == infinitive)
    agreements = [Agreement(person) for person in Person] + [Agreement(number=Number.PLURAL)]
    assert [present(verb, agreement) for agreement in agreements] == forms.split()
    assert zu_infinitive(verb) == zu


@pytest.mark.parametrize(
    ("infinitive", "participle"),
    [
        ("an|rufen ruft gerufen", "angerufen"),
        ("auf|machen", "aufgemacht"),
        ("reparieren", "repariert"),
        ("wohnen", "gewohnt"),
        ("regnen", "geregnet"),
        ("zeichnen", "gezeichnet"),
        ("zu|hören", "zugehört"),
    ],
)
def test_participles(infinitive, participle):
    assert german_verb(infinitive).participle == participle


def test_every_kind_of_noun_is_used():
    used = {noun.kind for noun in NOUNS}
    assert all(kind in used for kind in Kind)
