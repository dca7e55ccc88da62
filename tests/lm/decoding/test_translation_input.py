"""A line is read within its frame by each model, and cut where a model's positions end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lm.checkpoint import load_model
from lm.config.data import ParallelConfig
from lm.decoding.translation_input import TranslationModel, build_source_line, pad_sources
from lm.errors import UsageError
from lm.hardware import Hardware
from lm.tokenizer.special_tokens import SpecialTokenFrame
from tests.cli.small_runs import make_run

TAGGED, PLAIN = SpecialTokenFrame((7,), (9,)), SpecialTokenFrame((), (8,))


def model(limit: int) -> SimpleNamespace:
    return SimpleNamespace(source_limit=limit)


@pytest.mark.parametrize(
    ("limit", "read", "left_out"),
    [
        (4096, [7, 1, 2, 3, 9], 0),
        (5, [7, 1, 2, 3, 9], 0),
        (4, [7, 1, 2, 9], 1),
        (2, [7, 9], 3),
        (1, [7, 9], 3),
    ],
)
def test_the_frame_stays_and_the_text_is_cut(limit: int, read: list[int], left_out: int) -> None:
    line = build_source_line(4, "one two three", [(model(limit), TAGGED, [1, 2, 3])], [5, 6])
    assert (line.number, line.text, line.prefix) == (4, "one two three", [5, 6])
    assert (line.sources, line.left_out, line.length) == ((read,), left_out, len(read))


def test_each_model_reads_the_line_in_its_own_way() -> None:
    line = build_source_line(0, "", [(model(3), TAGGED, [1, 2]), (model(4096), PLAIN, [3, 4, 5])], [])
    assert line.sources == ([7, 1, 9], [3, 4, 5, 8])
    assert (line.left_out, line.length, line.is_blank) == (1, 4, True)


def test_sources_are_padded_to_the_longest() -> None:
    ids, lengths = pad_sources([[1, 2, 3], [4], [5, 6]])
    assert torch.equal(ids, torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 0]]))
    assert torch.equal(lengths, torch.tensor([3, 1, 2]))


def test_only_a_model_that_learned_from_pairs_translates(tmp_path: Path) -> None:
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
def test_without_a_position_limit_sources_have_a_default_limit(tmp_path: Path, max_length: int, limit: int) -> None:
    """Attention takes time that grows with the square of the length, for a text like none it has learned from."""
    loaded = load_model(make_run(tmp_path / "run", n_encoder_layers=1), Hardware("cpu", "float32", 1))
    parallel = ParallelConfig(max_length=max_length)
    model = TranslationModel.from_loaded(
        dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, parallel=parallel))
    )
    ids = model.encode(["a" * 10_000], [None])[0]
    line = build_source_line(0, "", [(model, PLAIN, ids)], [])
    assert (line.length, line.left_out) == (limit, len(ids) + 1 - limit)
