"""Tokens are those of whole documents, each in the split that it belongs to."""

import json
import random
from fractions import Fraction

import numpy as np
import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.corpus import text_corpus
from lm.corpus.manifest import Manifest, SplitName
from lm.corpus.prepared_folder import PreparedFolder
from lm.corpus.shards import open_split
from lm.errors import InputError
from lm.text import text_files
from lm.tokenizer import tokenizer as tokenizers
from lm.tokenizer import training
from lm.tokenizer.tokenizer import Tokenizer
from tests.lm.corpus.preparing import byte_tokenizer, prepare, written
from tests.lm.tokenizers_elsewhere import TEXT

SEPARATOR = "<|endoftext|>"
WHOLE = DataConfig(validation="0")


def ids(prepared: PreparedFolder[Manifest], split: SplitName = "train") -> list[int]:
    tokens = open_split(prepared.folder, split)
    return tokens.read(0, len(tokens)).tolist()


def char_tokenizer(text: str) -> Tokenizer:
    return training.train([text], TokenizerConfig(kind="char"), corpus_bytes=len(text.encode())).tokenizer


class TestTokens:
    def test_are_those_of_whole_documents_between_start_and_end(self, elsewhere, tmp_path):
        texts = [TEXT * 3, "one\n", TEXT[::-1], "two"]
        prepared = prepare(
            written(tmp_path, f"{SEPARATOR}\n".join(texts[:3]), texts[3]), elsewhere, WHOLE, tmp_path / "out"
        )
        start, end = elsewhere.start_of_text, elsewhere.end_of_text
        expected: list[int | None] = []
        for text in texts:
            expected += [start, *elsewhere.encode(text)] + ([end] if start != end else [])
        assert ids(prepared) == expected + ([end] if start == end else [])

    def test_long_documents_in_pieces_are_the_same(self, elsewhere, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", 999)
        monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 3000)
        monkeypatch.setattr(tokenizers.split_into_pieces, "__kwdefaults__", {"limit": 700})
        prepared = prepare(written(tmp_path, TEXT * 40), elsewhere, WHOLE, tmp_path / "out")
        assert ids(prepared)[1:-1] == elsewhere.encode(TEXT * 40)

    def test_without_special_tokens_there_is_only_text(self, tmp_path):
        prepared = prepare(written(tmp_path, f"ab\n{SEPARATOR}\nba"), char_tokenizer("ab\n"), WHOLE, tmp_path / "out")
        assert ids(prepared) == [1, 2, 0, 2, 1]

    def test_spelled_special_tokens_stay_text(self, gpt2, tmp_path):
        prepared = prepare(written(tmp_path, f"a {SEPARATOR} b"), gpt2, WHOLE, tmp_path / "out")
        special = gpt2.end_of_text
        assert ids(prepared) == [special, *gpt2.encode(f"a {SEPARATOR} b"), special]

    def test_a_large_vocabulary_takes_uint32(self, tmp_path):
        tokenizer = char_tokenizer("".join(map(chr, range(0x10000, 0x10000 + 70_000))))
        prepared = prepare(written(tmp_path, chr(0x10000 + 69_999) * 3), tokenizer, WHOLE, tmp_path / "out")
        assert np.load(prepared.folder / "train-00000.npy").dtype == np.uint32
        assert ids(prepared) == [69_999] * 3

    def test_an_unseen_character_names_the_file(self, tmp_path):
        with pytest.raises(InputError, match=r"corpus-1\.txt: character 'Z'"):
            prepare(written(tmp_path, "abc", "abZ"), char_tokenizer("abc"), WHOLE, tmp_path / "out")
        at_a_cut = "abc " * (tokenizers.PIECE_CHARACTERS // 4) + "Z" + " abc" * 1000
        with pytest.raises(InputError, match=r"corpus-0\.txt: character 'Z'"):
            prepare(written(tmp_path, at_a_cut), char_tokenizer("abc "), WHOLE, tmp_path / "out")
        assert not (tmp_path / "out").exists()


class TestManifest:
    def test_says_what_there_is(self, gpt2, tmp_path):
        found = written(tmp_path, f"é\n{SEPARATOR}\ntwo", "three")
        prepared = prepare(found, gpt2, WHOLE, tmp_path / "out")
        record = prepared.manifest.splits["train"]
        assert (record.documents, record.bytes, record.tokens) == (3, 3 + 3 + 5, len(ids(prepared)))
        assert prepared.manifest.tokenizer == gpt2.sha256 == Tokenizer.load(prepared.folder / "tokenizer.json").sha256
        assert [source.path for source in prepared.manifest.sources] == ["corpus-0.txt", "corpus-1.txt"]
        assert json.loads((prepared.folder / "manifest.json").read_text())["format_version"] == 2

    def test_progress_ends_with_all_bytes(self, gpt2, tmp_path):
        seen: list[tuple[int, int]] = []
        prepare(written(tmp_path, TEXT), gpt2, DataConfig(), tmp_path / "out", progress=lambda *now: seen.append(now))
        assert seen[-1] == (len(TEXT.encode()),) * 2
        assert seen == sorted(seen)


class TestValidation:
    def test_few_documents_are_divided_at_the_end_of_the_text_as_in_nanogpt(self, tmp_path):
        text = "".join(random.Random(1).choices("abc \n", k=1119))
        prepared = prepare(written(tmp_path, text), char_tokenizer(text), DataConfig(), tmp_path / "out")
        data = char_tokenizer(text).encode(text)
        assert ids(prepared) == data[: int(len(data) * 0.9)]
        assert ids(prepared, "validation") == data[int(len(data) * 0.9) :]

    @pytest.mark.parametrize("sizes", [(1119, 60), (60, 1119), (500, 0, 7, 333)])
    def test_each_of_several_files_gives_its_own_end(self, sizes, tmp_path):
        texts = ["".join(random.Random(size).choices("abc \n", k=size)) for size in sizes]
        tokenizer = char_tokenizer("abc \n")
        prepared = prepare(written(tmp_path, *texts), tokenizer, DataConfig(), tmp_path / "out")
        cut = [int(size * 0.9) for size in sizes]
        heads, ends = (
            "".join(part)
            for part in zip(*((text[:n], text[n:]) for text, n in zip(texts, cut, strict=True)), strict=True)
        )
        assert ids(prepared) == tokenizer.encode(heads)
        assert ids(prepared, "validation") == tokenizer.encode(ends)

    @pytest.mark.parametrize("fraction", ["0.05", "0.3", "0.5", "0.81", "1/3"])
    @pytest.mark.parametrize("block", [1, 4, 1 << 18])
    def test_the_boundary_never_splits_a_character(self, fraction, block, tmp_path, monkeypatch):
        monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
        for number, text in enumerate(["한국어 é", "🙂🙂", "plain text", "üüüü"]):
            found = written(tmp_path, text)
            prepared = prepare(found, byte_tokenizer(), DataConfig(validation=fraction), tmp_path / f"out-{number}")
            train, held_out = (bytes(i for i in ids(prepared, split) if i < 256) for split in ("train", "validation"))
            assert train.decode() + held_out.decode() == text
            total = len(train) + len(held_out)
            least = total * (1 - float(Fraction(fraction)))
            assert least - 1 < len(train) < least + 4
            splits = prepared.manifest.splits
            assert splits["train"].bytes + splits["validation"].bytes == total

    def test_many_documents_are_held_out_by_content(self, tmp_path):
        texts = [f"document {number}\n" for number in range(1000)]
        first = prepare(
            written(tmp_path, f"{SEPARATOR}\n".join([*texts, *texts])), byte_tokenizer(), DataConfig(), tmp_path / "a"
        )
        held_out = bytes(i for i in ids(first, "validation") if i < 256).decode().splitlines()
        train = bytes(i for i in ids(first) if i < 256).decode().splitlines()
        assert 140 < len(held_out) < 260
        assert not set(held_out) & set(train)
        random.Random(2).shuffle(texts)
        again = prepare(written(tmp_path, f"{SEPARATOR}\n".join(texts)), byte_tokenizer(), DataConfig(), tmp_path / "b")
        assert set(bytes(i for i in ids(again, "validation") if i < 256).decode().splitlines()) == set(held_out)

    @pytest.mark.parametrize("fraction", ["0.1", "0.03"])
    @pytest.mark.parametrize("seed", range(8))
    def test_of_documents_of_very_different_sizes_the_fraction_counts_bytes(
        self, seed, fraction, tmp_path, monkeypatch
    ):
        draw = random.Random(seed)
        texts = [f"{number} " * int(draw.lognormvariate(3, 2) + 1) for number in range(150)]
        found = written(tmp_path, *texts)
        first = prepare(found, byte_tokenizer(), DataConfig(validation=fraction), tmp_path / "a")
        total = sum(map(len, texts))
        held_out = first.manifest.splits["validation"].bytes
        assert first.manifest.splits["train"].bytes == total - held_out
        assert held_out / total == pytest.approx(float(fraction), rel=1 / 3)
        monkeypatch.setattr(text_files, "BLOCK_BYTES", 99)
        again = prepare(found, byte_tokenizer(), DataConfig(validation=fraction), tmp_path / "b")
        assert again.manifest == first.manifest
        assert ids(again, "validation") == ids(first, "validation")

    def test_files_of_its_own_are_left_out_of_training(self, tmp_path):
        found = written(tmp_path, "train", "held out")
        config = DataConfig(validation=str(found[1].path))
        prepared = prepare(found, byte_tokenizer(), config, tmp_path / "out")
        assert bytes(ids(prepared)[1:-1]) == b"train"
        assert bytes(ids(prepared, "validation")[1:-1]) == b"held out"
        assert [record.sha256 for record in prepared.manifest.validation_sources]

    def test_none(self, tmp_path):
        prepared = prepare(written(tmp_path, "all of it"), byte_tokenizer(), WHOLE, tmp_path / "out")
        assert len(open_split(prepared.folder, "validation")) == 0
        assert bytes(ids(prepared)[1:-1]) == b"all of it"

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(InputError, match="nowhere"):
            prepare(written(tmp_path, "text"), byte_tokenizer(), DataConfig(validation="nowhere"), tmp_path / "out")

    @pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("x", "left to train on")])
    def test_nothing_to_train_on_is_an_error(self, text, message, tmp_path):
        with pytest.raises(InputError, match=message):
            prepare(written(tmp_path, text), byte_tokenizer(), DataConfig(), tmp_path / "out")
