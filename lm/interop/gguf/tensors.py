"""The tensors of a model as a GGUF file names and keeps them, in the type that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from lm.config.model import ModelConfig
from lm.interop.gguf.architectures import GPT_NEOX_NAME, LLAMA_NAME
from lm.interop.hugging_face.family import Family
from lm.interop.hugging_face.tensors import to_theirs
from lm.model.positions import frequencies, unscaled

_PAIRED = ("attn_q", "attn_k")
_OUTPUT, _EMBEDDING, _FACTORS = "output.weight", "token_embd.weight", "rope_freqs.weight"


def named(weights: Mapping[str, Tensor], config: ModelConfig, architecture: Family) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a model by their names in a GGUF file, in their type.

    Llama's queries and keys are kept with the two features that turn together beside each other, as Llama itself has
    them, and not a half of the head apart, as ours and transformers have them. GPT-NeoX has an output layer of its own
    even where ours is the embedding.
    """
    is_llama = architecture.model_type == LLAMA_NAME
    for name, value in to_theirs(weights, config, architecture):
        yield name, _pairs_together(value, config.d_head) if is_llama and _is_paired(name) else value
        if name == _EMBEDDING and config.tie_embeddings and architecture.model_type == GPT_NEOX_NAME:
            yield _OUTPUT, value
    if config.rope_scaling == "llama3":
        yield _FACTORS, (unscaled(config) / frequencies(config)).float()


def _is_paired(name: str) -> bool:
    return any(f".{part}." in name for part in _PAIRED)


def _pairs_together(value: Tensor, head_size: int) -> Tensor:
    """(heads·head, …) rows, of each head the first half and then the second -> one of each in turns."""
    return value.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)
