"""How much of a text is training text, and how much of it repeats."""

import itertools
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import overlap, repetition, shards
from lm.corpus.manifest import Repetition
from lm.corpus.overlap import Overlap, PairOverlap, TrainingOverlap
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.prepare_pairs import prepare_pairs
from lm.corpus.repetition import TokenizedDocuments, measure_repetition
from lm.corpus.shards import read_manifest
from lm.corpus.text_corpus import scan_corpus
from lm.corpus.tokenized_pairs import open_pairs
from lm.text.parallel_text import SentencePair
from lm.text.text_files import TextFile, find_text_files
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.parallel_text import lines
from tests.lm.corpus.preparing import prepare
from tests.lm.corpus.small_pairs import BYTES, PLAIN, corpus
from tests.lm.tokenizers_elsewhere import gpt2_like, llama2_like

WORDS = [
    f"{first}{second}" for first in ("ba", "ko", "mi", "tu", "re", "sol") for second in ("n", "ra", "st", "lo", "x")
]


def text_of(seed: int, sentences: int) -> str:
    source = random.Random(seed)
    return "".join(" ".join(source.choices(WORDS, k=9)) + ".\n" for _ in range(sentences))


@pytest.fixture(scope="module")
def trained_on() -> str:
    return text_of(1, 1200)


@pytest.fixture(scope="module", params=["end of text", "start and end", "none"])
def tokenizer(request, trained_on):
    special = {"end of text": ("<|endoftext|>",), "start and end": ("<s>", "</s>"), "none": ()}[request.param]
    config = TokenizerConfig(vocab_size=300)
    return training.train([trained_on], config, corpus_bytes=len(trained_on), special_tokens=special).tokenizer


