"""Two models are compared on the same bytes."""

import pytest
import tokenizers

from cli.main import run
from lm.run_folder import find_tokenizer
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_run
from tests.lm.tokenizers_elsewhere import bert_like


def test_versus_itself_is_no_difference(succeed, report, runs, texts):
    total = report(runs["bpe"], texts, "--versus", runs["bpe"])["total"]
    assert (total["difference"], total["standard_error"], total["z"]) == (0, 0, None)
    assert succeed("perplexity", runs["bpe"], texts, "--versus", runs["bpe"]).endswith("the two do not differ\n")


def test_versus_another_tokenizer_compares_the_bytes_that_both_score(succeed, report, runs, texts):
    reported = report(runs["bpe"], texts, "--versus", runs["char"])
    total = reported["total"]
    assert [file["file"] for file in reported["files"]] == [str(texts / "a.txt"), str(texts / "b.txt")]
    assert total["difference"] == pytest.approx(total["first_bits_per_byte"] - total["second_bits_per_byte"])
    assert total["z"] == pytest.approx(total["difference"] / total["standard_error"])
    assert total["bytes"] == sum(file["bytes"] for file in reported["files"])
    assert reported["first"]["model"]["run"] == str(runs["bpe"])
    assert reported["second"]["first_token_scored"] is False
    *_, sentence = succeed("perplexity", runs["bpe"], texts, "--versus", runs["char"]).splitlines()
    better, worse = (runs["bpe"], runs["char"]) if total["difference"] < 0 else (runs["char"], runs["bpe"])
    figures = (
        f"{abs(total['difference']):.4f} ± {total['standard_error']:.4f} bits per byte (z = {abs(total['z']):.1f})"
    )
    assert sentence in (
        f"{better} is better than {worse} by {figures}",
        f"no clear difference: {better} is ahead of {worse} by {figures}",
    )


@pytest.fixture
def lossy(tmp_path):
    """A run with an uncased tokenizer that does not know all characters."""
    return make_run(tmp_path / "lossy", tokenizer=Tokenizer(bert_like()))


@pytest.mark.parametrize("is_first", [True, False])
def test_no_verdict_on_models_of_which_one_has_a_tokenizer_that_loses_text(
    succeed, report, runs, lossy, tmp_path, is_first
):
    text = tmp_path / "text.txt"
    text.write_text("The cat sat.\n🦉 The OWL.\n" * 30)
    order = (lossy, runs["bpe"]) if is_first else (runs["bpe"], lossy)
    reported = report(order[0], text, "--versus", order[1])
    assert reported["comparable"] is False
    assert reported["total"]["z"] is None
    of_lossy, of_bpe = (reported[name] for name in (("first", "second") if is_first else ("second", "first")))
    assert (of_bpe["unknown_tokens"], of_bpe["lost_bytes"]) == (0, 0)
    assert of_lossy["unknown_tokens"] >= 30
    assert of_lossy["lost_bytes"] >= 30 * (1 + 4 + 1 + 3)  # at least T, an owl, T and OWL
    *_, sentence = succeed("perplexity", order[0], text, "--versus", order[1]).splitlines()
    assert sentence.startswith("no verdict: ")
    assert "is better" not in sentence


def test_models_with_one_tokenizer_that_loses_text_are_compared(report, lossy, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The cat sat.\n🦉 The OWL.\n" * 30)
    other = make_run(tmp_path / "other", tokenizer=Tokenizer(bert_like_of(lossy)), init_std=0.2)
    reported = report(lossy, text, "--versus", other)
    assert reported["comparable"] is True
    assert reported["total"]["z"] is not None


def bert_like_of(run):
    return tokenizers.Tokenizer.from_file(str(find_tokenizer(run)))


def test_perplexity_says_what_a_tokenizer_loses(report, runs, lossy, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("The cat sat.\n🦉 The OWL.\n" * 30)
    total = report(lossy, text)["total"]
    assert total["unknown_tokens"] >= 30
    assert total["lost_bytes"] > 0
    assert run(["perplexity", str(lossy), str(text)]) == 0
    assert "bytes that don't survive a round trip through the tokenizer" in capsys.readouterr().err
    assert report(runs["bpe"], text)["total"]["lost_bytes"] == 0
    assert run(["perplexity", str(runs["bpe"]), str(text)]) == 0
    assert "warning" not in capsys.readouterr().err
