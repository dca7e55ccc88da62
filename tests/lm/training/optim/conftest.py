"""Runs as those that training is tested with."""

from tests.lm.training.conftest import byte_tokenizer, make_run, shards

__all__ = ["byte_tokenizer", "make_run", "shards"]
