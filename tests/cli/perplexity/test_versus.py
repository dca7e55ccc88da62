"""Two models are compared on the same bytes."""

from __future__ import annotations

import pytest


def test_versus_itself_is_no_difference(succeed, report, runs, texts):
    total = report(runs["bpe"], texts, "--versus", runs["bpe"])["total"]
    assert (total["difference"], total["standard_error"], total["z"]) == (0, 0, None)
    assert succeed(runs["bpe"], texts, "--versus", runs["bpe"]).endswith("the two do not differ\n")


def test_versus_another_tokenizer_compares_the_bytes_that_both_score(succeed, report, runs, texts):
    reported = report(runs["bpe"], texts, "--versus", runs["char"])
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    assert total["difference"] == pytest.approx(total["first_bits_per_byte"] - total["second_bits_per_byte"])
    assert total["z"] == pytest.approx(total["difference"] / total["standard_error"])
    assert total["bytes"] == sum(file["bytes"] for file in reported["files"])
    assert reported["first"]["model"]["run"] == str(runs["bpe"])
    assert reported["second"]["first_token_scored"] is False
    *_, sentence = succeed(runs["bpe"], texts, "--versus", runs["char"]).splitlines()
    better, worse = (runs["bpe"], runs["char"]) if total["difference"] < 0 else (runs["char"], runs["bpe"])
    figures = (
        f"{abs(total['difference']):.4f} ± {total['standard_error']:.4f} bits per byte (z = {abs(total['z']):.1f})"
    )
    assert sentence in (
        f"{better} is better than {worse} by {figures}",
        f"no clear difference: {better} is ahead of {worse} by {figures}",
    )
