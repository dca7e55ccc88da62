import gzip
import lzma
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from lm.errors import InputError
from lm.text import documents, text_files
from lm.text.compression import read_blocks
from lm.text.text_files import TextFile

SEPARATOR = "<|endoftext|>"
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
DATA = "".join(random.Random(3).choices("abcdé한 \n", k=50_000)).encode()

every_kind = pytest.mark.parametrize("kind", PACK)


def source(folder: Path, data: bytes, name: str) -> TextFile:
    path = folder / name
    path.write_bytes(data)
    return TextFile(name, path)


def text(found: TextFile) -> bytes:
    return "".join(piece.text for piece in documents.read_pieces(found, SEPARATOR)).encode()


@every_kind
class TestReading:
    @pytest.mark.parametrize("name", ["stdin", "a.txt", "a.gz", "a.xz"])
    def test_the_first_bytes_decide_whatever_the_name(self, kind, name, tmp_path):
        assert text(source(tmp_path, PACK[kind](DATA), name)) == DATA

    def test_parts_packed_one_by_one_read_as_a_whole(self, kind, tmp_path):
        parts = PACK[kind](DATA[:900]) + PACK[kind](b"") + PACK[kind](DATA[900:])
        assert text(source(tmp_path, parts, f"a{kind}")) == DATA

    def test_an_empty_file_has_no_text(self, kind, tmp_path):
        assert text(source(tmp_path, b"", f"a{kind}")) == text(source(tmp_path, PACK[kind](b""), f"b{kind}")) == b""

    @pytest.mark.medium
    def test_memory_stays_bounded(self, kind, tmp_path):
        found = source(tmp_path, PACK[kind](DATA * 40), f"a{kind}")
        longest = max(len(piece.text) for piece in documents.read_pieces(found, SEPARATOR))
        assert longest <= 2 * text_files.BLOCK_BYTES


@every_kind
class TestDamage:
    @pytest.mark.parametrize("left", [0.02, 0.5, 0.9999])
    def test_a_file_that_was_cut_short_is_refused(self, kind, left, tmp_path):
        packed = PACK[kind](DATA)
        with pytest.raises(InputError, match=rf"^a\.txt\{kind}: a damaged \{kind} file"):
            text(source(tmp_path, packed[: int(len(packed) * left)], f"a.txt{kind}"))

    def test_changed_bytes_are_refused(self, kind, tmp_path):
        packed = bytearray(PACK[kind](DATA))
        packed[len(packed) // 2] ^= 255
        with pytest.raises(InputError, match=rf"^a\.txt\{kind}: (a damaged|not valid UTF-8)"):
            text(source(tmp_path, bytes(packed), f"a.txt{kind}"))

    def test_plain_text_under_such_a_name_is_refused(self, kind, tmp_path):
        with pytest.raises(InputError, match=rf"a damaged \{kind} file"):
            text(source(tmp_path, b"plain text, not packed at all", f"a{kind}"))

    def test_a_packed_binary_file_is_refused(self, kind, tmp_path):
        with pytest.raises(InputError, match="binary file"):
            text(source(tmp_path, PACK[kind](b"\x7fELF\x00"), f"a.tar{kind}"))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python reads Zstandard by itself")
def test_without_the_package_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match="^a.zst: .* needs zstandard: pip install zstandard"):
        text(source(tmp_path, PACK[".zst"](DATA), "a.zst"))


@pytest.mark.parametrize("kind", [".gz", ".zst"])
def test_a_small_file_of_much_text_takes_little_memory(tmp_path, kind):
    size = 60_000_000
    file = source(tmp_path, PACK[kind](b" " * size), f"a{kind}")
    assert file.path.stat().st_size < size / 500
    tracemalloc.start()
    try:
        assert sum(map(len, read_blocks(file.path, kind, 1 << 18, name=file.name))) == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000
