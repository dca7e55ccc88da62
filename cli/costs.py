"""The costs that `lm info` reports: parameters by part, memory, and FLOPs per token."""

from __future__ import annotations

import dataclasses
from typing import Any

from lm.config.run import RunConfig
from lm.model.cost import active_parameters, cache_bytes_per_token, parameters_by_part, training_flops_per_token
from lm.optim.optimizers import training_bytes
from lm.training.planning.memory import estimate_memory


def count_parameters(config: RunConfig) -> int:
    """Count the parameters of a model, shared ones once."""
    return sum(parameters_by_part(config.model).values())


def compute_costs(config: RunConfig) -> dict[str, Any]:
    """Compute the costs of a model by the keys of `lm info --json`, without absent parts."""
    model, training, total = config.model, config.training, count_parameters(config)
    predicted = training.masked_share if model.is_masked else 1.0
    parts = {part: number for part, number in parameters_by_part(model, config.lora).items() if number}
    return {
        "parameters": {**parts, "total": sum(parts.values())},
        "active_parameters": active_parameters(model),
        "weights_bytes": {"float32": 4 * total, "bfloat16": 2 * total},
        "training_bytes": training_bytes(model, training, config.lora),
        "cache_bytes_per_token": cache_bytes_per_token(model),
        "training_flops_per_token": training_flops_per_token(
            model, predicted=predicted, forward_passes=training.forward_passes, lora=config.lora
        ),
    }


def compute_costs_per_process(config: RunConfig, processes: int) -> dict[str, Any]:
    """Compute the memory and communication per step of each process, by the keys of `lm info --json`."""
    dtype = "bfloat16" if config.hardware.dtype == "auto" else config.hardware.dtype
    found = estimate_memory(config, processes=processes, dtype=dtype)
    return {"processes": processes, "dtype": dtype, "total": found.total, **dataclasses.asdict(found)}