def fractions(folder, tokenizer, *files: list[str]) -> list[float]:
    """Of files, which are documents; these come in two parts each."""
    found = TrainingOverlap(tokenizer)
    for number, documents in enumerate(files):
        for text in documents:
            ids = np.array(tokenizer.encode(text))
            found.add(number, ids[: len(ids) // 2], starts_document=True)
            found.add(number, ids[len(ids) // 2 :], starts_document=False)
    return [each.fraction for each in found.measure(folder).values()]


def prepared(tmp_path, tokenizer, documents: list[str], validation: str = "0.1"):
    path = tmp_path / "corpus.txt"
    path.write_text("<|endoftext|>\n".join(documents))
    config = DataConfig(validation=validation)
    return prepare_corpus(
        scan_corpus(find_text_files([str(path)]), config), tokenizer, folder=tmp_path / "tokens"
    ).folder


def test_the_fraction_of_one_document(tmp_path, tokenizer, trained_on):
    folder, other = prepared(tmp_path, tokenizer, [trained_on]), text_of(2, 1200)
    sentences = trained_on.splitlines(keepends=True)
    middle, end = "".join(sentences[300:500]), "".join(sentences[1090:])
    found = fractions(folder, tokenizer, [trained_on], [other], [middle], [end], [middle + text_of(3, 600)], [""])
    assert found[0] == pytest.approx(0.9, abs=0.02)
    assert found[2] == pytest.approx(1, abs=0.05)
    assert found[4] == pytest.approx(0.25, abs=0.03)
    assert [found[place] for place in (1, 3, 5)] == [0, 0, 0]


def test_short_documents_in_another_order(tmp_path, tokenizer, trained_on):
    if tokenizer.start_of_text is None:
        pytest.skip("nothing tells documents apart")
    sentences = trained_on.splitlines(keepends=True)
    folder = prepared(tmp_path, tokenizer, sentences, "0")
    seen, new = random.Random(4).sample(sentences, 200), text_of(5, 200).splitlines(keepends=True)
    assert fractions(folder, tokenizer, seen, new, [*seen, *new]) == [
        pytest.approx(1, abs=0.02), 0, pytest.approx(0.5, abs=0.02),
    ]  # fmt: skip


def test_short_documents_that_begin_where_two_blocks_overlap(tmp_path, tokenizer):
    words = text_of(6, 3200).split()
    documents = [" ".join(words[start : start + 2]) + "\n" for start in range(0, len(words), 2)]
    folder = prepared(tmp_path, tokenizer, documents, "0")
    assert read_manifest(folder).splits["train"].tokens > 65_536  # more than are hashed at once
    expected = 0 if tokenizer.start_of_text is None else pytest.approx(1, abs=0.02)
    assert fractions(folder, tokenizer, documents[:300]) == [expected]


def test_of_a_large_corpus_parts_are_read(tmp_path, tokenizer, trained_on, monkeypatch):
    folder = prepared(tmp_path, tokenizer, [trained_on], "0")
    monkeypatch.setattr(overlap, "_MOST_READ", 8192)
    monkeypatch.setattr(overlap, "_PART", 256)
    found = fractions(folder, tokenizer, [trained_on], [text_of(2, 1200)])
    assert found == [pytest.approx(1, abs=0.15), 0]


def test_what_is_compared_is_bounded(tmp_path, tokenizer, trained_on, monkeypatch):
    monkeypatch.setattr(overlap, "_MOST_TOKENS", 500)
    folder = prepared(tmp_path, tokenizer, [trained_on], "0")
    many = trained_on.splitlines(keepends=True)
    overlapping = TrainingOverlap(tokenizer)
    for sentence in many:
        overlapping.add(0, np.array(tokenizer.encode(sentence)), starts_document=sentence is many[0])
    assert 500 <= sum(map(len, overlapping._texts[0].parts)) < 600
    assert overlapping.measure(folder)[0].fraction > 0.8


def test_text_with_the_phrases_of_its_source_is_not_training_text(tmp_path, tokenizer):
    """A phrase of each passage is in others too, as a licence is in each file of a program."""
    phrases = [text_of(seed, 6) for seed in range(40)]
    passages = [phrases[number % 40] + text_of(100 + number, 30) for number in range(200)]
    folder = prepared(tmp_path, tokenizer, ["".join(passages[:100])])
    repeated = read_manifest(folder).repetition.held_out
    assert 0.02 < repeated < 0.2
    found = TrainingOverlap(tokenizer)
    short, seen = passages[150], "".join(passages[:20])
    for number, text in enumerate(["".join(passages[100:]), short, "".join(passages[100:140]) + seen]):
        found.add(number, np.array(tokenizer.encode(text)), starts_document=True)
    same_source, of_one_passage, leaked = found.measure(folder).values()
    assert same_source.fraction == pytest.approx(repeated, abs=0.05)
    assert [same_source.is_notable, of_one_passage.is_notable, leaked.is_notable] == [False, False, True]


@pytest.mark.parametrize(
    ("usual", "least"), [(0.0, 0.01), (0.009, 0.01), (0.02, 0.02), (0.3, 0.3), (0.5, 0.5), (0.51, 0.5), (2.0, 0.5)]
)
def test_what_is_notable_is_more_than_usual_and_a_hundredth_and_half_always_is(usual, least):
    assert [Overlap(fraction, usual).is_notable for fraction in (least - 1e-9, least)] == [False, True]


def test_usual_is_twice_what_the_held_out_split_repeats_and_three_standard_errors():
    assert Overlap.compared_with(0.2, 0.7, samples=100) == Overlap(0.7, pytest.approx(2 * 0.2 + 3 * 0.04))
    assert Overlap.compared_with(0.0, 0.7, samples=100).usual == 0


def test_a_held_out_split_that_was_trained_on(tmp_path, tokenizer, trained_on):
    sentences = trained_on.splitlines(keepends=True)
    for name in ("base", "seen", "new"):
        (tmp_path / name).mkdir()
    base = prepared(tmp_path / "base", tokenizer, [trained_on], "0")
    seen, new = ["".join(sentences[300:600])], [text_of(7, 300)]
    for name, documents, expected in (("seen", seen, 1), ("new", new, 0)):
        found = TrainingOverlap(tokenizer)
        found.add_held_out(0, prepared(tmp_path / name, tokenizer, documents, "0.5"))
        assert found.measure(base)[0].fraction == pytest.approx(expected, abs=0.05)


SEPARATOR = "<|endoftext|>"


class Held:
    """Tokens in memory."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        assert 0 <= start <= stop <= len(self.ids)
        return self.ids[start:stop]


def split(documents: list[list[int]], *, before: int = 0) -> TokenizedDocuments:
    """A split of these documents; `before` tokens stand in front of the first and belong to none."""
    ids = [7] * before + [token for document in documents for token in document]
    edges = before + np.cumsum([0, *map(len, documents)])
    return TokenizedDocuments(Held(np.array(ids, dtype=np.int64)), edges)


def slowly(train: list[list[int]], held_out: list[list[int]], window: int) -> tuple[int, float]:
    """What is documented, with sets of tuples."""
    joined = [token for document in train for token in document]
    windows = {tuple(joined[i : i + window]) for i in range(len(joined) - window + 1)}
    whole = {tuple(document) for document in train}
    found = tokens = 0
    for document in held_out:
        for place in range(len(document)):
            begin = min(place, len(document) - window)
            short = len(document) < window
            found += tuple(document) in whole if short else tuple(document[begin : begin + window]) in windows
        tokens += len(document)
    documents = [tuple(document) for document in train + held_out]
    return len(documents) - len(set(documents)), found / tokens


@pytest.mark.parametrize("block", [16, 37, 1 << 16])
@pytest.mark.parametrize("seed", range(8))
def test_equals_a_search_with_sets(block, seed, monkeypatch):
    monkeypatch.setattr(repetition, "_BLOCK", block)
    monkeypatch.setattr(repetition, "_MOST_HELD", block // 2)  # the hashes of more documents are in a file
    draw = random.Random(seed)

    def documents(number: int) -> list[list[int]]:
        return [draw.choices((1, 2), weights=(5, 1), k=draw.randint(1, 60)) for _ in range(number)]

    train, held_out, window = documents(40), documents(15), draw.choice([1, 3, 8, 20, 50])
    held_out += [train[3], train[5], train[5]]
    before = draw.choice([0, 1])
    found = measure_repetition(split(train, before=before), split(held_out, before=before), vocab_size=9, window=window)
    # The token before the first document is trained on too, but no held-out document has it.
    assert (found.documents, found.held_out) == slowly(train, held_out, window)
    assert found.window == window


def test_many_places_are_sampled_evenly(monkeypatch):
    monkeypatch.setattr(repetition, "_SAMPLES", 500)
    draw = np.random.default_rng(0)
    copied, new, other = (draw.integers(0, 1000, size).tolist() for size in (30_000, 70_000, 50_000))
    found = measure_repetition(
        split([other, copied]), split([new[:10_000], copied, new[10_000:]]), vocab_size=1000, window=10
    )
    assert found.held_out == pytest.approx(0.3, abs=0.01)


def test_a_split_may_be_empty():
    assert measure_repetition(split([[1, 2], [1, 2]]), split([]), vocab_size=3, window=2) == Repetition(1, None, 2)


# Through the whole preparation.


def text(seed: int, lines: int) -> str:
    """Random lines of 40 characters."""
    draw = random.Random(seed)
    return "".join("".join(draw.choices("abcdefghijklm     ", k=39)) + "\n" for _ in range(lines))


def made(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=400)  # type: ignore[arg-type]
    sample = text(0, 300)
    return training.train([sample], config, corpus_bytes=len(sample)).tokenizer


def prepared_texts(
    folder: Path, tokenizer: Tokenizer, train: list[str], held_out: list[str] | None = None
) -> Repetition:
    """What is found in a corpus of documents that is prepared_texts, and then read again."""
    for name, texts in (("train", train), ("held-out", held_out or [])):
        (folder / f"{name}.txt").write_text(f"{SEPARATOR}\n".join(texts))
    validation = "0" if held_out is None else str(folder / "held-out.txt")
    sources = [TextFile("train.txt", folder / "train.txt")]
    manifest = prepare(sources, tokenizer, DataConfig(validation=validation), folder / "out").manifest
    assert shards.read_manifest(folder / "out") == manifest
    assert manifest.repetition is not None
    return manifest.repetition


class TestPreparedCorpora:
    @pytest.fixture(params=("char", "byte", "bpe", "gpt2", "llama2"))
    def tokenizer(self, request) -> Tokenizer:
        """Those of characters have no special tokens, that like Llama's has two to a document, the others one."""
        kind: str = request.param
        if kind in ("gpt2", "llama2"):
            return Tokenizer({"gpt2": gpt2_like, "llama2": llama2_like}[kind]())
        return made(kind)

    @pytest.mark.parametrize("copies", [0, 1, 5])
    def test_copied_documents_are_counted(self, tokenizer, copies, tmp_path):
        texts = [text(seed, 1 + 8 * (seed % 3)) for seed in range(10)]
        assert prepared_texts(tmp_path, tokenizer, texts + texts[:copies] * 2).documents == 2 * copies

    def test_copies_in_the_other_split_count_too(self, tokenizer, tmp_path):
        texts = [text(seed, 4) for seed in range(10)]
        assert prepared_texts(tmp_path, tokenizer, texts, [texts[2], text(99, 4), texts[7]]).documents == 2

    def test_held_out_text_from_the_training_split_is_found(self, tokenizer, tmp_path):
        texts = [text(seed, 60) for seed in range(10)]
        middle = "".join(texts[4].splitlines(keepends=True)[7:50])
        share = prepared_texts(tmp_path, tokenizer, texts, [texts[0], middle, texts[6]]).held_out
        assert share is not None
        assert share > 1 - 1.2 * 200 / (163 * 40)  # the window at the end of the middle may be another

    def test_short_documents_are_found_whole(self, tokenizer, tmp_path):
        texts = [text(seed, 1) for seed in range(40)]
        share = prepared_texts(tmp_path, tokenizer, texts[:30], texts[20:]).held_out
        assert share == pytest.approx(0.5, abs=0.05)

    def test_other_text_is_not_found(self, tokenizer, tmp_path):
        texts = [text(seed, 60) for seed in range(12)]
        assert prepared_texts(tmp_path, tokenizer, texts[:9], texts[9:]).held_out == 0

    def test_the_size_of_shards_and_blocks_does_not_matter(self, tokenizer, tmp_path, monkeypatch):
        texts = [text(seed, 20) for seed in range(9)]
        arguments = tokenizer, [*texts[:6], texts[2]], [*texts[6:], texts[1], texts[4][:400]]
        (tmp_path / "whole").mkdir()
        (tmp_path / "parts").mkdir()
        whole = prepared_texts(tmp_path / "whole", *arguments)
        monkeypatch.setattr(repetition, "_BLOCK", 1000)
        monkeypatch.setitem(shards.ShardWriter.__init__.__kwdefaults__, "shard_tokens", 777)
        assert prepared_texts(tmp_path / "parts", *arguments) == whole
        assert (tmp_path / "parts" / "out" / "train-00001.npy").exists()


def numbered(sides) -> list[SentencePair]:
    return [SentencePair(*pair, line) for line, pair in enumerate(zip(*sides, strict=True), 1)]


def test_the_fraction_of_pairs_is_that_of_the_same_texts_in_either_direction(tmp_path):
    sides = lines(60)
    prepared = prepare_pairs(corpus(tmp_path, *sides, validation="0.2"), BYTES, PLAIN, root=tmp_path)
    held_out = {(source, target) for source, target, _ in open_pairs(prepared.folder).validation_texts()}
    pairs, others = numbered(sides), numbered(lines(20, seed=5))
    swapped = [SentencePair(*pair[:2][::-1], pair.line) for pair in pairs[:30]]
    crossed = [SentencePair(pair.source, other.target, 1) for pair, other in itertools.pairwise(pairs)]
    files = [pairs, [*pairs[10:30], *others], swapped, crossed, others]
    found = PairOverlap()
    for number, file in enumerate(files):
        found.add(number, [*file, SentencePair("", "", 1)])
    trained = {pair[:2] for pair in pairs} - held_out
    trained |= {pair[::-1] for pair in trained}
    expected = [sum(pair[:2] in trained for pair in file) / len(file) for file in files]
    measured = found.measure(prepared.folder)
    assert [each.fraction for each in measured.values()] == pytest.approx(expected)
    assert [each.is_notable for each in measured.values()] == [True, True, True, False, False]
