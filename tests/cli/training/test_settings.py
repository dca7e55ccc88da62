"""Settings of one kind of corpus are refused for the other where the user types them, and nowhere else."""

from __future__ import annotations

from cli.main import run
from tests.system.conftest import SMALL


def test_the_environment_may_speak_of_both_kinds_of_corpus(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("LM_BPE_DROPOUT", "0.1")
    flags = ["--steps", "1", "--no-bidirectional", "--best-by", "loss", *SMALL]
    assert run(["train", str(place / "text.txt"), "-o", str(tmp_path / "run"), *flags]) == 0
