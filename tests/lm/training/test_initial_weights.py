"""Weights that another run starts from: whether they fit its model and its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lm.checkpoint import load_weights
from lm.config.run_config import LoraConfig, RunConfig
from lm.errors import UsageError
from lm.run_folder import find_checkpoint, load_config
from lm.training.run import initial_weights
from tests.cli.small_runs import make_run, make_tokenizer


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_weights(find_checkpoint(run))


def test_a_new_special_token_starts_as_the_mean_of_all_others(tmp_path):
    """In the embedding and the output layer; all else stays."""
    run, old = make_run(tmp_path / "run", tie_embeddings=False), make_tokenizer("bpe")
    new, weights, config = old.with_chat_template(), weights_of(run), load_config(find_checkpoint(run))
    assert new.vocab_size > old.vocab_size
    found = initial_weights(run, (new, None), config)
    changed = [name for name, value in found.items() if value.shape != weights[name].shape]
    assert len(changed) == 2
    for name in changed:
        before, after = weights[name], found[name]
        assert len(after) == new.vocab_size
        assert torch.equal(after[: old.vocab_size], before)
        mean = before.mean(0).expand(new.vocab_size - old.vocab_size, -1)
        torch.testing.assert_close(after[old.vocab_size :], mean)
    torch.testing.assert_close(initial_weights(run, (old, None), config), weights, rtol=0, atol=0)
    with pytest.raises(UsageError, match="adapters train no embeddings"):
        initial_weights(run, (new, None), RunConfig(lora=LoraConfig(rank=2)))


def test_tokens_have_to_be_those_that_the_weights_were_trained_with(tmp_path):
    run, own, other = make_run(tmp_path / "run"), make_tokenizer("bpe"), make_tokenizer("char")
    initial_weights(run, (own, own.with_chat_template()), RunConfig())
    for sides in ((other, None), (own, other), (other, own)):
        with pytest.raises(UsageError, match="were learned with another tokenizer"):
            initial_weights(run, sides, RunConfig())
