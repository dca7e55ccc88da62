"""Tokens are the same bytes however many parts and processes make them, and whatever interrupts these."""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import prepare_corpus as preparation
from lm.corpus import text_corpus
from lm.corpus.prepare_corpus import prepare_corpus
from lm.corpus.text_corpus import Corpus, scan_corpus
from lm.errors import InputError
from lm.text.text_files import find_text_files
from lm.tokenizer import training
from tests.forked import Forked
from tests.lm.corpus.preparing import byte_tokenizer, written
from tests.lm.tokenizers_elsewhere import TEXT
from tests.waiting import wait_until

SEPARATOR = "<|endoftext|>\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def texts(count: int, *, seed: int = 0) -> str:
    words = TEXT.split()
    drawn = random.Random(seed)
    return SEPARATOR.join(" ".join(drawn.choices(words, k=drawn.randint(1, 60))) + "\n" for _ in range(count))


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(text_corpus, "CHUNK_BYTES", 3000)


@pytest.mark.parametrize("kind", ["many documents", "few", "files", "examples", "few examples"])
def test_parts_join_to_what_one_makes(kind, elsewhere, tmp_path, monkeypatch):
    if elsewhere.end_of_text is None and "examples" in kind:
        return
    found = written(tmp_path, texts(120), "", texts(3, seed=1), texts(40, seed=2))
    config = DataConfig(validation="0.2")
    if kind == "few":
        found = found[1:3]
    if kind == "files":
        config = DataConfig(validation=str(found[3].path))
    if "examples" in kind:
        lines = [json.dumps({"prompt": text, "completion": "b"}) for text in texts(190).split(SEPARATOR)]
        for number, own in enumerate((lines[:20], lines[20:], lines[5:9])):
            (tmp_path / f"{number}.jsonl").write_text("\n".join(own[:10] if kind.startswith("few") else own))
        config = DataConfig(validation="0.2", supervised=True)
        found = find_text_files([str(tmp_path)], DataConfig(supervised=True))
    corpus = scan_corpus(found, config)
    whole = prepare_corpus(corpus, elsewhere, folder=tmp_path / "whole")
    monkeypatch.setattr(text_corpus, "CHUNK_BYTES", 3000)
    assert len(text_corpus.split_into_chunks(corpus, preparation.choose_held_out_text(corpus))) > 1 or kind.startswith(
        "few"
    )
    prepare_corpus(corpus, elsewhere, folder=tmp_path / "parts", processes=1)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert whole.chunks_reused == 0


@pytest.mark.usefixtures("small_parts")
def test_processes_make_what_one_makes_and_tell_of_progress(gpt2, tmp_path):
    corpus = scan_corpus(written(tmp_path, texts(150), texts(50, seed=1)), DataConfig())
    prepare_corpus(corpus, gpt2, folder=tmp_path / "one", processes=1)
    seen: list[tuple[int, int | None]] = []
    prepare_corpus(
        corpus, gpt2, folder=tmp_path / "two", processes=2, progress=lambda done, total: seen.append((done, total))
    )
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert seen == sorted(seen)
    assert seen[-1] == (corpus.bytes, corpus.bytes)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"one", "two"}


@pytest.mark.usefixtures("small_parts")
def test_an_error_in_a_process_names_the_file_and_leaves_nothing_begun(tmp_path):
    text = texts(60)
    config = TokenizerConfig(kind="char")
    tokenizer = training.train([text], config, corpus_bytes=len(text)).tokenizer
    corpus = scan_corpus(written(tmp_path, text, text.replace("a", "Ω", 1), text), DataConfig())
    with pytest.raises(InputError, match=r"corpus-1\.txt: character 'Ω'"):
        prepare_corpus(corpus, tokenizer, folder=tmp_path / "out", processes=2)
    assert not list(tmp_path.glob(".out.parts/*.new-*"))
    assert not list(tmp_path.glob(".out.partial-*"))


def prepare_small_parts(text: str, folder: str) -> None:
    text_corpus.CHUNK_BYTES = 3000
    os.environ["LM_CACHE"] = f"{folder}/cache"
    sys.exit(run(["prepare", text, "-o", f"{folder}/out", "--tokenizer", "byte", "--processes", "2"]))


@pytest.mark.usefixtures("small_parts")
def test_stdin_reaches_processes_too(tmp_path):
    (tmp_path / "text").write_text(texts(100))
    with (tmp_path / "text").open("rb") as stdin, Forked(prepare_small_parts, "-", tmp_path, stdin=stdin) as process:
        assert process.wait() == 0
    prepare_corpus(
        scan_corpus(find_text_files([str(tmp_path / "text")]), DataConfig()), byte_tokenizer(), folder=tmp_path / "a"
    )
    assert (tmp_path / "out" / "train-00000.npy").read_bytes() == (tmp_path / "a" / "train-00000.npy").read_bytes()


