"""An English-German parallel corpus from a synchronous grammar.

Each sentence is derived once, as an abstract structure (`syntax`, `grammar`), and spelled out by the grammar of each
language (`english`, `german`); the lexicon (`lexicon`) is data. Translation is a function: the same English sentence
has the same German translation everywhere.

Held-out pairs test composition, not memory: each has at least one combination of words (`split`) that no training pair
has, while each of its word forms occurs in at least ten places in training.

Simple past and present perfect both become Perfekt, but the past of 'be', 'have' and modal verbs is Präteritum. Simple
present and present progressive both become Präsens. 'You' is familiar and singular (du).
"""

from .generation import GeneratedCorpus, TranslatedPair, generate

__all__ = ["GeneratedCorpus", "TranslatedPair", "generate"]
