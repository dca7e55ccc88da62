from __future__ import annotations

import json
import os
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.data import corpus, encoding
from lm.data.manifest import SplitName
from lm.data.shards import open_split
from lm.data.windows.prepare import Prepared, prepare, prepare_cached
from lm.errors import InputError, UsageError
from lm.files import cache_root
from lm.text import files
from lm.text.files import TextFile, text_files
from lm.tokenizer import pieces, training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.full_disk import full_disk
from tests.lm.tokenizers_elsewhere import TEXT

SEPARATOR = "<|endoftext|>"
WHOLE = DataConfig(validation="0")


def sources(folder: Path, *texts: str) -> list[TextFile]:
    found = []
    for number, text in enumerate(texts):
        path = folder / f"corpus-{number}.txt"
        path.write_bytes(text.encode())
        found.append(TextFile(path.name, path))
    return found


def ids(prepared: Prepared, split: SplitName = "train") -> list[int]:
    tokens = open_split(prepared.folder, split)
    return tokens.read(0, len(tokens)).tolist()


def byte_tokenizer() -> Tokenizer:
    return training.train([], TokenizerConfig(kind="byte"), corpus_bytes=0).tokenizer


def char_tokenizer(text: str) -> Tokenizer:
    return training.train([text], TokenizerConfig(kind="char"), corpus_bytes=len(text.encode())).tokenizer


