"""A row is what generation sees, then the completion; every epoch sees each example once."""

import gzip
import io
import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lm.config.data import IGNORE_INDEX, DataConfig
from lm.config.model import ModelConfig
from lm.corpus import text_corpus
from lm.corpus.manifest import Manifest
from lm.corpus.prepared_folder import PreparedFolder
from lm.corpus.tokenized_examples import open_examples
from lm.data.batch import Batch
from lm.data.example_data import ExampleData, completion_length_error, truncate_prompt
from lm.decoding.generator import encode_prompt
from lm.errors import InputError
from lm.hardware import Hardware
from lm.model.transformer import build_model
from lm.text.text_files import find_text_files
from lm.tokenizer.tokenizer import Tokenizer
from lm.training.objective import summed_loss
from tests.lm.corpus.preparing import prepare
from tests.lm.corpus.small_examples import PAIRS, WHOLE, drawn, lines, source, tokenizer
from tests.tolerances import approx

Row = tuple[tuple[int, ...], tuple[int, ...]]


def data(prepared: PreparedFolder[Manifest], *, context: int = 200, rows: int = 4, seed: int = 0) -> ExampleData:
    train, validation = (open_examples(prepared.folder, split) for split in ("train", "validation"))
    return ExampleData(train, validation, context=context, rows=rows, seed=seed)


def rows(batch: Batch) -> list[Row]:
    """(all ids, learned ids) of each row, without the padding."""
    found = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        learned = [place for place, target in enumerate(targets) if target != IGNORE_INDEX]
        last = learned[-1]
        assert learned == list(range(learned[0], last + 1))
        assert inputs[learned[0] + 1 : last + 1] == targets[learned[0] : last]
        found.append(((*inputs[: last + 1], targets[last]), tuple(targets[learned[0] : last + 1])))
    return found


