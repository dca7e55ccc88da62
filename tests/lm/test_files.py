"""What must not be lost is on the disk before it takes the place of what was there."""

from __future__ import annotations

import pytest

from lm import files


def test_a_file_is_on_the_disk_before_it_is_renamed_and_its_folder_after(tmp_path, disk):
    folder = tmp_path / "of results"
    files.replace_text(folder / "a.txt", "whole\n")
    assert (folder / "a.txt").read_text() == "whole\n"
    fresh = disk.entries[0][1]
    assert fresh != "a.txt"
    assert disk.entries == [("sync", fresh), ("rename", f"{fresh} -> a.txt"), ("sync", "of results")]


def test_json_is_waited_for(tmp_path, disk):
    files.write_json(tmp_path / "a.json", {"ü": 1})
    assert disk.entries == [("sync", "a.json")]
    assert files.read_json(tmp_path / "a.json") == {"ü": 1}
    assert "ü" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_what_fails_on_the_way_leaves_the_old_file_alone(tmp_path, disk):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), files.replaced(path) as file:
        file.write("half of the new, and then \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert disk.entries == []
