"""Positions by syntax: depths and distances are those of a search; padding changes nothing."""

import math
import random

import pytest
import torch
from torch import Tensor

from lm.config.model import ModelConfig
from lm.model import build_model
from lm.model.layers import quantise
from lm.model.tree_positions import token_depths, tree_distances
from lm.text.parallel_text import compute_tree_positions
from tests.lm.text.random_trees import random_heads, searched_depth, searched_distance
from tests.tolerances import assert_close

OUTSIDE = [-1, -1, -1]
SHAPE = {"vocab_size": 50, "d_model": 24, "n_heads": 4, "n_layers": 1, "n_encoder_layers": 2, "init_std": 0.3}


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


def sinusoid(place: int, width: int) -> list[float]:
    angles = [place / 10_000 ** (2 * pair / width) for pair in range(width // 2)]
    return [wave for angle in angles for wave in (math.sin(angle), math.cos(angle))]


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_depths_are_mixed_with_positions_in_the_embedding(positions):
    model = build_model(ModelConfig(**SHAPE, syntax="depth", positions=positions), seed=3).double().eval()
    mix, (heads, of_tokens, source) = model.syntax_positions.depths.mix, sentence(6, seed=1)
    vectors = torch.tensor([sinusoid(depth, 24) for depth in by_search(heads, of_tokens)[0]], dtype=torch.float64)
    if positions == "sinusoidal":
        order = torch.tensor([sinusoid(place, 24) for place in range(len(source))], dtype=torch.float64)
        vectors = torch.cat((order, vectors), dim=1)
    expected = model.embedding.tokens.weight[source[:, 0]] + (vectors @ mix.weight.T + mix.bias).tanh()
    embedded = []
    hook = model.encoder.register_forward_hook(lambda _, inputs, __: embedded.append(inputs[0][0]))
    model.encode(source[None])
    hook.remove()
    assert_close(embedded[0], expected, model=model, dtype=torch.float32)


def test_quantised_weights_change_little():
    model = build_model(ModelConfig(**{**SHAPE, "d_model": 256}, syntax="depth"), seed=1).eval().requires_grad_(False)
    source = sentence(9, seed=3)[2][None]
    expected = model.encode(source)
    quantise(model)
    assert (model.encode(source) - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("positions", ["rotary", "learned", "relative", "t5"])
def test_padding_and_neighbours_change_no_logit(positions):
    model = build_model(ModelConfig(**SHAPE, syntax="both", positions=positions), seed=1).eval()
    sources = [sentence(words, seed=words)[2] for words in (9, 1, 4)]
    target, lengths = torch.randint(50, (3, 6)), torch.tensor([len(source) for source in sources])
    padded = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
    wider = torch.cat((padded, torch.tensor([7, 0, 0, 0]).expand(3, 5, 4)), dim=1)
    with torch.no_grad():
        logits = model(padded, target, lengths=lengths)
        assert_close(model(wider, target, lengths=lengths), logits, model=model)
        for row, source in enumerate(sources):
            alone = model(source[None], target[row : row + 1])
            assert_close(alone[0], logits[row], model=model)
