"""The compiled step gives the logits that torch gives, of any model that it takes, in any use of its caches."""

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import get_args, get_type_hints

import pytest
import torch

from lm import engine
from lm.config.model import ModelConfig
from lm.config.run_config import LoraConfig
from lm.decoding.beam_search import beam_search
from lm.engine import compile_decode_step, plan_engines
from lm.errors import UsageError
from lm.kernels import code_cache
from lm.model import DecoderOnly, average_predictions, build_model
from lm.model.layers import quantise
from lm.model.lora import build_model_with_lora
from tests.lm.decoding.encoder_decoders import uncached
from tests.lm.decoding.random_blocks import random_block
from tests.lm.decoding.session_driver import SessionDriver, session
from tests.lm.machine_code import kept_code
from tests.slow_cases import slow_after
from tests.tolerances import approx, assert_close, rounding_error

pytest.importorskip("numba")


@pytest.fixture(scope="module", autouse=True)
def _with_compiled_step(pytestconfig):
    """The compiled step."""
    with kept_code(pytestconfig):
        compile_decode_step()
        assert code_cache.is_complete()
        yield


ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "swiglu", "relu2", "silu")
POSITIONS = ("rotary", "learned", "sinusoidal", "sinusoidal-half", "alibi", "t5", "none")


def drawn(seed: int) -> ModelConfig:
    """Any model that the step takes."""
    of = random.Random(seed)
    chosen = random_block(of, seed, POSITIONS, ACTIVATIONS)
    chosen |= {
        "scale_embeddings": of.random() < 0.3, "d_head": of.choice([None, 6]),
        "attention_bias": of.choice([None, "inputs"]),
    }  # fmt: skip
    if chosen["positions"] == "rotary":
        head = chosen["d_head"] or chosen["d_model"] // 4
        chosen |= of.choice([{}, {"rotary_fraction": 2 / head}, {"rope_scaling": "linear", "rope_factor": 2.0}])
    return ModelConfig(vocab_size=37, context_length=8, **chosen)


def built(config: ModelConfig, *, is_int8: bool = False) -> DecoderOnly:
    model = build_model(config, seed=1).eval().requires_grad_(False)
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    if is_int8:
        quantise(model)
    return model


def widened(model: DecoderOnly) -> DecoderOnly:
    """The same numbers in float32, which torch multiplies."""
    wide = build_model(model.config).eval().requires_grad_(False)
    weights = model.state_dict()
    scales = {
        name.removesuffix("scale") + "weight": weights.pop(name) for name in [*weights] if name.endswith(".scale")
    }
    wide.load_state_dict(
        {name: weight * scales[name][:, None] if name in scales else weight for name, weight in weights.items()}
    )
    return wide


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("seed", slow_after(7, range(14)))  # as many as there are kinds of positions, and twice
def test_logits_equal_those_of_recomputation(seed, is_int8):
    """Beyond the context too, with rows that are left out, repeated, and taken back.

    Of weights in 8 bits the inputs are rounded to 16, which is a part of what rounding the weights changes.
    """
    config = drawn(seed)
    model = built(config, is_int8=is_int8)
    of, rows = random.Random(seed), seed % 5 + 1
    steps, again = SessionDriver(model), SessionDriver(widened(model), cached=False)
    for length in [3, *[1] * 5, 2, *[1] * 6]:
        tokens = torch.randint(37, (rows, length))
        expected = again.feed(tokens)
        error = 5e-3 if is_int8 else rounding_error(expected, model=model)
        torch.testing.assert_close(steps.feed(tokens), expected, atol=error, rtol=error if is_int8 else 0)
        if of.random() < 0.3:
            chosen = torch.tensor([of.randrange(rows) for _ in range(of.randint(1, 5))])
            rows = len(chosen)
            for each in (steps, again):
                each.reorder(chosen)
        if of.random() < 0.3:
            for each in (steps, again):
                each.truncate(each.length - 1)
    assert model in engine._compiled


@pytest.mark.parametrize("seed", slow_after(3, range(8)))
def test_rows_that_come_and_go_are_as_without_a_cache(seed):
    model = built(drawn(seed))
    of, steps, again = random.Random(seed), SessionDriver(model), SessionDriver(model, cached=False)
    rows = 0
    for _ in range(12):
        if rows < 3 or of.random() < 0.3:
            prompts = [[of.randrange(37) for _ in range(of.randint(1, 6))] for _ in range(of.randint(1, 3))]
            rows += len(prompts)
            assert_close(steps.join(prompts), again.join(prompts), model=model)
        tokens = torch.randint(37, (rows, 1))
        assert_close(steps.feed(tokens), again.feed(tokens), model=model)
        if of.random() < 0.4:
            kept = sorted(of.sample(range(rows), of.randint(1, rows)))
            rows = len(kept)
            for each in (steps, again):
                each.keep(kept)
    assert model in engine._compiled


