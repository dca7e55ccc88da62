"""Tables become the lines of the original text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lm.errors import InputError
from lm.text.public import unpacking


def test_a_table_becomes_the_lines_of_the_original(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = ["", " = Title = \n", "", " Text here .\n"]
    parquet.write_table(pyarrow.table({"text": lines}), tmp_path / "a.parquet")
    unpacking.unpack(tmp_path / "a.parquet", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == " \n = Title = \n \n Text here .\n"
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"b\.parquet: a damaged Parquet file"):
        unpacking.unpack(tmp_path / "b.parquet", tmp_path / "b.txt")


def test_lines_without_text_have_a_space() -> None:
    assert unpacking.restore_wikitext(["", " = A = \n", ""]) == " \n = A = \n \n"