def expected(made: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Counter[Row]:
    """What generation begins from, then the completion and the end."""
    completions = [(*made.encode(completion), made.end_of_text) for _, completion in pairs]
    prompts = [tuple(encode_prompt(made, prompt)) for prompt, _ in pairs]
    return Counter((prompt + rest, rest) for prompt, rest in zip(prompts, completions, strict=True))


class TestRows:
    def test_are_what_generation_sees_and_the_completion_with_its_end(self, elsewhere, tmp_path, monkeypatch):
        monkeypatch.setattr(text_corpus, "GROUP_CHARACTERS", 30)
        prepared = prepare([source(tmp_path, lines(PAIRS))], elsewhere, WHOLE, tmp_path / "out")
        assert Counter(rows(data(prepared).batch(0))) == expected(elsewhere, PAIRS)

    def test_a_label_follows_its_text_on_a_line_of_its_own(self, tmp_path):
        labelled = lines([("It rains.", "sad"), ("", "none")], "text", "label") + '{"text": "Sun", "label": 1}\n'
        prepared = prepare([source(tmp_path, labelled)], tokenizer(), WHOLE, tmp_path / "out")
        found = Counter(rows(data(prepared, rows=3).batch(0)))
        assert found == expected(tokenizer(), [("It rains.", "\nsad"), ("", "\nnone"), ("Sun", "\n1")])

    @pytest.mark.parametrize(
        ("context", "kept"), [(4, ""), (5, "e"), (7, "cde"), (8, "bcde"), (9, "abcde"), (99, "abcde")]
    )
    def test_what_is_too_long_loses_the_beginning_of_its_prompt(self, context, kept, tmp_path):
        prepared = prepare([source(tmp_path, lines([("abcde", "xyz")]))], tokenizer(), WHOLE, tmp_path / "out")
        made = data(prepared, context=context, rows=1)
        assert Counter(rows(made.batch(0))) == expected(tokenizer(), [(kept, "xyz")])
        assert made.n_truncated == (kept != "abcde")
        assert made.batch(0).inputs.shape[1] <= context

    def test_a_completion_that_does_not_fit_is_refused_by_line(self, tmp_path):
        text = "\n" + lines([("a", "xyz"), ("a", "wxyz"), ("a", "vwxyz")])
        prepared = prepare([source(tmp_path, text)], tokenizer(), WHOLE, tmp_path / "out")
        with pytest.raises(
            InputError, match=r"task.jsonl: line 3: the completion is 4 tokens.* context of 4, and 1 more"
        ):
            data(prepared, context=4)
        assert data(prepared, context=6).n_truncated == 1

    def test_padding_and_prompts_never_change_the_loss(self, tmp_path):
        pairs = drawn(12)
        prepared = prepare([source(tmp_path, lines(pairs))], tokenizer(), WHOLE, tmp_path / "out")
        batch = data(prepared, rows=12).batch(0)
        config = ModelConfig(vocab_size=257, context_length=200, d_model=32, n_layers=2, n_heads=2, init_std=0.5)
        model = build_model(config, seed=1)
        loss = summed_loss(model, batch, Hardware("cpu", "float32", 1))
        assert loss.item() == approx(_nats(model, pairs), model=model)
        assert batch.n_targets == sum(len(completion.encode()) + 1 for _, completion in pairs)


@torch.inference_mode()
def _nats(model: torch.nn.Module, pairs: Sequence[tuple[str, str]]) -> float:
    """Surprisal of the completions and their ends, one example at a time, in double precision."""
    total = 0.0
    for prompt, completion in pairs:
        known, rest = [256, *prompt.encode()], [*completion.encode(), 256]
        scores = model(torch.tensor([known + rest]))[0].double().tolist()
        for place, token in enumerate(rest, len(known) - 1):
            total += math.log(sum(map(math.exp, scores[place]))) - scores[place][token]
    return total


class TestOrder:
    @pytest.fixture
    def prepared(self, tmp_path) -> PreparedFolder[Manifest]:
        return prepare([source(tmp_path, lines(drawn(50)))], tokenizer(), WHOLE, tmp_path / "out")

    def test_every_epoch_sees_each_example_once_in_an_order_of_its_own(self, prepared):
        made = data(prepared, rows=10)
        assert (made.samples, made.steps_per_epoch) == (50, 5)
        epochs = [
            [row for start in range(50 * epoch, 50 * epoch + 50, 10) for row in rows(made.batch(start))]
            for epoch in range(3)
        ]
        assert all(Counter(epoch) == expected(tokenizer(), drawn(50)) for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2]
        assert made.tokens == sum(len(learned) for _, learned in epochs[0])

    def test_follows_from_the_seed_and_the_examples_seen_alone(self, prepared):
        wide, narrow, other = data(prepared, rows=35), data(prepared, rows=7), data(prepared, rows=35, seed=1)
        parts = [row for start in range(30, 65, 7) for row in rows(narrow.batch(start))]
        assert rows(wide.batch(30)) == parts
        assert rows(wide.batch(30, fraction=0.2)) == parts[:7]
        assert rows(other.batch(30)) != parts


class TestValidation:
    def test_a_fraction_is_held_out_and_equal_examples_stay_together(self, tmp_path):
        pairs = drawn(1000)
        config = DataConfig(validation="0.2", supervised=True)
        prepared = prepare([source(tmp_path, lines(pairs * 2))], tokenizer(), config, tmp_path / "out")
        made = data(prepared, rows=prepared.manifest.splits["train"].documents)
        held_out = Counter(row for batch in made.validation() for row in rows(batch))
        train = Counter(rows(made.batch(0)))
        assert train + held_out == expected(tokenizer(), pairs * 2)
        assert not set(train) & set(held_out)
        assert sum(held_out.values()) == pytest.approx(400, abs=60)
        learned = sum(len(learned) - 1 for (_, learned), count in held_out.items() for _ in range(count))
        assert made.validation_bytes == learned

    def test_files_of_their_own(self, tmp_path):
        source(tmp_path, lines([("a", "longer than the context")]), name="held-out.jsonl")
        source(tmp_path, lines(PAIRS))
        config = DataConfig(validation=str(tmp_path / "held-out.jsonl"), supervised=True)
        prepared = prepare(
            find_text_files([str(tmp_path)], DataConfig(supervised=True)), tokenizer(), config, tmp_path / "out"
        )
        assert Counter(rows(data(prepared).batch(0))) == expected(tokenizer(), PAIRS)
        with pytest.raises(InputError, match=r"held-out.jsonl: line 1: the completion"):
            data(prepared, context=14)

    def test_nothing_may_be_held_out(self, tmp_path):
        made = data(prepare([source(tmp_path, lines(PAIRS))], tokenizer(), WHOLE, tmp_path / "out"))
        assert (list(made.validation()), made.validation_bytes) == ([], 0)


class TestFiles:
    def test_may_be_compressed_in_folders_or_have_any_name(self, tmp_path):
        (tmp_path / "notes.md").write_text("no example")
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(PAIRS[:2]).encode()))
        (tmp_path / "deep").mkdir()
        source(tmp_path / "deep", lines(PAIRS[2:]), name="b.ndjson")
        source(tmp_path, lines(PAIRS), name="c.json")
        for names in ([tmp_path], [tmp_path / "c.json"]):
            sources = find_text_files([str(name) for name in names], DataConfig(supervised=True))
            prepared = prepare(sources, tokenizer(), WHOLE, tmp_path / f"out-{len(sources)}")
            assert Counter(rows(data(prepared).batch(0))) == expected(tokenizer(), PAIRS)

    def test_may_come_from_a_pipe(self, tmp_path, monkeypatch):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(lines(PAIRS).encode())))
        prepared = prepare(find_text_files(["-"], DataConfig(supervised=True)), tokenizer(), WHOLE, tmp_path / "out")
        assert Counter(rows(data(prepared).batch(0))) == expected(tokenizer(), PAIRS)


@pytest.mark.parametrize("length", [2, 5, 6, 7, 30])
def test_start_and_end_stay_and_the_prompt_gives_way(length):
    ids = np.arange(100, 100 + length)
    kept = truncate_prompt(ids, context=5)
    assert len(kept) == min(length, 6)
    assert (kept[0], kept[-1]) == (ids[0], ids[-1])
    assert kept[1:].tolist() == ids.tolist()[-(len(kept) - 1) :]


def test_a_completion_fits_as_long_as_the_model_can_read_what_comes_before_each_of_its_tokens():
    assert completion_length_error(5, context=5) is None
    assert (
        completion_length_error(6, context=5)
        == "the completion is 5 tokens, and with its end does not fit into the context of 5"
    )
