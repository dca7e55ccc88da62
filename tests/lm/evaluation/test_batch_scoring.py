import numpy as np
import pytest
import torch

from tests.lm.evaluation.small_models import make_model, random_tokens, score_document, token_by_token
from tests.tolerances import assert_close


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 8), (16, 1), (7, 3), (1, 1), (40, 25), (300, 300)])
@pytest.mark.parametrize("start_token", [None, 3])
def test_every_token_has_the_surprisal_of_a_float64_loop(context, stride, start_token):
    model, tokens = make_model(), random_tokens(45)
    expected = token_by_token(model, tokens, context=context, stride=stride, start_token=start_token)
    for length in (0, 1, 2, 9, 16, 17, 45):  # what comes later changes nothing, so the loop runs once
        for batch_size in (1, 3, 32):
            nats = score_document(
                model, tokens[:length], context=context, stride=stride, start_token=start_token, batch_size=batch_size
            )
            assert nats.dtype == np.float64
            assert len(nats) == max(0, length - (start_token is None))
            assert_close(nats, expected[: len(nats)], model=model, dtype=torch.float32)


@pytest.mark.parametrize("fields", [{"positions": "learned", "norm": "layernorm", "bias": True}, {"n_kv_heads": 1}])
def test_other_models_agree_with_the_loop_too(fields):
    model, tokens = make_model(**fields), random_tokens(75)
    expected = token_by_token(model, tokens, context=12, stride=4, start_token=0)
    nats = score_document(model, tokens, context=12, stride=4, start_token=0)
    assert_close(nats, expected, model=model, dtype=torch.float32)
