"""Which pairs are held out, and which languages they are in."""

import gzip
from pathlib import Path

import pytest

from lm.config.data import DataConfig, ParallelTextConfig
from lm.corpus import parallel_corpus
from lm.corpus.parallel_corpus import ParallelCorpus
from lm.errors import InputError, UsageError
from lm.text.parallel_text import ParallelText, find_parallel_texts
from tests.lm.corpus.parallel_text import lines, write

PLAIN = ParallelTextConfig()
PAIRS = [("Two dogs.", "Zwei Hunde."), ("A\u2028B", "C\x0bD"), ("", "leer"), ("Ende", "end")]


def one_file(folder: Path, name: str, data: str | bytes, config: ParallelTextConfig = PLAIN) -> ParallelText:
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return find_parallel_texts(config, pairs=[str(folder / name)])[0]


def survey(folder: Path, pairs: list[tuple[str, str]], validation: str = "0.1", **values: object) -> ParallelCorpus:
    data = "".join(f"{source}\t{target}\n" for source, target in pairs)
    config = ParallelTextConfig(**values)  # type: ignore[arg-type]
    return parallel_corpus.scan_parallel_corpus(
        [one_file(folder, "all.tsv", data)], DataConfig(validation=validation), config
    )


def test_a_fraction_is_held_out_and_duplicates_stay_together(tmp_path):
    sources, targets = lines(2000)
    pairs = [*zip(sources, targets, strict=True), *zip(sources, targets[::-1], strict=True)]
    split: dict[str, set[str]] = {}
    held = 0
    for item in survey(tmp_path, pairs).split_pairs():
        split.setdefault(item.pair.source, set()).add(item.split)
        held += item.split == "validation"
    assert all(len(names) == 1 for names in split.values())
    assert 0.08 < held / len(pairs) < 0.12


@pytest.mark.parametrize("count", [2, 10, 50])
def test_of_few_pairs_at_least_one_is_held_out(count, tmp_path):
    corpus = survey(tmp_path, list(zip(*lines(count), strict=True)))
    held = [item for item in corpus.split_pairs() if item.split == "validation"]
    assert len(held) == max(1, count // 10)


def test_from_a_hundred_pairs_on_the_fraction_alone_says_how_many_are_held_out(tmp_path):
    for count, fewest in ((99, 1), (100, 0)):
        corpus = survey(tmp_path, list(zip(*lines(count), strict=True)), validation="1e-9")
        assert sum(item.split == "validation" for item in corpus.split_pairs()) == fewest


def test_files_for_validation(tmp_path):
    sources, targets = lines(150)
    train = write(tmp_path, sources[:120], targets[:120])
    held = write(tmp_path, sources[120:], targets[120:], name="held")
    files, validation = (find_parallel_texts(PLAIN, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    corpus = parallel_corpus.scan_parallel_corpus(files, DataConfig(), PLAIN, validation=validation)
    assert corpus.languages == ("en", "de")
    assert corpus.pairs == 150
    assert [item.split for item in corpus.split_pairs()] == ["train"] * 120 + ["validation"] * 30
    one = one_file(tmp_path, "held.tsv", "a\tb\n")
    by_name = parallel_corpus.scan_parallel_corpus(files, DataConfig(validation=one.name), PLAIN)
    assert [item.pair.source for item in by_name.split_pairs() if item.split == "validation"] == ["a"]


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("train.en", "train.de"), ("en", "de")),
        (("a.pt-BR.gz", "b.zh_Hans.txt"), ("pt-BR", "zh_Hans")),
        (("source.txt", "train.de"), (None, "de")),
        (("europarl-v7", "x.1"), (None, None)),
    ],
)
def test_languages_of_file_names(names, languages, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(b"a\n") if name.endswith(".gz") else b"a\n")
    files = find_parallel_texts(PLAIN, source=[str(tmp_path / names[0])], target=[str(tmp_path / names[1])])
    assert parallel_corpus.scan_parallel_corpus(files, DataConfig(validation="0"), PLAIN).languages == languages


def test_what_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="1 files of sources and 0 of targets"):
        find_parallel_texts(PLAIN, source=[write(tmp_path, ["a"], ["b"])[0]])
    with pytest.raises(InputError, match="there are no pairs"):
        survey(tmp_path, [("", "")])
    with pytest.raises(UsageError, match="in both directions needs two languages"):
        survey(tmp_path, [("a", "b")], bidirectional=True)
    with pytest.raises(UsageError, match="one vocabulary"):
        ParallelTextConfig(bidirectional=True, separate_vocabularies=True)
    with pytest.raises(UsageError, match=r"source_language is a code such as de or pt-BR, not 'English!'"):
        ParallelTextConfig(source_language="English!")


@pytest.mark.parametrize("kept", [0, 3, 30])
def test_how_many_held_out_pairs_are_among_those_to_train_on(kept, tmp_path):
    sources, targets = lines(150)
    train = write(tmp_path, sources[:120], targets[:120])
    both = [*range(kept), *range(120, 150 - kept)]
    held = write(tmp_path, [sources[at] for at in both], [targets[at] for at in both], name="held")
    files, validation = (find_parallel_texts(PLAIN, source=[pair[0]], target=[pair[1]]) for pair in (train, held))
    corpus = parallel_corpus.scan_parallel_corpus(files, DataConfig(), PLAIN, validation=validation)
    trained = set(zip(sources[:120], targets[:120], strict=True))
    different = {(sources[at], targets[at]) for at in both}
    assert corpus.seen_in_training == len(different & trained) / len(different)
    assert corpus.copies == ()


def test_a_text_that_is_its_own_translation_is_known_by_its_bytes(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("one\ntwo\n")
    texts = find_parallel_texts(PLAIN, source=[str(tmp_path / "a.en")], target=[str(tmp_path / "a.de")])
    assert parallel_corpus.scan_parallel_corpus(texts, DataConfig(), PLAIN).copies == (texts[0].name,)


def test_stdin_stands_for_one_file_only():
    for names in ({"source": ["-"], "target": ["-"]}, {"source": ["a"], "target": ["-"], "heads": ["-"]}):
        with pytest.raises(UsageError, match=r"stdin \(-\) stands for one file only"):
            find_parallel_texts(PLAIN, **names)
