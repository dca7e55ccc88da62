"""A line is read within its frame by each model, and cut where a model's positions end."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import tokenizers
import torch

from lm.checkpoint import load_model
from lm.config.data import ParallelTextConfig
from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.sampling import Sampler
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel, build_source_line, pad_sources
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.model.transformer import build_model
from lm.tokenizer.special_tokens import SpecialTokenFrame, build_pair_frames
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_run, make_tokenizer
from tests.lm.decoding.copying import copier, lines
from tests.lm.decoding.encoder_decoders import forced
from tests.tolerances import approx


def untrained(seed: int = 0, tokenizer: Tokenizer | None = None, **fields) -> TranslationModel:
    tokenizer = tokenizer or make_tokenizer("bpe")
    config = {
        "vocab_size": tokenizer.vocab_size, "context_length": 64, "d_model": 32, "n_layers": 1, "n_encoder_layers": 1,
        "n_heads": 2, "init_std": 0.3, **fields,
    }  # fmt: skip
    model = build_model(ModelConfig(**config), seed=seed).eval().requires_grad_(False)
    return TranslationModel(model, tokenizer, tokenizer)


def with_tags(*languages: str) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(make_tokenizer("bpe")._backend.to_str())
    backend.add_special_tokens([f"<2{language}>" for language in languages])
    return Tokenizer(backend)


def texts(models, sources, config=None, *, prefixes=None, **options) -> list[str]:
    translator = Translator([models] if isinstance(models, TranslationModel) else models, config, **options)
    return [result.translations[0].text for result in translator.translate(sources, prefixes=prefixes)]


@pytest.mark.medium
@pytest.mark.parametrize("beam", [1, 5])
def test_a_model_that_learned_to_copy_copies(beam):
    sources = lines(60, seed=7)
    assert texts(copier(), sources, TranslationConfig(beam=beam)) == sources


def test_each_line_has_its_own_translation_whatever_lines_are_around_it():
    sources = [*lines(12, seed=8), "", "  \t", *lines(12, seed=9), ""]
    expected = [source.strip() for source in sources]
    assert texts(copier(), sources) == expected
    for config in (
        TranslationConfig(batch_tokens=1), TranslationConfig(read_ahead=1), TranslationConfig(read_ahead=7),
        TranslationConfig(batch_tokens=20, read_ahead=20),
    ):  # fmt: skip
        assert texts(copier(), sources, config) == expected


def test_the_score_is_the_forced_one():
    model = copier()
    for source in lines(8, seed=4):
        (result,) = Translator([model]).translate([source])
        ids = [*model.source_tokenizer.encode(source), model.source_tokenizer.end_of_text]
        best = result.translations[0]
        nats = forced(model.model, ids, list(best.tokens), start=model.tokenizer.start_of_text)
        assert best.logprobs == approx(nats, model=model.model)
        assert best.score == approx(sum(nats) / len(nats), model=model.model, scale=nats)


def test_blank_lines_never_reach_the_model_and_stay_blank():
    broken = untrained()
    broken.model.embedding.tokens.weight.fill_(float("nan"))
    results = list(Translator([broken], TranslationConfig(n_best=2)).translate(["", "   ", "\t"]))
    assert [[one.text for one in result.translations] for result in results] == [["", ""]] * 3


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal"])
def test_a_line_of_a_thousand_words_has_one_line(positions):
    sources = ["owl", " ".join(["owl fox"] * 500), "fox"]
    config = TranslationConfig(beam=2, max_length_ratio=0.05)
    results = list(Translator([untrained(positions=positions)], config).translate(sources))
    assert [result.source for result in results] == sources
    assert [result.left_out > 0 for result in results] == [False, positions == "learned", False]


def test_learned_positions_bound_the_translation_as_well():
    config = TranslationConfig(beam=2, max_length_ratio=1000)
    (result,) = Translator([untrained(positions="learned", context_length=16)], config).translate(["owl " * 40])
    assert len(result.translations[0].tokens) <= 16
    with pytest.raises(UsageError, match="prefix of line 1"):
        texts(untrained(positions="learned", context_length=16), ["owl"], prefixes=["fox " * 40])


def test_no_translation_is_longer_than_the_source_allows():
    model = untrained()
    config = TranslationConfig(beam=1, max_length_ratio=1.5, max_length_extra=2)
    for result in Translator([model], config).translate(lines(20, seed=1)):
        n = len(model.source_tokenizer.encode(result.source)) + 1
        assert len(result.translations[0].tokens) <= int(1.5 * n + 2)


def test_a_translation_is_one_line_without_special_tokens():
    tokenizer = make_tokenizer("byte")
    model = untrained(tokenizer=tokenizer, init_std=1.0)
    sampler = Sampler.from_config(SamplingConfig(temperature=1.0, seed=1))
    feed = tokenizer.encode("\n")[0]
    drawn = list(Translator([model], sampler=sampler).translate(lines(100, seed=1)))
    assert any(feed in result.translations[0].tokens for result in drawn)
    for result in drawn:
        assert not set(result.translations[0].text) & {"\n", "\r"}
        assert "endoftext" not in result.translations[0].text


def test_ids_that_only_fill_up_the_matrix_have_no_text():
    """They are never learned, but what was imported, or never trained, may have them."""
    model = untrained(vocab_size=make_tokenizer("bpe").vocab_size + 300)
    results = list(Translator([model]).translate(lines(5, seed=2)))
    assert any(token >= 300 for result in results for token in result.translations[0].tokens)
    for result in results:
        known = [token for token in result.translations[0].tokens if token < 300]
        assert result.translations[0].text == model.tokenizer.decode(known).replace("\n", " ")


def test_n_best_are_different_and_best_first():
    for result in Translator([copier()], TranslationConfig(n_best=4)).translate(lines(10, seed=2)):
        scores = [one.score for one in result.translations]
        assert len({one.tokens for one in result.translations}) == len(scores) == 4
        assert scores == sorted(scores, reverse=True)
        assert result.translations[0].text == result.source
    with pytest.raises(UsageError, match="translations per line need a beam at least as wide"):
        Translator([copier()], TranslationConfig(n_best=6))


def test_translations_start_with_their_prefixes():
    sources, prefixes = ["owl fox", "mill", "", "saw ran"], ["mill", "", "fox", "owl saw"]
    found = texts(copier(), sources, prefixes=prefixes)
    assert [text.startswith(prefix) for text, prefix in zip(found, prefixes, strict=True)] == [True, True, False, True]
    assert found[1:3] == ["mill", ""]
    assert texts(copier(), sources, prefixes=["mill"])[1:] == ["mill", "", "saw ran"]


def test_samples_do_not_depend_on_batches_and_differ():
    sampler = Sampler.from_config(SamplingConfig(temperature=1.0, seed=5))
    sources = ["owl fox"] * 3 + lines(10, seed=6)
    drawn = []
    for config in (TranslationConfig(n_best=6), TranslationConfig(n_best=6, batch_tokens=1, read_ahead=2)):
        results = Translator([untrained()], config, sampler=sampler).translate(sources)
        drawn.append([[one.tokens for one in result.translations] for result in results])
    assert drawn[0] == drawn[1]
    assert len(set(itertools.chain(*drawn[0][:3]))) == 18
    (best,) = Translator([untrained()], sampler=sampler).translate(["owl"])
    assert best.translations[0].score == pytest.approx(sum(best.translations[0].logprobs))


@pytest.mark.medium
@pytest.mark.parametrize("n", [1, 4])
def test_samples_depend_neither_on_how_many_there_are_nor_on_the_other_lines(n):
    sampler = Sampler.from_config(SamplingConfig(temperature=1.0, seed=5))
    sources = [*dict.fromkeys(lines(8, seed=6)), "owl fox mill", ""]

    def drawn(some, **options):
        translator = Translator([untrained()], TranslationConfig(**options), sampler=sampler)
        results = list(translator.translate(some))
        return {one.source: [sample.tokens for sample in one.translations] for one in results}

    expected = drawn(sources, n_best=4)
    for some in (sources, sources[::-1], sources[3:6], ["狐", *sources, "狐"]):
        found = drawn(some, n_best=n, read_ahead=3)
        assert all(samples == expected[source][:n] for source, samples in found.items() if source in expected)


def test_penalties_count_in_a_search_and_spare_the_end_token():
    model = untrained(init_std=0.5)
    config = TranslationConfig(beam=3, max_length_ratio=4)
    sampler = Sampler.from_config(SamplingConfig(greedy=True, no_repeat_ngram=1))
    free = [result.translations[0].tokens for result in Translator([model], config).translate(lines(20, seed=3))]
    assert any(len(set(tokens)) < len(tokens) for tokens in free)
    for result in Translator([model], config, sampler=sampler).translate(lines(20, seed=3)):
        assert len(set(result.translations[0].tokens)) == len(result.translations[0].tokens)
    sources = lines(20, seed=3)
    once = Sampler.from_config(SamplingConfig(greedy=True, no_repeat_ngram=3))
    assert texts(copier(), ["owl fox"], sampler=once) == ["owl fox"]  # the start token is no earlier end token
    bans_all = Sampler.from_config(SamplingConfig(greedy=True), {(i,): float("-inf") for i in range(300)})
    with pytest.raises(UsageError, match="every token is banned"):
        texts(model, sources, sampler=bans_all)


def test_an_ensemble_of_a_model_with_itself_is_the_model():
    sources = lines(15, seed=11)
    assert texts([copier(), copier()], sources) == texts(copier(), sources)
    mixed = list(Translator([untrained(1), untrained(2)], TranslationConfig(coverage_penalty=0.1)).translate(sources))
    assert [result.source for result in mixed] == sources
    with pytest.raises(UsageError, match="same target tokenizer"):
        Translator([copier(), untrained(tokenizer=make_tokenizer("byte"))])


def test_models_with_several_directions_need_a_target_language():
    both = untrained(tokenizer=with_tags("de", "en"))
    with pytest.raises(UsageError, match="translates into de, en; say into which"):
        Translator([both])
    with pytest.raises(UsageError, match="not 'fr'"):
        Translator([both], to="fr")
    with pytest.raises(UsageError, match="one direction"):
        Translator([untrained()], to="de")
    tag = both.tokenizer.special_tokens["<2de>"]
    (result,) = Translator([both], TranslationConfig(beam=1), to="de").translate(["owl"])
    ids = [tag, *both.tokenizer.encode("owl"), both.tokenizer.end_of_text]
    tokens = list(result.translations[0].tokens)
    nats = forced(both.model, ids, tokens, start=both.tokenizer.start_of_text)
    assert result.translations[0].logprobs == approx(nats, model=both.model)


def test_lines_are_read_ahead_up_to_the_limit():
    taken = []

    def source():
        for number in itertools.count():
            taken.append(number)
            yield "owl"

    config = TranslationConfig(beam=1, read_ahead=5)
    results = Translator([untrained()], config).translate(source())
    for _ in range(12):
        next(results)
    assert len(taken) == 15


TAGGED, PLAIN = SpecialTokenFrame((7,), (9,)), SpecialTokenFrame((), (8,))


def model(limit: int) -> SimpleNamespace:
    return SimpleNamespace(source_limit=limit)


@pytest.mark.parametrize(
    ("limit", "read", "left_out"),
    [(4096, [7, 1, 2, 3, 9], 0), (5, [7, 1, 2, 3, 9], 0), (4, [7, 1, 2, 9], 1), (2, [7, 9], 3), (1, [7, 9], 3)],
)
def test_the_frame_stays_and_the_text_is_cut(limit, read, left_out):
    line = build_source_line(4, "one two three", [(model(limit), TAGGED, [1, 2, 3])], [5, 6])
    assert (line.number, line.text, line.prefix) == (4, "one two three", [5, 6])
    assert (line.sources, line.left_out, line.length) == ((read,), left_out, len(read))


def test_each_model_reads_the_line_in_its_own_way():
    line = build_source_line(0, "", [(model(3), TAGGED, [1, 2]), (model(4096), PLAIN, [3, 4, 5])], [])
    assert line.sources == ([7, 1, 9], [3, 4, 5, 8])
    assert (line.left_out, line.length, line.is_blank) == (1, 4, True)


def test_sources_are_padded_to_the_longest():
    ids, lengths = pad_sources([[1, 2, 3], [4], [5, 6]])
    assert torch.equal(ids, torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0]]))
    assert torch.equal(lengths, torch.tensor([3, 1, 2]))


def test_only_a_model_that_learned_from_pairs_translates(tmp_path):
    hardware = Hardware("cpu", "float32", 1)
    with pytest.raises(UsageError, match="only a run trained on sentence pairs translates"):
        TranslationModel.from_loaded(load_model(make_run(tmp_path / "gpt"), hardware))
    rotary = make_run(tmp_path / "rotary", n_encoder_layers=1, positions="rotary")
    learned = make_run(tmp_path / "learned", n_encoder_layers=1, positions="learned", context_length=20)
    one_stack = make_run(tmp_path / "one", decoder_only=True, positions="learned", context_length=20)
    models = [TranslationModel.from_loaded(load_model(folder, hardware)) for folder in (rotary, learned, one_stack)]
    assert [model.source_limit for model in models] == [4096, 20, 10]
    assert [model.max_target_length([1, 2, 3]) for model in models] == [None, 20, 17]


@pytest.mark.parametrize(("max_length", "limit"), [(256, 4096), (3000, 6000)])
def test_without_a_position_limit_sources_have_a_default_limit(tmp_path, max_length, limit):
    """Attention takes time that grows with the square of the length, for a text like none it has learned from."""
    loaded = load_model(make_run(tmp_path / "run", n_encoder_layers=1), Hardware("cpu", "float32", 1))
    parallel = ParallelTextConfig(max_length=max_length)
    model = TranslationModel.from_loaded(
        dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, parallel=parallel))
    )
    ids = model.encode(["a" * 10_000], [None])[0]
    line = build_source_line(0, "", [(model, PLAIN, ids)], [])
    assert (line.length, line.left_out) == (limit, len(ids) + 1 - limit)


SOURCES = ["The owl saw the fox.", "by the mill", "", "sang the owl and the fox ran by the mill", "fox"]

ONE_STACK = {"n_encoder_layers": 0, "n_layers": 2, "decoder_only": True}

MODELS = {
    "encoder-decoder": {},
    **{f"decoder-only, {name}": {**ONE_STACK, "positions": name}
       for name in ("rotary", "learned", "relative", "sinusoidal", "t5")},
    "decoder-only, compressed": {**ONE_STACK, "n_layers": 1, "attention": "compressed", "attention_block": 4},
    "lstm": {"architecture": "lstm", "n_heads": 4},
    "gru without attention": {"architecture": "gru", "recurrent_attention": "none", "n_heads": 4},
    "gru, additive": {"architecture": "gru", "recurrent_attention": "additive", "n_heads": 4},
}  # fmt: skip

each_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)


def greedy(member, source: str, count: int) -> list[int]:
    """The most likely tokens, one after the other, each time with everything before read again."""
    frames = build_pair_frames(member.tokenizer, member.source_tokenizer)
    read, tokens = frames.source.wrap(member.source_tokenizer.encode(source)).tolist(), [frames.start]
    for _ in range(count):
        one_stack = member.model.config.decoder_only
        inputs = [torch.tensor([[*read, *tokens]])] if one_stack else [torch.tensor([read]), torch.tensor([tokens])]
        tokens.append(int(member.model(*inputs)[0, -1].argmax()))
    return tokens[1:]


@each_model
def test_a_beam_of_one_is_greedy(fields):
    member = untrained(**fields)
    for line in Translator([member], TranslationConfig(beam=1)).translate(["by the mill", "fox"]):
        tokens = list(line.translations[0].tokens)
        assert tokens == greedy(member, line.source, len(tokens))


@each_model
@pytest.mark.parametrize("beam", [1, 3])
def test_batches_change_no_translation_and_no_score(fields, beam):
    member = untrained(**fields)
    together, alone = (
        list(Translator([member], TranslationConfig(beam, batch_tokens=size, max_length_ratio=1)).translate(SOURCES))
        for size in (1024, 1)
    )
    for left, right in zip(together, alone, strict=True):
        assert left.translations[0].tokens == right.translations[0].tokens
        assert left.translations[0].score == approx(right.translations[0].score, model=member.model)


@each_model
def test_any_two_kinds_of_model_are_an_ensemble(fields):
    models = [untrained(**fields), untrained(seed=1)]
    assert len(texts(models, SOURCES[1:3], TranslationConfig(beam=3))) == 2


def test_an_ensemble_of_one_model_twice_translates_as_it_does_alone():
    member, config = untrained(**ONE_STACK), TranslationConfig(beam=3)
    assert texts([member] * 2, SOURCES, config) == texts(member, SOURCES, config)


def test_a_translation_starts_with_its_prefix():
    found = texts(untrained(**ONE_STACK), SOURCES, TranslationConfig(beam=2), prefixes=["The fox", "", "", "", "owl"])
    assert [text.startswith(prefix) for text, prefix in zip(found, ["The fox", "", "", "", "owl"], strict=True)]


def test_learned_positions_leave_half_to_the_translation():
    member = untrained(**ONE_STACK, positions="learned", context_length=20)
    config = TranslationConfig(beam=2, max_length_ratio=100)
    (line,) = Translator([member], config).translate([" ".join(["owl fox"] * 40)])
    assert line.left_out > 0
    assert 1 <= len(line.translations[0].tokens) <= 10
    with pytest.raises(UsageError, match="the prefix of line 1 fills all of the model's positions"):
        texts(member, ["owl"], prefixes=[" ".join(["fox"] * 30)])


@pytest.mark.parametrize("name", ["decoder-only, rotary", "gru without attention"])
def test_a_coverage_penalty_needs_cross_attention(name):
    config = TranslationConfig(coverage_penalty=0.2)
    with pytest.raises(UsageError, match="needs a model with cross-attention"):
        Translator([untrained(**MODELS[name])], config)
    assert texts(untrained(**MODELS["lstm"]), SOURCES, config)
