"""Dependency trees for tests, and what a search of their graphs says of them."""

import random
from collections import deque


def random_heads(words: int, chance: random.Random) -> tuple[int, ...]:
    """The heads of a random tree, each word under one of those that are in it already."""
    order = list(range(1, words + 1))
    chance.shuffle(order)
    heads = [0] * words
    for place, word in enumerate(order[1:], 1):
        heads[word - 1] = chance.choice(order[:place])
    return tuple(heads)


def path(heads: tuple[int, ...], start: int, end: int) -> list[int]:
    """The words on the way from one to another, from 1, both included: by breadth-first search without directions."""
    neighbours: dict[int, set[int]] = {word: set() for word in range(1, len(heads) + 1)}
    for word, head in enumerate(heads, 1):
        if head:
            neighbours[word].add(head)
            neighbours[head].add(word)
    waiting, came_from = deque([start]), {start: 0}
    while waiting:
        word = waiting.popleft()
        for other in neighbours[word] - came_from.keys():
            came_from[other] = word
            waiting.append(other)
    found = [end]
    while found[-1] != start:
        found.append(came_from[found[-1]])
    return found[::-1]


def searched_depth(heads: tuple[int, ...], word: int) -> int:
    """Edges between the root and a word."""
    return len(path(heads, heads.index(0) + 1, word)) - 1


def searched_distance(heads: tuple[int, ...], query: int, key: int) -> int:
    """The rule of Wang et al. 2019, with a sign that is negative where the key is above, or else comes first."""
    between, depths = path(heads, query, key), (searched_depth(heads, query), searched_depth(heads, key))
    from_root = path(heads, heads.index(0) + 1, max((query, key), key=lambda word: searched_depth(heads, word)))
    if {query, key} <= set(from_root):  # one is on the way from the root to the other
        steps = len(between) - 1
        return steps if depths[1] > depths[0] else -steps
    return sum(depths) if key > query else -sum(depths)