def of_pairs(seed: int) -> ModelConfig:
    """Any encoder-decoder that the step takes."""
    return replace(drawn(seed), n_encoder_layers=1, parallel_residual=False, context_length=24)


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("seed", range(7))
def test_hypotheses_of_sources_equal_those_of_single_sources(seed, is_int8):
    """Hypotheses change places, sources are left out and repeated, tokens taken back, and more read than the context.

    What 8 bits round is rounded alike in both.
    """
    model = built(of_pairs(seed), is_int8=is_int8)
    of = random.Random(seed)
    source, lengths, tokens = torch.randint(37, (4, 7)), torch.tensor([7, 3, 1, 5]), torch.empty(4, 0, dtype=torch.long)
    steps, known, width = SessionDriver(model, source, lengths), model.config.position_limit or 30, 1
    for _ in range(20):
        n = min(of.choice([1, 1, 1, 2]), known - tokens.shape[1])
        fresh = torch.randint(37, (len(tokens), n))
        tokens = torch.cat((tokens, fresh), dim=1)
        expected = uncached(model, source, lengths, tokens)[:, -n:]
        error = 5e-3 if is_int8 else rounding_error(expected, model=model)
        torch.testing.assert_close(steps.feed(fresh), expected, atol=error, rtol=error if is_int8 else 0)
        sentences = list(range(len(tokens) // width))
        if of.random() < 0.2 and len(sentences) > 1:  # as a search does when some are done
            sentences.remove(of.choice(sentences))
        chosen = [sentence * width + of.randrange(width) for sentence in sentences for _ in range(3)]
        width = 3
        if of.random() < 0.15:
            chosen, width = sorted(of.randrange(len(tokens)) for _ in range(of.randint(1, 6))), 1
        rows = torch.tensor(chosen)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]
        if of.random() < 0.2 or tokens.shape[1] == known:
            steps.truncate(tokens.shape[1] - 1)
            tokens = tokens[:, :-1]
    assert model in engine._compiled


@pytest.mark.parametrize("refill", [False, True])
def test_compiled_beam_search_equals_torch(monkeypatch, refill):
    """Of ten sources, that end at different times."""
    model, lengths = built(of_pairs(3)), torch.arange(10) % 7 + 1
    source = torch.randint(37, (10, 7), generator=torch.Generator().manual_seed(1))

    def found():
        return beam_search(
            session(model), torch.zeros(10, 1, dtype=torch.long), beam_size=4, max_tokens=[*range(11, 21)],
            stop_ids=[1, 2], n=2, refill=refill, sources=(source, lengths),
        )  # fmt: skip

    of_step = found()
    assert model in engine._compiled
    monkeypatch.setattr(code_cache, "is_complete", lambda: False)
    engine._compiled.clear()
    of_torch = found()
    assert model not in engine._compiled
    for a, b in zip(chain(*of_step), chain(*of_torch), strict=True):
        assert (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
        assert a.score == approx(b.score, model=model)


VALUES = {
    "vocab_size": [1, 50], "source_vocab_size": [45], "labels": [("good", "bad")], "context_length": [1, 5, 3000],
    "d_model": [8, 24], "n_layers": [1, 3], "n_encoder_layers": [1, 2], "n_heads": [1, 2], "n_kv_heads": [1, 2],
    "d_ff": [1, 33], "attention_window": [1, 2, 40], "attention_block": [2], "global_blocks": [0], "random_blocks": [0],
    "attention_rank": [3], "attention_stride": [2], "max_distance": [20], "max_tree_distance": [2],
    "rope_base": [1.0, 500.0], "d_head": [2, 18], "rotary_fraction": [0.5], "rope_factor": [3.0], "rope_context": [4],
    "rope_slow": [0.5], "rope_fast": [9.0], "rope_temperature": [0.7], "norm_eps": [0.0, 0.1], "dropout": [0.5],
    "attention_dropout": [0.5], "init_std": [0.0, 1.0], "softcap": [2.0], "experts": [2], "experts_per_token": [2],
    "expert_every": [2], "expert_capacity": [1.0], "gate_noise": [1.0], "token_types": [2], "members": [2],
}  # fmt: skip
"""What fields may be that have no end of values; of all others every value is tried."""
_PAIRS, _MASKED = {"n_encoder_layers": 1}, {"objective": "masked"}
NEEDS = {
    "source_vocab_size": _PAIRS, "syntax": _PAIRS, "labels": _MASKED, "token_types": _MASKED,
    "recurrent_attention": {"architecture": "gru", **_PAIRS}, "attention_window": {"attention": "window"},
    **{key: {"attention": "bigbird"} for key in ("attention_block", "global_blocks", "random_blocks")},
    "attention_rank": {"attention": "linformer", **_PAIRS}, "attention_stride": {"attention": "compressed"},
    "max_distance": {"positions": "t5"}, "max_tree_distance": {"syntax": "distance", **_PAIRS},
    "rope_factor": {"rope_scaling": "linear"},
    **{key: {"rope_scaling": "llama3", "rope_factor": 2.0} for key in ("rope_context", "rope_slow", "rope_fast")},
    "rope_temperature": {"rope_scaling": "yarn", "rope_factor": 2.0},
    **{key: {"experts": 2} for key in ("experts_per_token", "expert_every", "expert_capacity", "gate_noise")},
}  # fmt: skip
"""What else a model must have for a field to mean something."""


def every_value(name: str) -> list[object]:
    """What a field may be; of those with endless values the ones above."""
    if name in VALUES:
        return VALUES[name]
    kind = get_type_hints(ModelConfig)[name]
    kinds = get_args(kind) if type(None) in get_args(kind) else (kind,)
    return [value for each in kinds for value in ((True, False) if each is bool else get_args(each))]


def configs_with(name: str, value: object) -> Iterator[ModelConfig]:
    """Small models that have a value, alone and with a source, as far as there are such."""
    for others in ({}, _PAIRS, NEEDS.get(name, {})):
        given = {"vocab_size": 37, "context_length": 12, "d_model": 16, "n_layers": 2, "init_std": 0.3, **others}
        with contextlib.suppress(UsageError):
            yield ModelConfig(**{**given, name: value})


@pytest.mark.parametrize("name", [field.name for field in fields(ModelConfig)])
def test_every_value_of_every_field_is_computed_as_torch_does_or_left_to_it(name):
    """A field that is added, or a value, is left to torch until somebody says that the step knows it."""
    values = every_value(name)
    assert values, "say in VALUES what it may be"
    for value in values:
        configs = list(dict.fromkeys(configs_with(name, value)))
        assert configs, "say in NEEDS what it goes with"
        for config in configs:
            if engine.compiled_engine_supports(config):
                assert_steps_are_those_of_torch(config)
            elif not config.is_masked:
                assert plan_engines(built(config)).compiled is None


def assert_steps_are_those_of_torch(config: ModelConfig) -> None:
    model, length = built(config), min(config.context_length, 6)
    tokens = torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(4))
    if config.is_encoder_decoder:
        trees = [] if config.syntax == "none" else [4]
        source = torch.randint(min(config.vocab_size, 5), (2, 7, *trees), generator=torch.Generator().manual_seed(5))
        steps = SessionDriver(model, source)
        expected = average_predictions([member(source, tokens) for member in model.members])
    else:
        steps = SessionDriver(model)
        expected = average_predictions([member(tokens) for member in model.members])
    found = torch.cat([steps.feed(token) for token in tokens.split(1, dim=1)], dim=1)
    assert_close(found, expected, model=model)
    assert length == 1 or model in engine._compiled


def test_a_field_that_nobody_declared_is_left_to_torch(monkeypatch):
    assert engine.compiled_engine_supports(ModelConfig())
    monkeypatch.setattr(engine, "_COMPILED_ANY", engine._COMPILED_ANY - {"norm_eps"})
    assert not engine.compiled_engine_supports(ModelConfig())


def test_models_in_training_run_in_torch():
    """Their weights may be put elsewhere."""
    config = ModelConfig(vocab_size=37, context_length=8, d_model=16, n_layers=1)
    for model in (build_model(config), build_model_with_lora(config, LoraConfig(rank=2))):
        assert plan_engines(model.eval()).compiled is None
    assert plan_engines(built(config)).compiled is not None


IN_TWO_THREADS = """
import threading, torch
from lm.config.model import ModelConfig
from tests.lm.decoding.session_driver import SessionDriver
from lm.model import build_model
from lm import engine
model = build_model(ModelConfig(vocab_size=300, d_model=64, n_layers=2), seed=1).eval().requires_grad_(False)
found = []
def generate():
    torch.set_num_threads(2)
    for _ in range(10):
        steps = SessionDriver(model)
        found.append([steps.feed(torch.tensor([[token]])) for token in range(30)][-1])
threads = [threading.Thread(target=generate) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import numba
same = all(torch.equal(each, found[0]) for each in found)
print(numba.threading_layer(), len(found), same, model in engine._compiled)
"""


@pytest.mark.slow
def test_threads_may_generate_concurrently_with_numbas_own_pool():
    """Which aborts where two threads use it at once; there is no other where OpenMP can't be loaded."""
    environment = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", IN_TWO_THREADS]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert told.stdout.strip() == "workqueue 30 True True", told.stderr
