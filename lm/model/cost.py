"""What a model costs: parameters by part, arithmetic per token, memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from lm.config.lora import LoraConfig
from lm.config.model import ModelConfig
from lm.model.block import count_parameters
from lm.model.lora import build_adapted
from lm.model.transformer import without_weights
from lm.model.variants.block_sparse import pattern_of, pattern_pairs

_PARTS = {
    "token embeddings": "", "token types": "embedding.types", "positions": "positions",
    "attention": "attention", "cross-attention": "cross_attention",
    "feed-forward": "feed_forward", "gates": ".gate.", "experts": ".experts.", "recurrent layers": "recurrent",
    "norms": "norm", "learned shares": "shares", "output layer": "head.", "output bias": "output_bias",
    "output transform": "transform.", "label head": "classifier.", "adapters": ".lora_",
}  # fmt: skip
"""What the names of each part's parameters contain; a name that fits several parts belongs to the last of them."""

_EACH_POSITION = (
    "encoder.blocks.", "decoder.blocks.", "encoder.recurrent.", "decoder.recurrent.", "decoder.cross_attention.",
    "syntax_positions.depths.", "transform.",
)  # fmt: skip
"""How the names of the parameters begin that positions go through."""

_WITHOUT_GRADIENT = 2 / 3
"""Of the arithmetic of a matrix that is trained: forward, and the gradient of what it reads."""
_NO_ADAPTERS = LoraConfig()
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@cache
def parameters_by_part(config: ModelConfig, lora: LoraConfig = _NO_ADAPTERS) -> Mapping[str, int]:
    """The number of parameters of each part of a model (`_PARTS`), with shared ones counted once."""
    with without_weights():
        model = build_adapted(config, lora)
    parts = dict.fromkeys(_PARTS, 0)
    for name, parameter in model.named_parameters():
        parts[_part(name)] += parameter.numel()
    assert sum(parts.values()) == count_parameters(model)
    return parts


def _part(name: str) -> str:
    return next(part for part, word in reversed(_PARTS.items()) if word in name)


