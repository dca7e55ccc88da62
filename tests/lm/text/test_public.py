"""Public corpora: downloads are verified, and tables become text."""

import hashlib
import re

import pyarrow
import pytest
from pyarrow import parquet

from lm.errors import InputError
from lm.text.public import CORPORA, fetch

DATA = bytes(range(256)) * 4000


def test_a_download_is_verified_and_made_once(tmp_path):
    source, seen = tmp_path / "a.txt", []
    source.write_bytes(DATA)
    checksum = hashlib.sha256(DATA).hexdigest()
    for _ in range(2):
        path = fetch(source.as_uri(), tmp_path / "new", checksum=checksum, progress=lambda *now: seen.append(now))
        assert (path, path.read_bytes(), seen[-1]) == (tmp_path / "new" / "a.txt", DATA, (len(DATA), len(DATA)))
        source.unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"a\.txt: not the published file"):
        fetch(source.as_uri(), tmp_path / "new", checksum="0" * 64)
    with pytest.raises(InputError, match=r"b\.txt: "):
        fetch((tmp_path / "b.txt").as_uri(), tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_a_table_becomes_the_lines_of_the_original(tmp_path):
    table = pyarrow.table({"text": ["", " = Title = \n", "", " Text here .\n"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    path = fetch((tmp_path / "a.parquet").as_uri(), tmp_path / "new")
    assert path.read_text() == " \n = Title = \n \n Text here .\n"
    assert [*path.parent.iterdir()] == [path]


def test_every_corpus_names_files_that_it_has(tmp_path):
    for corpus in CORPORA:
        made = [url.rpartition("/")[2].replace(".parquet", ".txt") for url in corpus.files]
        assert set() < {*re.findall(r"{folder}/(\S+)", corpus.train)} <= {*made}
        for url in corpus.files:
            assert url.startswith("https://") or fetch(url, tmp_path / corpus.name).stat().st_size
