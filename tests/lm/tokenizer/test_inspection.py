from __future__ import annotations

from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.config.tokenizer import TokenizerConfig
from lm.errors import InputError
from lm.text.files import find_text_files, total_text_bytes
from lm.tokenizer import inspection, training
from lm.tokenizer.inspection import format_token
from lm.tokenizer.tokenizer import Tokenizer, split_into_pieces
from tests.lm.tokenizers_elsewhere import TEXT, backend

SEPARATOR = "<|endoftext|>"


def trained(kind: str) -> Tokenizer:
    return training.train([TEXT], TokenizerConfig(kind=kind), corpus_bytes=len(TEXT.encode())).tokenizer


class TestKind:
    @pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
    def test_of_our_own(self, kind: str) -> None:
        assert trained(kind).kind == kind

    @pytest.mark.parametrize(("name", "kind"), [("llama2", "bpe"), ("unigram", "unigram"), ("bert", "wordpiece")])
    def test_of_others(self, name: str, kind: str) -> None:
        assert Tokenizer(backend(name)).kind == kind


class TestMeasure:
    def test_counts_are_those_of_the_whole_text(
        self, elsewhere: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(split_into_pieces, "__kwdefaults__", {"limit": 700})
        text = TEXT * 20
        (tmp_path / "a.txt").write_bytes(text.encode())
        (tmp_path / "b.jsonl").write_text('{"text": "two words"}\n{"text": "more"}\n')
        fit = inspection.measure_compression(
            elsewhere, find_text_files([str(tmp_path)], DataConfig(keep_line_ends=True)), SEPARATOR
        )
        texts = [text, "two words", "more"]
        assert fit.tokens == sum(len(elsewhere.encode(part)) for part in texts)
        assert (fit.words, fit.bytes) == (len(text.split()) + 3, len(text.encode()) + 13)
        assert fit.bytes_per_token == fit.bytes / fit.tokens

    def test_nothing(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("")
        fit = inspection.measure_compression(gpt2, find_text_files([str(tmp_path)]), SEPARATOR)
        assert (fit.bytes_per_token, fit.tokens_per_word) == (None, None)

    def test_an_unknown_character_names_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("Ω")
        with pytest.raises(InputError, match=r"a\.txt: character 'Ω'"):
            inspection.measure_compression(trained("char"), find_text_files([str(tmp_path)]), SEPARATOR)


def test_the_longest_tokens_come_first_and_special_ones_do_not_count(elsewhere: Tokenizer) -> None:
    found = inspection.find_longest_tokens(elsewhere, 20)
    sizes = [len(elsewhere.token_bytes(index)) for index in found]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(found)) == 20
    special = set(elsewhere.special_tokens.values())
    assert not set(found) & special
    others = set(range(elsewhere.vocab_size)) - special - set(found)
    assert max(len(elsewhere.token_bytes(index)) for index in others) <= sizes[-1]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" the\n", "·the⏎"),
        (b"\r\n\t", "␍⏎⇥"),
        (b"\0\x1b\x7f", "␀␛␡"),
        ("한".encode()[:2], r"\xed\x95"),
        ("é".encode() + b"\xed", r"é\xed"),
        ("\u200d\ufeff\u00a0\u2028".encode(), r"\u200d\ufeff\u00a0\u2028"),
        ("\u0301a".encode(), "◌\u0301a"),
        ("한글 🙂".encode(), "한글·🙂"),
        (b"", ""),
    ],
)
def test_everything_in_a_token_can_be_seen(data: bytes, shown: str) -> None:
    assert format_token(data) == shown


def test_progress_ends_with_the_size_of_the_text(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_text("한국어 " * 50_000)
    paths[1].write_text("short")
    files = find_text_files([str(path) for path in paths])
    seen: list[tuple[int, int | None]] = []
    inspection.measure_compression(trained("byte"), files, SEPARATOR, progress=lambda *now: seen.append(now))
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (total_text_bytes(files), total_text_bytes(files))
