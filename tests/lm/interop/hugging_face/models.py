"""Random configurations of each family, as runs of ours and as models of transformers."""

import random
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import normalizers, pre_tokenizers

from lm.api import export
from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.interop.families import QWEN2
from lm.model import build_model
from lm.run_folder import TrainingState
from lm.tokenizer import Tokenizer
from tests.cli.small_runs import make_tokenizer
from tests.lm.model.hugging_face import randomise
from tests.lm.tokenizers_elsewhere import gpt2_like
from tests.tolerances import assert_close

VOCABULARY = 520
SCALINGS = [
    {},
    {"rope_scaling": "linear", "rope_factor": 2.5},
    {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_context": 16, "rope_slow": 1.2, "rope_fast": 3.5},
    {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_context": 16},
    {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_context": 24, "rope_fast": 8.0, "rope_temperature": 1.4},
]


def random_config(family: str, seed: int) -> ModelConfig:
    """A small model of a family; every field that the family has varies."""
    draw = random.Random(f"{family} {seed}")
    heads = draw.choice([2, 4])
    fields = {
        "vocab_size": VOCABULARY + draw.choice([0, 20]), "context_length": draw.choice([32, 48]),
        "n_layers": draw.choice([1, 2, 3]), "n_heads": heads, "d_model": heads * draw.choice([8, 16]),
        "d_ff": draw.choice([None, 40]), "norm_eps": draw.choice([1e-5, 1e-3]),
        "tie_embeddings": draw.choice([True, False]), **FIELDS[family](draw, heads),
    }  # fmt: skip
    return ModelConfig(**fields)


def _gpt2(draw: random.Random, heads: int) -> dict:
    return {"norm": "layernorm", "positions": "learned", "bias": draw.choice([True, False]), **_ungated(draw)}


def _gpt_neox(draw: random.Random, heads: int) -> dict:
    return {
        "norm": "layernorm", "bias": draw.choice([True, False]), "parallel_residual": draw.choice([True, False]),
        "rotary_fraction": draw.choice([0.25, 0.5, 1.0]), "attention_bias": draw.choice([None, "all", "none"]),
        **_ungated(draw), **_rotary(draw),
    }  # fmt: skip


def _ungated(draw: random.Random) -> dict:
    return {"activation": draw.choice(["gelu", "gelu-tanh", "relu", "relu2"])}


def _llama(draw: random.Random, heads: int) -> dict:
    return {
        "bias": draw.choice([True, False]), "attention_bias": draw.choice(["all", "none"]), **_gated(draw, heads),
    }  # fmt: skip


def _mistral(draw: random.Random, heads: int) -> dict:
    return {"attention": "window", "attention_window": draw.choice([2, 3, 7, 30]), **_gated(draw, heads)}


def _qwen2(draw: random.Random, heads: int) -> dict:
    return {"attention_bias": "inputs", **_gated(draw, heads), **_any_window(draw)}


def _qwen3(draw: random.Random, heads: int) -> dict:
    return {"qk_norm": True, "attention_bias": draw.choice([None, "all"]), **_gated(draw, heads), **_any_window(draw)}


def _any_window(draw: random.Random) -> dict:
    return draw.choice([{}, {"attention": "window", "attention_window": 5}])


def _gated(draw: random.Random, heads: int) -> dict:
    return {
        "n_kv_heads": draw.choice([None, 1, heads // 2]), "d_head": draw.choice([None, 12, 24]), **_rotary(draw),
    }  # fmt: skip


def _rotary(draw: random.Random) -> dict:
    return {"rope_base": draw.choice([100.0, 10_000.0]), **draw.choice(SCALINGS)}


FIELDS = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3}


def random_run(folder: Path, config: ModelConfig, *, tokenizer: Tokenizer | None = None) -> Path:
    """A run of such a model with random numbers everywhere, biases and norms too."""
    model = build_model(config)
    randomise(model)
    save_checkpoint(
        folder,
        config=RunConfig(model=config),
        tokenizer=tokenizer or (qwen2_tokenizer() if config.attention_bias == "inputs" else make_tokenizer("bpe")),
        model=model.state_dict(),
        state=TrainingState(),
        is_best=True,
    )
    return folder


def qwen2_tokenizer() -> Tokenizer:
    """One that normalises and splits texts as Qwen2's does."""
    made = gpt2_like()
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(QWEN2.pre_tokenizer_pattern), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return Tokenizer(made)


def ids(rows: int, length: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def loaded_export(run: Path, folder: Path, auto: Any, **options: bool) -> Any:
    """What transformers makes of an exported run, with all of its tensors and no others."""
    export(run, folder)
    theirs, report = auto.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.architectures == [type(theirs).__name__]
    return theirs.eval()


def compare_padded(ours: Any, theirs: Any, tokens: torch.Tensor) -> None:
    """Rows of theirs that end together, padded on the left and read in two steps, against each of ours alone."""
    lengths = torch.tensor([24, 17, 5])
    real = (torch.arange(24) >= 24 - lengths[:, None]).long()
    padded, positions = torch.where(real.bool(), tokens, 0), (real.cumsum(1) - 1).clamp(min=0)
    first = theirs(padded[:, :20], attention_mask=real[:, :20], position_ids=positions[:, :20], use_cache=True)
    second = theirs(
        padded[:, 20:], attention_mask=real, position_ids=positions[:, 20:], past_key_values=first.past_key_values
    )
    for row, length in enumerate(lengths):
        assert_close(second.logits[row], ours(tokens[row : row + 1, 24 - length :])[0, -4:], model=ours)
