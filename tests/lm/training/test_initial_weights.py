"""Weights that another run starts from: whether they fit its model and its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lm.checkpoint import load_weights
from lm.config.lora import LoraConfig
from lm.config.run_config import RunConfig, RunPlan
from lm.errors import UsageError
from lm.run_folder import find_checkpoint, load_config
from lm.training.initial_weights import (
    add_token_rows,
    check_compatible,
    check_tokenizers,
    count_spare_tokens,
    describe_poor_fit,
)
from lm.training.step_timing import write_random_tokens
from tests.cli.small_runs import make_run, make_tokenizer


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_weights(find_checkpoint(run))


def test_a_new_special_token_starts_as_the_mean_of_all_others(tmp_path):
    """In the embedding and the output layer; all else stays."""
    run, old = make_run(tmp_path / "run", tie_embeddings=False), make_tokenizer("bpe")
    new, weights, config = old.with_chat_template(), weights_of(run), load_config(find_checkpoint(run))
    assert new.vocab_size > old.vocab_size
    found = add_token_rows(run, weights, new, config)
    changed = [name for name, value in found.items() if value is not weights[name]]
    assert len(changed) == 2
    for name in changed:
        before, after = weights[name], found[name]
        assert len(after) == new.vocab_size
        assert torch.equal(after[: old.vocab_size], before)
        mean = before.mean(0).expand(new.vocab_size - old.vocab_size, -1)
        torch.testing.assert_close(after[old.vocab_size :], mean)
    assert add_token_rows(run, weights, old, config) == weights
    with pytest.raises(UsageError, match="adapters train no embeddings"):
        add_token_rows(run, weights, new, RunConfig(lora=LoraConfig(rank=2)))


def test_spare_rows_are_those_beyond_the_vocabulary(tmp_path):
    run, size = make_run(tmp_path / "run"), make_tokenizer("bpe").vocab_size
    smaller = [SimpleNamespace(vocab_size=size - missing) for missing in (-2, 0, 5)]
    assert [count_spare_tokens(run, tokenizer) for tokenizer in smaller] == [0, 0, 5]


def test_a_model_of_other_shapes_is_told_what_differs(tmp_path):
    run = make_run(tmp_path / "run")
    model = load_config(find_checkpoint(run)).model
    check_compatible(model, run)
    check_compatible(model.replace(vocab_size=model.vocab_size + 9, dropout=0.3, context_length=99), run)
    with pytest.raises(UsageError) as raised:
        check_compatible(model.replace(d_model=48, n_layers=1), run)
    assert str(raised.value) == (
        "the weights to start from don't fit this model: "
        f"d_model is 48 here and 32 in {run}; n_layers is 1 here and 2 in {run}"
    )
    assert list(raised.value.settings) == ["d_model", "n_layers"]


def test_tokens_have_to_be_those_that_the_weights_were_trained_with(tmp_path):
    run, own, other = make_run(tmp_path / "run"), make_tokenizer("bpe"), make_tokenizer("char")
    for fitting in (own, own.with_chat_template()):
        check_tokenizers(run, fitting)
        check_tokenizers(run, own, fitting)
    for sides in ((other,), (own, other), (other, own)):
        with pytest.raises(UsageError, match="were learned with another tokenizer") as raised:
            check_tokenizers(run, *sides)
        assert raised.value.settings == ("tokenizer", "from_run")


def prepared(folder: Path, bytes_per_token: float) -> Path:
    """Return data of a thousand tokens that spell so many bytes each."""
    write_random_tokens(folder, tokens=1000, vocab_size=64)
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        split["bytes"] = round(1000 * bytes_per_token)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("here", "there", "kind", "expected"),
    [
        (2.4, 4.0, "bpe", None),
        (2.39, 4.0, "bpe", "2.39 bytes/token on this text, and 4.00 on the text of "),
        (1.25, None, "bpe", None),
        (1.24, None, "bpe", "1.24 bytes/token on this text"),
        (1.0, 4.0, "byte", None),
        (1.0, 4.0, "char", None),
    ],
)
def test_a_tokenizer_that_needs_many_more_tokens_than_for_its_own_text_is_told_of(
    tmp_path, here, there, kind, expected
):
    own = tmp_path / "gone" if there is None else prepared(tmp_path / "own", there)
    plan = RunPlan(device="cpu", dtype="float32", threads=1, steps=1, data=str(own), data_key="")
    run = make_run(tmp_path / "run", plan=plan)
    corpus: Any = SimpleNamespace(folder=prepared(tmp_path / "new", here), tokenizer=SimpleNamespace(kind=kind))
    found = describe_poor_fit(run, corpus)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert expected in str(found)
    assert describe_poor_fit(run, SimpleNamespace(folder=tmp_path / "none", tokenizer=corpus.tokenizer)) is None
