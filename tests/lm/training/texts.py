"""Random texts of which characters, or words, are the units."""

import numpy as np

_KINDS, _FOLLOWERS = 1500, 40


def of_characters(length: int, *, seed: int = 1) -> str:
    """CJK characters without spaces: each is followed by some others, frequent ones above all (Zipf)."""
    draw = np.random.default_rng(seed)
    characters = draw.permutation(np.arange(0x4E00, 0x9FA5))[:_KINDS]
    zipf = 1 / np.arange(1, _KINDS + 1)
    followers = draw.choice(_KINDS, size=(_KINDS, _FOLLOWERS), p=zipf / zipf.sum())
    ranks = np.arange(1, _FOLLOWERS + 1)
    drawn = draw.choice(_FOLLOWERS, size=length, p=1 / ranks / (1 / ranks).sum())
    at, found = 0, []
    for choice in drawn:
        at = followers[at, choice]
        found.append(chr(characters[at]))
    return "".join(found)
