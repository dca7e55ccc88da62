"""A manifest of pairs survives JSON, and a damaged one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lm.corpus.manifest import SourceRecord
from lm.corpus.pair_manifest import MANIFEST, PairManifest, PairSplit
from lm.errors import InputError

MADE = PairManifest(
    key="k", languages=("en", None), validation="0.1", max_length=256, max_ratio=9.0,
    sources=(SourceRecord("a.en", 3, "h"), SourceRecord("a.de", 4, "g")), validation_sources=(),
    splits={"train": PairSplit(pairs=3, longest=7), "validation": PairSplit(blank=1)},
)  # fmt: skip


def test_a_manifest_survives_json(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(MADE.to_dict()))
    assert PairManifest.read(tmp_path) == MADE
    assert MADE.to_dict()["format_version"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a manifest of prepared pairs"),
        ('{"format_version": 99}', "format version 99 is not 1; prepare the pairs again"),
        ('{"format_version": 1}', "not a manifest of prepared pairs .'sources'"),
        (json.dumps({**MADE.to_dict(), "splits": {"train": {}}}), "not a manifest of prepared pairs .'validation'"),
        (json.dumps({**MADE.to_dict(), "colour": 1}), "not a manifest of prepared pairs .*colour"),
    ],
)
def test_a_damaged_manifest_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(InputError, match=rf"pairs\.json: .*{message}"):
        PairManifest.read(tmp_path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pairs\.json: no such file"):
        PairManifest.read(tmp_path)
