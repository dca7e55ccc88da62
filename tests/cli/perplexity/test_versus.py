"""Two models are compared on the same bytes."""

from pathlib import Path

import pytest
import tokenizers

from cli.main import run
from cli.perplexity.versus import ComparedRuns, print_comparison_table, verdict
from lm.evaluation.perplexity import PerplexityResult
from lm.evaluation.perplexity_comparison import PairedDifference
from lm.run_folder import find_tokenizer
from lm.text.text_files import TextFile
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


def difference(*blocks: tuple[float, float]) -> PairedDifference:
    """Two models on blocks of a hundred bytes, with the bits of each."""
    total = PairedDifference()
    for first, second in blocks:
        total.add(segments=2, size=100, first=first, second=second)
    return total


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ((), "there is no text that both score"),
        (((150, 150), (160, 160)), "the two do not differ"),
        (((150, 160),), "a is ahead of b by 0.1000 bits per byte; the text is too short to say how surely"),
        (((160, 150),), "b is ahead of a by 0.1000 bits per byte; the text is too short to say how surely"),
        # the mean of 50 and 150 is 100, and its standard error 50, for 100 bytes each
        (((150, 200), (150, 300)), "a is better than b by 1.0000 ± 0.5000 bits per byte (z = 2.0)"),
        (((200, 150), (300, 150)), "b is better than a by 1.0000 ± 0.5000 bits per byte (z = 2.0)"),
        (((150, 200), (150, 301)),
         "no clear difference: a is ahead of b by 1.0050 ± 0.5050 bits per byte (z = 2.0)"),
    ],
)  # fmt: skip
def test_a_verdict_is_clear_from_two_standard_errors(blocks, sentence):
    assert verdict(difference(*blocks), (Path("a"), Path("b"))) == sentence


TABLE = """\
file   bytes  bits/byte  versus  difference  std error     z
x.txt    200     1.5000  1.7000     -0.2000     0.1000  -2.0
y.txt    100     1.6000  1.5000      0.1000          –     –
total    300     1.5333  1.6333     -0.1000     0.1155  -0.9
bits per byte of the same text; 6 segments in 3 blocks; a: context 8, stride 4; b: context 16, stride 2
"""


def test_the_table_has_a_row_for_each_file_and_a_total_of_several(capsys):
    blocks = (150, 160), (150, 180), (160, 150)
    files = [TextFile(name, Path(name)) for name in ("x.txt", "y.txt")]
    scored = [difference(*blocks[:2]), difference(blocks[2])]
    conditions = [{"context": 8, "stride": 4}, {"context": 16, "stride": 2}]
    compared = ComparedRuns((Path("a"), Path("b")), (PerplexityResult(), PerplexityResult()), is_same_tokenizer=False)
    print_comparison_table(files, scored, difference(*blocks), conditions, compared)
    *table, _ = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(table) == TABLE
    print_comparison_table(files[:1], scored[:1], scored[0], conditions, compared)
    heading, row, *_ = capsys.readouterr().out.splitlines(keepends=True)
    assert heading + row == "".join(table[:2])


def test_what_each_model_loses_of_the_text_is_told_instead_of_a_verdict(capsys):
    results = PerplexityResult(unknown_tokens=1, lost_bytes=4), PerplexityResult(lost_bytes=2000)
    compared = ComparedRuns((Path("a"), Path("b")), results, is_same_tokenizer=False)
    conditions = [{"context": 8, "stride": 4}] * 2
    total = difference((150, 160), (150, 180))
    print_comparison_table([TextFile("x.txt", Path("x.txt"))], [total], total, conditions, compared)
    *_, row, _, losses, sentence = capsys.readouterr().out.splitlines()
    assert row.split()[-2:] == ["0.1000", "–"]
    round_trip = "bytes that don't survive a round trip through the tokenizer"
    assert losses == f"not all of the text is scored: a: 1 unknown token and 4 {round_trip}; b: 2,000 {round_trip}"
    assert sentence.startswith("no verdict: ")


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
