import itertools

import pytest
import tokenizers

from lm.config.decoding import SamplingConfig, TranslationConfig
from lm.config.model import ModelConfig
from lm.decoding.sampling import Sampler
from lm.decoding.translation import Translator
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.model.transformer import build_model
from lm.tokenizer.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
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


@pytest.mark.parametrize("beam", [1, 5])
def test_a_model_that_learned_to_copy_copies(beam):
    sources = lines(60, seed=7)
    assert texts(copier(), sources, TranslationConfig(beam=beam)) == sources


def test_each_line_has_its_own_translation_whatever_lines_are_around_it():
    sources = [*lines(30, seed=8), "", "  \t", *lines(30, seed=9), ""]
    expected = [source.strip() for source in sources]
    assert texts(copier(), sources) == expected
    for config in (
        TranslationConfig(batch_tokens=1), TranslationConfig(read_ahead=1), TranslationConfig(read_ahead=7),
        TranslationConfig(batch_tokens=20, read_ahead=40),
    ):  # fmt: skip
        assert texts(copier(), sources, config) == expected


def test_batches_do_not_change_scores():
    sources = lines(20, seed=3)
    together = list(Translator([untrained()]).translate(sources))
    alone = [next(Translator([untrained()]).translate([source])) for source in sources]
    for left, right in zip(together, alone, strict=True):
        assert left.translations[0].tokens == right.translations[0].tokens
        assert left.translations[0].score == approx(right.translations[0].score, model=untrained().model)


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
