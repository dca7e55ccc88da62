"""Each type is measured as it would be alone."""

import copy

import pytest
import torch

from lm.config.evaluation import PerplexityConfig
from lm.evaluation.dtype_costs import DtypeCost, measure_dtype_costs
from lm.evaluation.perplexity import BatchScored, FileScore, PerplexityResult
from lm.evaluation.window_scorer import TextScorer
from lm.model.layers import quantise
from lm.model.transformer import count_parameters
from lm.text.files import find_text_files
from tests.lm.evaluation.small_models import BPE, SEPARATOR, TEXT, make_model


def test_figures_are_those_of_each_type_alone(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    files = find_text_files([str(tmp_path)])
    models = {"float32": make_model(BPE.vocab_size)}
    models["bfloat16"] = copy.deepcopy(models["float32"]).to(torch.bfloat16)
    models["int8"] = copy.deepcopy(models["float32"])
    quantise(models["int8"])
    config = PerplexityConfig(batch_size=2)
    scorers = {name: TextScorer.from_config(model, BPE, config, separator=SEPARATOR) for name, model in models.items()}
    costs: list[DtypeCost] = []
    events = list(measure_dtype_costs(scorers, files, costs=costs))
    assert events == [event for event in scorers["float32"].measure(files) if isinstance(event, BatchScored)]
    assert [cost.dtype for cost in costs] == list(models)
    for cost in costs:
        alone = [event.result for event in scorers[cost.dtype].measure(files) if isinstance(event, FileScore)]
        assert cost.result == PerplexityResult.total(alone)
        assert sum(tokens for tokens, _ in cost.batches) == events[-1].tokens
        assert cost.tokens_per_second > 0
    parameters = count_parameters(models["float32"])
    of_32, of_16, of_8 = (cost.weight_bytes for cost in costs)
    assert (of_32, of_16) == (4 * parameters, 2 * parameters)
    assert parameters < of_8 < of_16
    assert costs[0].relative_increase(costs[0]) == 0
    assert costs[2].relative_increase(costs[0]) == pytest.approx(
        costs[2].result.bits_per_byte / costs[0].result.bits_per_byte - 1
    )
