import numpy as np
import pytest

from lm.config.evaluation import PerplexityConfig
from lm.config.model import ModelConfig
from lm.errors import UsageError
from lm.evaluation.windows import CausalWindowSplitter, resolve_window_sizes


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (1, 1), (300, 300)])
@pytest.mark.parametrize("start_token", [None, 999])
@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17, 18, 100])
def test_windows_account_for_every_token_once_however_a_document_comes(context, stride, start_token, length):
    for parts in (1, 3, 100):
        splitter = CausalWindowSplitter(context=context, stride=stride, start_token=start_token)
        windows = [w for part in np.array_split(np.arange(length), parts) for w in splitter.push(part)]
        windows += splitter.finish()
        accounted = [
            token for w in windows for token in [*w.tokens[: w.unscored], *w.tokens[len(w.tokens) - w.scored :]]
        ]
        assert accounted == list(range(length))
        assert all(len(w.tokens) - 1 <= context for w in windows)
        assert sum(w.unscored for w in windows) == (start_token is None and length > 0)
        for later in windows[1:]:
            assert len(later.tokens) - 1 - later.scored >= context - stride


def test_sizes_default_to_the_models_context_and_half_of_it():
    config = ModelConfig(context_length=128)
    assert resolve_window_sizes(config, PerplexityConfig()) == (128, 64)
    assert resolve_window_sizes(config, PerplexityConfig(context=31)) == (31, 15)
    assert resolve_window_sizes(config, PerplexityConfig(context=1)) == (1, 1)
    assert resolve_window_sizes(config, PerplexityConfig(context=500, stride=500)) == (500, 500)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="stride"):
        resolve_window_sizes(ModelConfig(), PerplexityConfig(context=10, stride=11))
    with pytest.raises(UsageError, match="beyond the 64 positions"):
        resolve_window_sizes(ModelConfig(positions="learned", context_length=64), PerplexityConfig(context=65))
    for values in ({"context": 0}, {"stride": 0}, {"batch_size": -1}):
        with pytest.raises(UsageError, match="at least 1"):
            PerplexityConfig(**values)
