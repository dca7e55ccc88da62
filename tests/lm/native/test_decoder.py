"""The compiled step gives the logits that torch gives, of any model that it takes, in any use of its caches."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import nn

from lm.config.decoding import SamplingConfig
from lm.config.model import ModelConfig
from lm.decoding.beam_search import beam_search
from lm.decoding.generator import Generator
from lm.decoding.steps.ragged_steps import RaggedSteps
from lm.decoding.steps.steps import DecoderSteps
from lm.decoding.steps.translation_steps import EncoderDecoderSteps
from lm.errors import UsageError
from lm.kernels import compiled
from lm.model.quantised import int8_matrices, quantise
from lm.model.transformer import DecoderOnly, build_model
from lm.native import choice
from lm.native.compiling import compile_step
from tests.cli.small_runs import make_tokenizer
from tests.lm.decoding.encoder_decoders import uncached
from tests.lm.decoding.random_blocks import random_block
from tests.lm.machine_code import kept_code
from tests.tolerances import approx, assert_close, rounding_error

pytest.importorskip("numba")


@pytest.fixture(scope="module", autouse=True)
def _with_compiled_step(pytestconfig):
    """The compiled step, which serves from the first token on."""
    with kept_code(pytestconfig), pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_LOADING", 0.0)
        compile_step()
        assert compiled.is_ready()
        yield


POSITIONS = ("rotary", "learned", "sinusoidal", "sinusoidal-half", "alibi", "t5", "none")


def drawn(seed: int) -> ModelConfig:
    """Any model that the step takes."""
    of = random.Random(seed)
    fields = random_block(of, seed, POSITIONS, ["relu", "gelu", "gelu-tanh", "swiglu", "relu2"])
    fields |= {
        "scale_embeddings": of.random() < 0.3, "d_head": of.choice([None, 6]),
        "attention_bias": of.choice([None, "inputs"]),
    }  # fmt: skip
    if fields["positions"] == "rotary":
        head = fields["d_head"] or fields["d_model"] // 4
        fields |= of.choice([{}, {"rotary_share": 2 / head}, {"rope_scaling": "linear", "rope_factor": 2.0}])
    return ModelConfig(vocab_size=37, context_length=8, **fields)


def built(config: ModelConfig, *, in_8_bits: bool = False) -> DecoderOnly:
    model = build_model(config, seed=1).eval().requires_grad_(False)
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    if in_8_bits:
        quantise(model)
    return model


def widened(model: DecoderOnly) -> DecoderOnly:
    """The same numbers in float32, which torch multiplies."""
    model = copy.deepcopy(model)
    for name, matrix in list(int8_matrices(model)):
        weight = nn.Parameter(matrix.rows(torch.arange(len(matrix))), requires_grad=False)
        layer = model.get_submodule(name)
        del layer.weight
        layer.weight = weight
    return model


@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize("seed", range(14))  # twice as many as there are kinds of positions
def test_logits_are_those_of_reading_all_again(seed, in_8_bits):
    """Beyond the context too, with rows that are left out, repeated, and taken back.

    Of weights in 8 bits the inputs are rounded to 16, which is a part of what rounding the weights changes.
    """
    config = drawn(seed)
    model = built(config, in_8_bits=in_8_bits)
    of, rows = random.Random(seed), seed % 5 + 1
    steps, again = DecoderSteps(model), DecoderSteps(widened(model), cached=False)
    for length in [3, *[1] * 5, 2, *[1] * 6]:
        tokens = torch.randint(37, (rows, length))
        expected = again.feed(tokens)
        error = 2e-3 if in_8_bits else rounding_error(expected, model=model)
        torch.testing.assert_close(steps.feed(tokens), expected, atol=error, rtol=error if in_8_bits else 0)
        if of.random() < 0.3:
            chosen = torch.tensor([of.randrange(rows) for _ in range(of.randint(1, 5))])
            rows = len(chosen)
            for each in (steps, again):
                each.reorder(chosen)
        if of.random() < 0.3:
            for each in (steps, again):
                each.truncate(each.length - 1)
    assert model in choice._decoders


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_come_and_go_are_as_without_a_cache(seed):
    model = built(drawn(seed))
    of, steps, again = random.Random(seed), RaggedSteps(model), RaggedSteps(model, cached=False)
    rows = 0
    for _ in range(12):
        if rows < 3 or of.random() < 0.3:
            prompts = [[of.randrange(37) for _ in range(of.randint(1, 6))] for _ in range(of.randint(1, 3))]
            rows += len(prompts)
            assert_close(steps.join(prompts), again.join(prompts), model=model)
        tokens = torch.randint(37, (rows, 1))
        assert_close(steps.feed(tokens), again.feed(tokens), model=model)
        if of.random() < 0.4:
            kept = torch.tensor(sorted(of.sample(range(rows), of.randint(1, rows))))
            rows = len(kept)
            for each in (steps, again):
                each.reorder(kept)
    assert model in choice._decoders


def of_pairs(seed: int) -> ModelConfig:
    """Any encoder-decoder that the step takes."""
    return replace(drawn(seed), n_encoder_layers=1, parallel_residual=False, context_length=24)


@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize("seed", range(7))
def test_hypotheses_of_sources_are_as_if_each_were_read_alone(seed, in_8_bits):
    """Hypotheses change places, sources are left out and repeated, tokens taken back, and more read than the context.

    What 8 bits round is rounded alike in both.
    """
    model = built(of_pairs(seed), in_8_bits=in_8_bits)
    of = random.Random(seed)
    source, lengths, tokens = torch.randint(37, (4, 7)), torch.tensor([7, 3, 1, 5]), torch.empty(4, 0, dtype=torch.long)
    steps, known = EncoderDecoderSteps(model, source, lengths), model.config.position_limit or 30
    for _ in range(30):
        n = min(of.choice([1, 1, 1, 2]), known - tokens.shape[1])
        fresh = torch.randint(37, (len(tokens), n))
        tokens = torch.cat((tokens, fresh), dim=1)
        expected = uncached(model, source, lengths, tokens)[:, -n:]
        error = 2e-3 if in_8_bits else rounding_error(expected, model=model)
        torch.testing.assert_close(steps.feed(fresh), expected, atol=error, rtol=error if in_8_bits else 0)
        width = steps._slots.width
        sentences = list(range(len(tokens) // width))
        if of.random() < 0.2 and len(sentences) > 1:  # as a search does when some are done
            sentences.remove(of.choice(sentences))
        chosen = [sentence * width + of.randrange(width) for sentence in sentences for _ in range(3)]
        if of.random() < 0.15:
            chosen = sorted(of.randrange(len(tokens)) for _ in range(of.randint(1, 6)))
        rows = torch.tensor(chosen)
        steps.reorder(rows)
        source, lengths, tokens = source[rows], lengths[rows], tokens[rows]
        if of.random() < 0.2 or tokens.shape[1] == known:
            steps.truncate(tokens.shape[1] - 1)
            tokens = tokens[:, :-1]
    assert model in choice._decoders


@pytest.mark.parametrize("refill", [False, True])
def test_searches_find_the_same_whether_compiled_or_not(monkeypatch, refill):
    """Of ten sources, that end at different times."""
    model, lengths = built(of_pairs(3)), torch.arange(10) % 7 + 1
    source = torch.randint(37, (10, 7), generator=torch.Generator().manual_seed(1))

    def found():
        return beam_search(
            EncoderDecoderSteps(model, source, lengths), torch.zeros(10, 1, dtype=torch.long), beam_size=4,
            max_tokens=[*range(11, 21)], stop_ids=[1, 2], n=2, refill=refill,
        )  # fmt: skip

    of_step = found()
    assert model in choice._decoders
    monkeypatch.setattr(compiled, "is_compiled", lambda: False)
    choice._decoders.clear()
    of_torch = found()
    assert model not in choice._decoders
    for a, b in zip(chain(*of_step), chain(*of_torch), strict=True):
        assert (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
        assert a.score == approx(b.score, model=model)


def test_an_output_layer_may_have_a_bias():
    config = ModelConfig(vocab_size=37, context_length=8, d_model=16, n_layers=1, output_bias=True)
    model, tokens = built(config), torch.tensor([[1, 2, 3]])
    steps = DecoderSteps(model)
    found = torch.cat([steps.feed(token) for token in tokens.split(1, dim=1)], dim=1)
    assert_close(found, model(tokens), model=model)
    assert model in choice._decoders


def test_the_best_are_found_of_one_token_a_row_after_the_first():
    model, source = built(of_pairs(0)), torch.randint(37, (4, 7))
    steps = EncoderDecoderSteps(model, source, torch.tensor([7, 3, 1, 5]))
    assert steps.feed_for_best(torch.ones(4, 1, dtype=torch.long), 3) is None  # torch reads the source
    steps.feed(torch.ones(4, 1, dtype=torch.long))
    assert steps.feed_for_best(torch.ones(4, 2, dtype=torch.long), 3) is None
    assert steps.length == 1
    best = steps.feed_for_best(torch.full((4, 1), 2), 3)
    assert steps.length == 2
    steps.truncate(1)
    expected = steps.feed(torch.full((4, 1), 2))[:, -1].topk(3)
    assert best.places.tolist() == expected.indices.tolist()


def test_samples_are_the_same_whether_compiled_or_not(monkeypatch):
    tokenizer = make_tokenizer("bpe")
    config = ModelConfig(vocab_size=tokenizer.vocab_size, context_length=32, d_model=32, n_layers=2, init_std=0.3)
    generator = Generator(built(config), tokenizer, SamplingConfig(seed=3, max_tokens=40))
    samples = [sample.tokens for sample in generator.samples("The owl", n=5)]
    monkeypatch.setattr(choice, "_MOST_TOKENS", 0)
    assert samples == [sample.tokens for sample in generator.samples("The owl", n=5)]


@pytest.mark.parametrize(
    "fields",
    [{"positions": "relative"}, {"experts": 2}, {"architecture": "lstm"}, {"attention": "compressed"}],
)
def test_what_the_step_does_not_know_is_left_to_torch(fields):
    config = ModelConfig(vocab_size=37, context_length=8, d_model=16, n_layers=2, **fields)
    assert not choice.can_step(config)
    assert choice.native_decoder(built(config), tokens=1) is None


def test_a_model_that_is_being_trained_is_left_to_torch():
    """Its weights may be put elsewhere."""
    config = ModelConfig(vocab_size=37, context_length=8, d_model=16, n_layers=1)
    assert choice.native_decoder(build_model(config).eval(), tokens=1) is None
    assert choice.native_decoder(built(config), tokens=1) is not None


def test_learned_positions_end_with_the_context():
    """As they do for torch: the window moves on before."""
    config = ModelConfig(vocab_size=37, context_length=4, d_model=16, n_layers=1, positions="learned")
    steps = DecoderSteps(built(config))
    for _ in range(9):
        try:
            steps.feed(torch.zeros(1, 1, dtype=torch.long))
        except UsageError as error:  # pragma: no cover (it would be a defect)
            pytest.fail(str(error))


def test_machine_code_of_another_processor_is_left_alone(monkeypatch):
    config = ModelConfig(vocab_size=37, context_length=8, d_model=16, n_layers=1)
    monkeypatch.setattr(compiled, "processor", lambda: "another")
    compiled._is_of_this_processor.cache_clear()
    assert choice.native_decoder(built(config), tokens=1) is None
    compiled._is_of_this_processor.cache_clear()


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_keeps_the_threads_it_was_given(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        DecoderSteps(built(drawn(0))).feed(torch.tensor([[1, 2, 3]]))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
