"""The context of a model of conversations is that of the longest one, within limits."""

from types import SimpleNamespace

import pytest

from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.config.run_spec import run_spec
from lm.training.planning.plan import plan_corpus, plan_spec


@pytest.mark.parametrize(
    ("longest", "options", "base", "context"),
    [
        (301, {}, None, 300),
        (5000, {}, None, 64 * 32 // 4),  # a quarter of the tokens of a batch
        (20, {}, None, 32),  # it is never shortened
        (0, {}, None, 32),  # other data
        (301, {"context": 48}, None, 48),
        (301, {}, ModelConfig(context_length=32), 300),
        (301, {}, ModelConfig(context_length=32, positions="learned"), 32),
        (301, {"context": 32}, ModelConfig(context_length=32), 32),
    ],
)
def test_the_longest_conversation_that_positions_and_batch_allow(longest, options, base, context):
    from_run = {} if base is None else {"from_run": "runs/base"}
    parent = None if base is None else RunConfig(model=base)
    chosen = plan_spec(run_spec("chats.jsonl", batch_tokens=64 * 32, **options, **from_run), parent=parent)
    if base is None and not options:
        chosen = chosen.choose("budget", {"model": {"context_length": 32}})
    corpus = SimpleNamespace(
        longest_conversation=longest, vocab_size=300, source_tokenizer=None, label_completions=(), kind="conversations"
    )
    fitted = plan_corpus(chosen, corpus)
    assert fitted.config.model.context_length == context
    assert (fitted.reasons["model.context_length"] == "longest conversation") == (context > 48)