class _InterruptionError(Exception):
    pass


def interrupted(corpus: Corpus, out: Path, *, after: int) -> None:
    """Begin to prepare, and stop when some text is done."""

    def stop(done: int, total: int | None) -> None:
        if done > after:
            raise _InterruptionError

    with pytest.raises(_InterruptionError):
        prepare_corpus(corpus, byte_tokenizer(), folder=out, processes=1, progress=stop)


@pytest.mark.usefixtures("small_parts")
class TestInterruption:
    @pytest.fixture
    def corpus(self, tmp_path) -> Corpus:
        return scan_corpus(written(tmp_path, texts(150)), DataConfig())

    @pytest.fixture
    def made(self, monkeypatch) -> Iterator[list[str]]:
        """The names of the parts that are made."""
        names: list[str] = []
        write = preparation.write_chunk_record

        def noted(folder: Path, splits) -> None:
            names.append(folder.name.partition(".")[0])
            write(folder, splits)

        monkeypatch.setattr(preparation, "write_chunk_record", noted)
        return names

    def test_finished_parts_are_not_made_again(self, corpus, tmp_path, made):
        interrupted(corpus, tmp_path / "out", after=8000)
        first = len(made)
        assert first >= 2
        assert not (tmp_path / "out").exists()
        found = prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "out", processes=1)
        assert (found.chunks_reused, found.reused) == (first, False)
        assert (
            len(made)
            == len(set(made))
            == len(text_corpus.split_into_chunks(corpus, preparation.choose_held_out_text(corpus)))
        )
        prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "whole", processes=1)
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")
        assert not list(tmp_path.glob(".*"))

    @pytest.mark.parametrize("damage", ["short", "changed", "missing", "no record", "empty record"])
    def test_a_damaged_part_is(self, damage, corpus, tmp_path, made):
        interrupted(corpus, tmp_path / "out", after=8000)
        folder = tmp_path / ".out.parts" / made[0]
        path = folder / ("part.json" if "record" in damage else "train-tokens.npy")
        data = path.read_bytes()
        path.write_bytes(data[:-1] if damage == "short" else data[:-1] + b"?" if damage == "changed" else b"")
        if damage in ("missing", "no record"):
            path.unlink()
        before = len(made)
        found = prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "out", processes=1)
        assert found.chunks_reused == before - 1
        assert made.count(made[0]) == 2
        prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "whole", processes=1)
        assert contents(tmp_path / "out") == contents(tmp_path / "whole")

    def test_other_text_finds_what_is_still_the_same(self, corpus, tmp_path, made):
        interrupted(corpus, tmp_path / "out", after=8000)
        before = len(made)
        found = written(tmp_path, texts(150), texts(80, seed=3))
        assert (
            prepare_corpus(scan_corpus(found, DataConfig()), byte_tokenizer(), folder=tmp_path / "out").chunks_reused
            == before
        )

    def test_other_settings_do_not(self, corpus, gpt2, tmp_path):
        interrupted(corpus, tmp_path / "out", after=8000)
        assert prepare_corpus(corpus, gpt2, folder=tmp_path / "out", processes=1).chunks_reused == 0
        assert not list(tmp_path.glob(".*"))

    def test_in_the_cache_it_continues_too(self, corpus, tmp_path):
        def stop(done: int, total: int | None) -> None:
            if done > 8000:
                raise _InterruptionError

        with pytest.raises(_InterruptionError):
            prepare_corpus(corpus, byte_tokenizer(), root=tmp_path / "cache", processes=1, progress=stop)
        assert prepare_corpus(corpus, byte_tokenizer(), root=tmp_path / "cache", processes=1).chunks_reused >= 2

    def test_parts_of_text_that_changed_on_the_way_do_not_stay(self, tmp_path):
        found = written(tmp_path, texts(150))
        corpus = scan_corpus(found, DataConfig())
        found[0].path.write_text(texts(151))
        with pytest.raises(InputError, match=r"corpus-0\.txt: the corpus changed while it was read; try again"):
            prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "out", processes=1)
        assert not list(tmp_path.glob(".*"))

    def test_killed_at_any_moment_it_ends_with_the_same_folder(self, corpus, tmp_path):
        with Forked(prepare_small_parts, tmp_path / "corpus-0.txt", tmp_path) as process:
            wait_until(lambda: list(tmp_path.glob(".out.parts/*/part.json")) or process.poll() is not None)
        prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "out", processes=1)
        prepare_corpus(corpus, byte_tokenizer(), folder=tmp_path / "whole", processes=1)
        names = {path.name for path in (tmp_path / "whole").iterdir()} - {"manifest.json"}  # which names files
        assert all((tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
