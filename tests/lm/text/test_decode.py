"""Files are decompressed and decoded in bounded memory, and damaged ones are refused."""

import bz2
import gzip
import lzma
import random
import tracemalloc
from functools import partial

import pytest

from lm.errors import InputError
from lm.text.decode import decode_lines, read_blocks, zstd
from lm.text.text_file import TextFile

PACK = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": partial(lzma.compress, preset=0),
    ".zst": partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1}),
}
DATA = "".join(random.Random(3).choices("abcdé한 \n", k=50_000)).encode()

every_kind = pytest.mark.parametrize("kind", PACK)


def text(folder, data, name):
    path = folder / name
    path.write_bytes(data)
    return "".join(TextFile(name, path).text()).encode()


@every_kind
def test_the_first_bytes_decide_and_frames_read_as_a_whole(kind, tmp_path):
    parts = PACK[kind](DATA[:900]) + PACK[kind](b"") + PACK[kind](DATA[900:])
    assert text(tmp_path, parts, "stdin") == text(tmp_path, PACK[kind](DATA), "a.gz") == DATA
    assert text(tmp_path, b"", f"a{kind}") == text(tmp_path, PACK[kind](b""), f"b{kind}") == b""
    assert TextFile(f"a.jsonl{kind}", tmp_path / f"a.jsonl{kind}").format == "jsonl"


@every_kind
def test_damaged_files_are_refused(kind, tmp_path):
    packed = PACK[kind](DATA)
    changed = bytearray(packed)
    changed[len(packed) // 2] ^= 255
    cut = [packed[: int(len(packed) * left)] for left in (0.02, 0.5, 0.9999)]
    for data in (*cut, changed, PACK[kind](b"\x7fELF\x00")):
        with pytest.raises(InputError, match=rf"^a\.txt\{kind}: "):
            text(tmp_path, data, f"a.txt{kind}")


@every_kind
def test_a_small_file_of_much_text_takes_little_memory(tmp_path, kind):
    size, path = 60_000_000, tmp_path / f"a{kind}"
    path.write_bytes(PACK[kind](b" " * size))
    tracemalloc.start()
    try:
        assert sum(map(len, read_blocks(path, path.name))) == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_a_line_ends_at_its_line_feed_and_nowhere_else():
    text = "one\ntwo\r\n\n\u2028three\x0b\x0c\x85 \r four\n\nlast"
    expected = ["one", "two", "", "\u2028three\x0b\x0c\x85 \r four", "", "last"]
    data = b"\xef\xbb\xbf" + text.encode()
    for size in (3, 4, 5, 7, len(data)):
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        assert list(decode_lines(parts, "x")) == expected
    assert list(decode_lines([data + b"\n"], "x")) == expected
    assert (list(decode_lines([], "x")), list(decode_lines([b"\n\n"], "x"))) == ([], ["", ""])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    assert text(tmp_path, "naïve 한국어\n".encode(encoding), "a.txt").decode() == "naïve 한국어\n"
    (tmp_path / "a.json").write_text('[{"text": "naïve"}]', encoding=encoding)
    assert TextFile("a.json", tmp_path / "a.json").format == "json"
