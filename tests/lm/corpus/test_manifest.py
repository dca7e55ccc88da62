"""A manifest survives JSON, and a damaged one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lm.config.data import DataConfig
from lm.corpus.manifest import (
    MANIFEST,
    Manifest,
    PairManifest,
    PairSplit,
    PreparedManifest,
    Repetition,
    SourceRecord,
    SplitRecord,
)
from lm.errors import InputError

MADE = Manifest(
    kind="text", key="k", tokenizer="t", vocab_size=300, dtype="uint16", separator="S", validation="0.2",
    sources=(SourceRecord("a.txt", 3, "h"),), validation_sources=(SourceRecord("b.txt", 4, "g"),),
    splits={"train": SplitRecord(1, 5, 99, (5,)), "validation": SplitRecord(0, 0, 0, ())},
    repetition=Repetition(2, 0.5, 32), field="body",
)  # fmt: skip


def write(folder: Path, values: dict[str, object]) -> None:
    (folder / "manifest.json").write_text(json.dumps(values))


def test_a_manifest_survives_json(tmp_path: Path) -> None:
    write(tmp_path, MADE.to_dict())
    assert Manifest.read(tmp_path) == MADE
    assert MADE.to_dict()["format_version"] == 2
    assert MADE.data == DataConfig(validation="0.2", separator="S", field="body", keep_line_ends=True)


def test_one_from_before_some_fields_were_added_is_read(tmp_path: Path) -> None:
    values = MADE.to_dict() | {"format_version": 1}
    for name in ("kind", "repetition", "field", "keep_line_ends"):
        del values[name]
    write(tmp_path, values)
    found = Manifest.read(tmp_path)
    assert (found.supervised, found.repetition, found.field) == (False, None, None)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format_version": 99}', '{"format_version": 1}', '{"format_version": 1, "splits": 3}', "[" * 200_000],
    ids=["torn", "a list", "a newer one", "no splits", "wrong splits", "too deep"],
)
def test_a_damaged_manifest_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


def test_a_manifest_without_a_split_is_named(tmp_path: Path) -> None:
    values = MADE.to_dict()
    del values["splits"]["validation"]
    write(tmp_path, values)
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest of prepared tokens \('validation'\)"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["documents", "tokens", "bytes", "shards"])
@pytest.mark.parametrize("count", [None, "3", 1.5, -1, [], {}, 10**400, float("inf")], ids=lambda each: str(each)[:9])
def test_a_count_that_is_none_is_of_no_manifest(name: str, count: object, tmp_path: Path) -> None:
    values = MADE.to_dict()
    values["splits"] = {split: {**record, name: count if name != "shards" else [count]}
                        for split, record in values["splits"].items()}  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"manifest\.json: not a manifest of prepared tokens \(.* is not a count of "):
        Manifest.read(tmp_path)


PAIRS = PairManifest(
    key="k", languages=("en", None), validation="0.1", max_length=256, max_ratio=9.0,
    sources=(SourceRecord("a.en", 3, "h"), SourceRecord("a.de", 4, "g")), validation_sources=(),
    splits={"train": PairSplit(pairs=3, longest=7), "validation": PairSplit(blank=1)},
)  # fmt: skip


def test_a_manifest_of_pairs_survives_json(tmp_path: Path) -> None:
    write(tmp_path, PAIRS.to_dict())
    assert PairManifest.read(tmp_path) == PreparedManifest.read(tmp_path) == PAIRS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format_version": 99}, "format version 99 is not 2; prepare the corpus again"),
        ({"format_version": 2}, "not a manifest of prepared pairs .'kind'"),
        ({"format_version": 2, "kind": "birds"}, "not a manifest of prepared pairs .'birds'"),
        ({"format_version": 2, "kind": "pairs"}, "not a manifest of prepared pairs .'sources'"),
        ({**PAIRS.to_dict(), "splits": {"train": {}}}, "not a manifest of prepared pairs .'validation'"),
        ({**PAIRS.to_dict(), "colour": 1}, "not a manifest of prepared pairs .*colour"),
    ],
)
def test_a_damaged_manifest_of_pairs_is_named(values: dict[str, object], message: str, tmp_path: Path) -> None:
    write(tmp_path, values)
    with pytest.raises(InputError, match=rf"manifest\.json: .*{message}"):
        PairManifest.read(tmp_path)


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PAIRS.to_dict())
    with pytest.raises(InputError, match="holds prepared pairs, not prepared tokens"):
        Manifest.read(tmp_path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"not a folder of prepared pairs \(it has no {MANIFEST}\)"):
        PairManifest.read(tmp_path)
