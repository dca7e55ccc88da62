"""Runs as those that training is tested with, and a clock that moves when it is told to."""

from tests.lm.training.conftest import byte_tokenizer, make_run, shards, time

__all__ = ["byte_tokenizer", "make_run", "shards", "time"]
