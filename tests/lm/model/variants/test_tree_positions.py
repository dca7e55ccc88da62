"""Positions by syntax: distances are those of a search, and the encoder is what a loop in float64 gives."""

import math
import random

import pytest
import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model.transformer import EncoderDecoder, build_model
from lm.model.variants.tree_positions import token_depths, tree_distances
from lm.text.dependency_trees import compute_tree_positions
from tests.lm.text.random_trees import random_heads, searched_depth, searched_distance
from tests.tolerances import assert_close

OUTSIDE = [-1, -1, -1]
SHAPE = {"vocab_size": 50, "d_model": 24, "n_heads": 4, "n_layers": 1, "n_encoder_layers": 2, "init_std": 0.3}


def _clip(syntax: str, positions: str) -> int | None:
    return 3 if syntax != "depth" or positions == "relative" else None


def sentence(words: int, seed: int) -> tuple[tuple[int, ...], list[int], Tensor]:
    """A random tree, the word of each of its tokens, from 1 (0 for a special token), and a source that they make."""
    chance = random.Random(seed)
    heads = random_heads(words, chance)
    of_tokens = [word for word in range(1, words + 1) for _ in range(chance.randint(1, 3))] + [0]
    places = [OUTSIDE if word == 0 else compute_tree_positions(heads)[word - 1].tolist() for word in of_tokens]
    return heads, of_tokens, torch.tensor([[chance.randrange(50), *place] for place in places])


def by_search(heads: tuple[int, ...], of_tokens: list[int]) -> tuple[list[int], list[list[int]]]:
    """The depth of each token, and the distance of each pair; what is no word is a branch below all others."""
    deepest = max(searched_depth(heads, word) for word in range(1, len(heads) + 1))
    depths = [searched_depth(heads, word) if word else deepest + 1 for word in of_tokens]

    def distance(i: int, j: int) -> int:
        if of_tokens[i] and of_tokens[j]:
            return searched_distance(heads, of_tokens[i], of_tokens[j])
        return (depths[i] + depths[j]) * ((j > i) - (j < i))

    places = range(len(of_tokens))
    return depths, [[distance(i, j) for j in places] for i in places]


@pytest.mark.parametrize("words", [1, 2, 5, 12])
def test_depths_and_distances_are_those_of_a_search(words):
    for seed in range(8):
        heads, of_tokens, source = sentence(words, seed)
        depths, distances = by_search(heads, of_tokens)
        assert token_depths(source[None, :, 1:])[0].tolist() == depths
        assert tree_distances(source[None, :, 1:])[0].tolist() == distances


def encoded_by_hand(model: EncoderDecoder, source: Tensor, depths: list[int], distances: list[list[int]]) -> Tensor:
    """(length, d_model) of one source, pair by pair and in float64: the block of the defaults with syntax beside it."""
    config, syntax = model.config, model.syntax_positions
    x = model.embedding.tokens.weight[source[:, 0]]
    if syntax.depths is not None:
        waves = torch.tensor([sinusoid(depth, config.d_model) for depth in depths], dtype=x.dtype)
        if config.positions == "sinusoidal":
            order = torch.tensor([sinusoid(place, config.d_model) for place in range(len(source))], dtype=x.dtype)
            waves = torch.cat((order, waves), dim=1)
        x = x + (waves @ syntax.depths.mix.weight.T + syntax.depths.mix.bias).tanh()
    elif config.positions == "sinusoidal":
        x = x + torch.tensor([sinusoid(place, config.d_model) for place in range(len(source))], dtype=x.dtype)
    for layer, block in enumerate(model.encoder.blocks):
        x = x + attended(model, block, normalised(block.attention_norm, x), layer, distances)
        x = x + block.feed_forward(normalised(block.feed_forward_norm, x))
    return normalised(model.encoder.final_norm, x)


def normalised(norm: torch.nn.Module, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def sinusoid(place: int, width: int) -> list[float]:
    angles = [place / 10_000 ** (2 * pair / width) for pair in range(width // 2)]
    return [wave for angle in angles for wave in (math.sin(angle), math.cos(angle))]


def attended(
    model: EncoderDecoder, block: torch.nn.Module, x: Tensor, layer: int, distances: list[list[int]]
) -> Tensor:
    attention, head = block.attention, model.config.d_head
    tables = [(model.syntax_positions.distances, distances)] if model.syntax_positions.distances is not None else []
    if model.config.positions == "relative":
        tables.append((model.encoder.positions, [[j - i for j in range(len(x))] for i in range(len(x))]))
    query, key, value = (
        part.view(len(x), -1, head) for part in (x @ attention.input.weight.T).split(attention.input.projected, -1)
    )
    rows = []
    for i in range(len(x)):
        of_heads = []
        for h in range(attention.heads):
            group = h // (attention.heads // attention.kv_heads)
            keys, values = list(key[:, group]), list(value[:, group])
            for table, apart in tables:
                clipped = [max(-table.before, min(table.after, apart[i][j])) + table.before for j in range(len(x))]
                keys = [k + table.keys[layer, group, row] for k, row in zip(keys, clipped, strict=True)]
                values = [v + table.values[layer, group, row] for v, row in zip(values, clipped, strict=True)]
            share = torch.stack([query[i, h] @ k / math.sqrt(head) for k in keys]).softmax(0)
            of_heads.append((share[:, None] * torch.stack(values)).sum(0))
        rows.append(torch.cat(of_heads))
    return torch.stack(rows) @ attention.output.weight.T


@pytest.mark.parametrize("syntax", ["depth", "distance", "both"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "relative"])
def test_the_encoder_is_a_loop_in_float64(syntax, positions):
    config = ModelConfig(
        **SHAPE, n_kv_heads=2, syntax=syntax, positions=positions, max_distance=_clip(syntax, positions)
    )
    model = build_model(config, seed=3).eval()
    exact = build_model(config, seed=3).eval().double()
    for seed in range(3):
        heads, of_tokens, source = sentence(6, seed)
        with torch.no_grad():
            expected = encoded_by_hand(exact, source, *by_search(heads, of_tokens))
            found = model.encode(source[None])[0]
        assert_close(found, expected, model=model)


@pytest.mark.parametrize("positions", ["rotary", "learned", "relative", "t5"])
def test_padding_and_neighbours_change_no_logit(positions):
    model = build_model(ModelConfig(**SHAPE, syntax="both", positions=positions), seed=1).eval()
    sources = [sentence(words, seed=words)[2] for words in (9, 1, 4)]
    target, lengths = torch.randint(50, (3, 6)), torch.tensor([len(source) for source in sources])
    padded = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
    wider = torch.cat((padded, torch.full((3, 5, 4), 7)), dim=1)
    with torch.no_grad():
        logits = model(padded, target, lengths=lengths)
        assert_close(model(wider, target, lengths=lengths), logits, model=model)
        for row, source in enumerate(sources):
            alone = model(source[None], target[row : row + 1])
            assert_close(alone[0], logits[row], model=model)