def active_parameters(config: ModelConfig) -> int:
    """The number of parameters that a token goes through: of the experts of a layer, those of as many as it takes."""
    idle = config.experts - config.experts_per_token
    parts = parameters_by_part(config)
    return sum(parts.values()) - (parts["experts"] * idle // config.experts if config.experts else 0)


def training_flops(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    source_length: int = 0,
    predicted: float | None = None,
    passes: int = 1,
    lora: LoraConfig = _NO_ADAPTERS,
) -> float:
    """Arithmetic of training on a batch, padding included: three times the forward pass's.

    Each position takes a multiply-add for each parameter of the matrices it goes through, the output layer among them
    whether or not it is tied, but only where a token is predicted; the embedding look-up takes none, and of experts
    count as many as a position goes through. Each pair of positions that see each other takes 2 · the width of all
    heads, which is d_model unless `d_head` says otherwise; causal attention sees half of the pairs, and that within a
    pattern those of whole blocks. Vectors of relative positions, in trees too, count like matrices; biases take none.
    Recurrent layers see no pairs, and their decoder attends once. The output layer of a masked model is for what is
    predicted alone. A matrix that adapters leave as it is has no gradient, which saves a third; adapters of
    cross-attention count for the target.

    Args:
        config: of the model.
        rows: sequences.
        length: positions of each, in an encoder-decoder those of the target.
        source_length: positions that an encoder reads.
        predicted: positions of each sequence, on average, that the output layer is for [default: all].
        passes: how often the batch goes through the model; R-Drop takes two.
        lora: its adapters.

    Source: Kaplan et al. 2020, section 2.1.
    """
    encoder, decoder, memory = _matrices(config, lora)
    width, across = _width(config), config.n_layers
    if config.is_recurrent:
        across = int(config.recurrent_scores != "none")
    of_output = (length if predicted is None else predicted) * _output(config)
    if lora and not config.labels:
        of_output *= _WITHOUT_GRADIENT
    pairs = _pairs(config, config.n_layers, length, is_causal=not config.is_masked) + across * length * source_length
    of_target = length * decoder + 2 * width * pairs + of_output
    source_pairs = _pairs(config, config.n_encoder_layers, source_length, is_causal=False)
    of_source = source_length * (encoder + memory) + 2 * width * source_pairs
    return 6.0 * passes * rows * (of_target + of_source)


def training_flops_per_token(
    config: ModelConfig, *, predicted: float = 1.0, passes: int = 1, lora: LoraConfig = _NO_ADAPTERS
) -> float:
    """Arithmetic of training on one target token, in sequences (and sources) as long as the context.

    Of a masked model it is that of one token that is read, of which a share is `predicted`; of a classifier, one of
    each sequence is.
    """
    length = config.context_length
    source_length = length if config.is_encoder_decoder else 0
    outputs = 1.0 if config.labels else predicted * length
    flops = training_flops(
        config, rows=1, length=length, source_length=source_length, predicted=outputs, passes=passes, lora=lora
    )
    return flops / length


def _output(config: ModelConfig) -> int:
    """Parameters that a position that is predicted is multiplied by."""
    if config.labels:
        return config.d_model * (config.d_model + len(config.labels))
    return config.vocab_size * config.d_model


def _pairs(config: ModelConfig, n_layers: int, length: int, *, is_causal: bool) -> float:
    """Pairs of a query and a key that see each other in the self-attention of a stack."""
    if config.is_recurrent or not length:
        return 0.0
    return sum(_pairs_of_layer(config, layer, length, is_causal=is_causal) for layer in range(n_layers))


@cache
def _pairs_of_layer(config: ModelConfig, layer: int, length: int, *, is_causal: bool) -> float:
    pattern = pattern_of(config, layer, is_causal=is_causal)
    if pattern is not None:
        return pattern_pairs(pattern, length, is_causal=is_causal)
    keys = float(length)
    if config.compresses(layer):
        keys = length / config.pattern("attention_stride")
    elif config.attention == "linformer" and not is_causal:
        return length * float(config.pattern("attention_rank"))
    return length * keys / 2 if is_causal else length * keys


@cache
def _matrices(config: ModelConfig, lora: LoraConfig) -> tuple[float, float, float]:
    """Parameters that a source position, a target position and a memory position is multiplied by, less the output.

    Those that have no gradient count for two thirds.
    """
    with without_weights():
        model = build_adapted(config, lora)
    encoder = decoder = memory = 0.0
    for name, parameter in model.named_parameters():
        number: float
        if name.endswith((".keys", ".values")):  # tables of distances: by each head of a group
            number = parameter.numel() * config.n_heads // config.kv_heads
        elif name.endswith("_lengthwise"):  # each row of it by all keys or values
            number = parameter.shape[0] * config.kv_heads * config.head_size
        elif parameter.ndim >= 2 and "_convolution." in name:  # once in a stride
            number = parameter.numel() // config.pattern("attention_stride")
        elif parameter.ndim >= 2 and name.startswith(_EACH_POSITION):
            number = parameter.numel()
        else:
            continue
        if (expert := _EXPERT.search(name)) and int(expert[1]) >= config.experts_per_token:
            continue  # all experts are alike: a position goes through as many as it takes
        if not parameter.requires_grad:
            number *= _WITHOUT_GRADIENT
        if name.startswith(("encoder.", "syntax_positions.")):
            encoder += number
        elif name == "decoder.cross_attention.key.weight":  # of a recurrent decoder
            memory += number
        elif name.endswith("cross_attention.input.weight"):  # queries of the target, keys and values of the memory
            of_queries = number * config.n_heads / (config.n_heads + 2 * config.kv_heads)
            decoder += of_queries
            memory += number - of_queries
        else:
            decoder += number
    return encoder, decoder, memory


def _width(config: ModelConfig) -> int:
    """The width in which positions are compared: that of all heads."""
    return config.d_model if config.is_recurrent else config.n_heads * config.head_size


def cache_bytes_per_token(config: ModelConfig, *, bytes_per_value: int = 4) -> int:
    """Bytes of the key/value cache for one token of one sequence; recurrent states don't grow with it.

    Compressed keys and values are there besides those that they come from. A masked model, which reads a text at once,
    has none.
    """
    if config.is_recurrent or config.is_masked:
        return 0
    of_layer = 2 * config.kv_heads * config.head_size * bytes_per_value
    compressed = sum(config.compresses(layer) for layer in range(config.n_layers))
    of_compressed = of_layer * compressed // config.pattern("attention_stride") if compressed else 0
    return of_layer * config.n_layers + of_compressed