class TestTokens:
    def test_are_those_of_whole_documents_between_start_and_end(self, elsewhere: Tokenizer, tmp_path: Path) -> None:
        texts = [TEXT * 3, "one\n", TEXT[::-1], "two"]
        prepared = prepare(
            sources(tmp_path, f"{SEPARATOR}\n".join(texts[:3]), texts[3]), elsewhere, WHOLE, tmp_path / "out"
        )
        start, end = elsewhere.start_of_text, elsewhere.end_of_text
        expected: list[int | None] = []
        for text in texts:
            expected += [start, *elsewhere.encode(text)] + ([end] if start != end else [])
        assert ids(prepared) == expected + ([end] if start == end else [])

    def test_long_documents_in_pieces_are_the_same(
        self, elsewhere: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK_BYTES", 999)
        monkeypatch.setattr(encoding, "GROUP_CHARACTERS", 3000)
        monkeypatch.setattr(pieces.pieces, "__kwdefaults__", {"limit": 700})
        prepared = prepare(sources(tmp_path, TEXT * 40), elsewhere, WHOLE, tmp_path / "out")
        assert ids(prepared)[1:-1] == elsewhere.encode(TEXT * 40)

    def test_without_special_tokens_there_is_only_text(self, tmp_path: Path) -> None:
        prepared = prepare(sources(tmp_path, f"ab\n{SEPARATOR}\nba"), char_tokenizer("ab\n"), WHOLE, tmp_path / "out")
        assert ids(prepared) == [1, 2, 0, 2, 1]

    def test_spelled_special_tokens_stay_text(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        prepared = prepare(sources(tmp_path, f"a {SEPARATOR} b"), gpt2, WHOLE, tmp_path / "out")
        special = gpt2.end_of_text
        assert ids(prepared) == [special, *gpt2.encode(f"a {SEPARATOR} b"), special]

    def test_a_large_vocabulary_takes_uint32(self, tmp_path: Path) -> None:
        tokenizer = char_tokenizer("".join(map(chr, range(0x10000, 0x10000 + 70_000))))
        prepared = prepare(sources(tmp_path, chr(0x10000 + 69_999) * 3), tokenizer, WHOLE, tmp_path / "out")
        assert np.load(prepared.folder / "train-00000.npy").dtype == np.uint32
        assert ids(prepared) == [69_999] * 3

    def test_an_unseen_character_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"corpus-1\.txt: character 'Z'"):
            prepare(sources(tmp_path, "abc", "abZ"), char_tokenizer("abc"), WHOLE, tmp_path / "out")
        at_a_cut = "abc " * (pieces.PIECE_CHARACTERS // 4) + "Z" + " abc" * 1000
        with pytest.raises(InputError, match=r"corpus-0\.txt: character 'Z'"):
            prepare(sources(tmp_path, at_a_cut), char_tokenizer("abc "), WHOLE, tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestManifest:
    def test_says_what_there_is(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        found = sources(tmp_path, f"é\n{SEPARATOR}\ntwo", "three")
        prepared = prepare(found, gpt2, WHOLE, tmp_path / "out")
        record = prepared.manifest.splits["train"]
        assert (record.documents, record.bytes, record.tokens) == (3, 3 + 3 + 5, len(ids(prepared)))
        assert prepared.manifest.tokenizer == gpt2.sha256 == Tokenizer.load(prepared.folder / "tokenizer.json").sha256
        assert [source.path for source in prepared.manifest.sources] == ["corpus-0.txt", "corpus-1.txt"]
        assert json.loads((prepared.folder / "manifest.json").read_text())["format_version"] == 1

    def test_progress_ends_with_all_bytes(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        prepare(sources(tmp_path, TEXT), gpt2, DataConfig(), tmp_path / "out", progress=lambda *now: seen.append(now))
        assert seen[-1] == (len(TEXT.encode()),) * 2
        assert seen == sorted(seen)


class TestValidation:
    def test_few_documents_are_divided_at_the_end_of_the_text_as_in_nanogpt(self, tmp_path: Path) -> None:
        text = "".join(random.Random(1).choices("abc \n", k=1119))
        prepared = prepare(sources(tmp_path, text), char_tokenizer(text), DataConfig(), tmp_path / "out")
        data = char_tokenizer(text).encode(text)
        assert ids(prepared) == data[: int(len(data) * 0.9)]
        assert ids(prepared, "validation") == data[int(len(data) * 0.9) :]

    @pytest.mark.parametrize("fraction", ["0.05", "0.3", "0.5", "0.81", "1/3"])
    @pytest.mark.parametrize("block", [1, 4, 1 << 18])
    def test_the_boundary_never_splits_a_character(
        self, fraction: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK_BYTES", block)
        texts = ["한국어 é", "🙂🙂", "plain text", "ü"]
        prepared = prepare(
            sources(tmp_path, *texts), byte_tokenizer(), DataConfig(validation=fraction), tmp_path / "out"
        )
        train, held_out = (bytes(i for i in ids(prepared, split) if i < 256) for split in ("train", "validation"))
        assert train.decode() + held_out.decode() == "".join(texts)
        total = len(train) + len(held_out)
        least = total * (1 - float(Fraction(fraction)))
        assert least - 1 < len(train) < least + 4
        splits = prepared.manifest.splits
        assert splits["train"].bytes + splits["validation"].bytes == total

    def test_many_documents_are_held_out_by_content(self, tmp_path: Path) -> None:
        texts = [f"document {number}\n" for number in range(1000)]
        first = prepare(
            sources(tmp_path, f"{SEPARATOR}\n".join([*texts, *texts])), byte_tokenizer(), DataConfig(), tmp_path / "a"
        )
        held_out = bytes(i for i in ids(first, "validation") if i < 256).decode().splitlines()
        train = bytes(i for i in ids(first) if i < 256).decode().splitlines()
        assert 140 < len(held_out) < 260
        assert not set(held_out) & set(train)
        random.Random(2).shuffle(texts)
        again = prepare(sources(tmp_path, f"{SEPARATOR}\n".join(texts)), byte_tokenizer(), DataConfig(), tmp_path / "b")
        assert set(bytes(i for i in ids(again, "validation") if i < 256).decode().splitlines()) == set(held_out)

    def test_files_of_its_own_are_left_out_of_training(self, tmp_path: Path) -> None:
        found = sources(tmp_path, "train", "held out")
        config = DataConfig(validation=str(found[1].path))
        prepared = prepare(found, byte_tokenizer(), config, tmp_path / "out")
        assert bytes(ids(prepared)[1:-1]) == b"train"
        assert bytes(ids(prepared, "validation")[1:-1]) == b"held out"
        assert [record.sha256 for record in prepared.manifest.validation_sources]

    def test_none(self, tmp_path: Path) -> None:
        prepared = prepare(sources(tmp_path, "all of it"), byte_tokenizer(), WHOLE, tmp_path / "out")
        assert len(open_split(prepared.folder, "validation")) == 0
        assert bytes(ids(prepared)[1:-1]) == b"all of it"

    @pytest.mark.parametrize("validation", ["1", "1.5", "-0.1"])
    def test_a_fraction_out_of_range_is_refused(self, validation: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--validation"):
            prepare(sources(tmp_path, "text"), byte_tokenizer(), DataConfig(validation=validation), tmp_path / "out")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="nowhere"):
            prepare(sources(tmp_path, "text"), byte_tokenizer(), DataConfig(validation="nowhere"), tmp_path / "out")

    @pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("x", "left to train on")])
    def test_nothing_to_train_on_is_an_error(self, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=message):
            prepare(sources(tmp_path, text), byte_tokenizer(), DataConfig(), tmp_path / "out")


class TestReuse:
    def test_same_inputs_are_found_whatever_the_names(self, tmp_path: Path) -> None:
        tokenizer = byte_tokenizer()
        first = prepare_cached(sources(tmp_path, "some text"), tokenizer, DataConfig(), root=tmp_path / "cache")
        (tmp_path / "other.txt").write_text("some text")
        other = text_files([str(tmp_path / "other.txt")])
        again = prepare_cached(other, tokenizer, DataConfig(validation="1/10"), root=tmp_path / "cache")
        assert (first.reused, again.reused) == (False, True)
        assert again.folder == first.folder
        assert again.manifest == first.manifest

    def test_other_inputs_are_not(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        def run(text: str, tokenizer: Tokenizer, **config: str) -> Path:
            found = prepare_cached(sources(tmp_path, text), tokenizer, DataConfig(**config), root=tmp_path / "cache")
            assert not found.reused
            return found.folder

        folders = [
            run("some text", byte_tokenizer()),
            run("other text", byte_tokenizer()),
            run("some text", gpt2),
            run("some text", byte_tokenizer(), validation="0.2"),
            run("some text", byte_tokenizer(), separator="---"),
        ]
        assert len(set(folders)) == 5

    @pytest.mark.parametrize("victim", ["manifest.json", "train-00000.npy"])
    def test_an_incomplete_folder_is_made_again(self, victim: str, tmp_path: Path) -> None:
        first = prepare_cached(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        (first.folder / victim).unlink()
        again = prepare_cached(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        assert not again.reused
        assert bytes(ids(again)[1:-1]) == b"some text"
        assert [path.name for path in again.folder.parent.iterdir()] == [again.folder.name]

    def test_nothing_half_made_is_left_where_it_fails(self, tmp_path: Path) -> None:
        def fail(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, tmp_path / "out" / "a", progress=fail)
        assert list((tmp_path / "out").iterdir()) == []

    def test_what_a_killed_process_left_in_the_cache_goes(self, tmp_path: Path) -> None:
        left = tmp_path / "cache" / "tokens" / ".0123.partial-4567"
        left.mkdir(parents=True)
        (left / "train-00000.npy").write_bytes(b"half")
        os.utime(left, (0, 0))
        made = prepare_cached(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, root=tmp_path / "cache")
        assert list(left.parent.iterdir()) == [made.folder]

    def test_a_named_folder_is_reused_or_kept(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        found = sources(tmp_path, "some text")
        assert not prepare(found, byte_tokenizer(), WHOLE, out).reused
        assert prepare(found, byte_tokenizer(), WHOLE, out).reused
        other = sources(tmp_path, "other text")
        with pytest.raises(InputError, match="--force"):
            prepare(other, byte_tokenizer(), WHOLE, out)
        assert bytes(ids(prepare(other, byte_tokenizer(), WHOLE, out, force=True))[1:-1]) == b"other text"

    def test_a_folder_with_something_else_is_never_replaced(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
        with pytest.raises(InputError, match="holds no prepared tokens"):
            prepare(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True)
        assert (out / "thesis.tex").read_text() == "precious"

    def test_a_checkpoint_is_something_else_too(self, tmp_path: Path) -> None:
        """It has a manifest and a tokenizer, as prepared tokens have."""
        out = tmp_path / "out"
        out.mkdir()
        for name in ("manifest.json", "tokenizer.json", "model.safetensors"):
            (out / name).write_text("{}")
        with pytest.raises(InputError, match="holds no prepared tokens"):
            prepare(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True)
        (out / "model.safetensors").unlink()  # what is left may be damaged tokens, which --force replaces
        assert not prepare(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, out, force=True).reused

    def test_a_link_to_an_empty_folder_stays_one(self, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "there")
        prepare(sources(tmp_path, "some text"), byte_tokenizer(), WHOLE, tmp_path / "out")
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "there" / "manifest.json").is_file()
        assert not list(tmp_path.glob(".*"))

    def test_a_full_disk_is_told_of_by_file_and_leaves_nothing(self, tmp_path: Path) -> None:
        found, tokenizer = sources(tmp_path, "some text" * 1000), byte_tokenizer()
        with full_disk(after=1000), pytest.raises(OSError, match=r"File too large: '.*train-00000\.npy'"):
            prepare(found, tokenizer, WHOLE, tmp_path / "out")
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]

    def test_a_corpus_that_changes_on_the_way_is_noticed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = sources(tmp_path, "some text")
        surveyed = corpus.survey(found, WHOLE)
        monkeypatch.setattr(corpus, "survey", lambda *_: surveyed)
        found[0].path.write_text("some longer text")
        with pytest.raises(InputError, match=r"corpus-0\.txt: the corpus changed"):
            prepare(found, byte_tokenizer(), WHOLE, tmp_path / "out")


class TestCache:
    @pytest.mark.parametrize(
        ("variables", "expected"),
        [({"LM_CACHE": "/a"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/lm"), ({"HOME": "/c"}, "/c/.cache/lm")],
    )
    def test_root(self, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LM_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert cache_root() == Path(expected)

    def test_a_tokenizer_is_trained_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
        surveyed = corpus.survey(sources(tmp_path, TEXT), WHOLE)
        first = corpus.train_tokenizer(surveyed, TokenizerConfig(vocab_size=300))
        monkeypatch.setattr(training, "train", None)
        assert corpus.train_tokenizer(surveyed, TokenizerConfig(vocab_size=300)).sha256 == first.sha256
        with pytest.raises(TypeError):
            corpus.train_tokenizer(surveyed, TokenizerConfig(vocab_size=301))


@pytest.mark.parametrize("supervised", [False, True])
def test_all_is_on_the_disk_before_the_folder_has_its_name(tmp_path: Path, disk, supervised: bool) -> None:
    lines = (json.dumps({"text": str(number), "prompt": str(number), "completion": "b"}) for number in range(40))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    found = text_files([str(tmp_path / "corpus.jsonl")], supervised=supervised)
    prepare(found, byte_tokenizer(), DataConfig(validation="0.1", supervised=supervised), tmp_path / "out")
    assert disk.synced_before("out") == {"out"} | {path.name for path in (tmp_path / "out").iterdir()}


def test_an_empty_folder_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made = prepare(sources(tmp_path, TEXT), byte_tokenizer(), WHOLE, tmp_path / "out")
    assert not made.reused
    assert prepare(sources(tmp_path, TEXT), byte_tokenizer(), WHOLE, tmp_path / "out").reused
