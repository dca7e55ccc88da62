"""Train tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lm.config.run_config import END_OF_TEXT, MASK, TokenizerConfig
from lm.tokenizer import ANY_CHARACTER, Tokenizer, byte_alphabet
from lm.tokenizer.casing import add_casing

SAMPLE_BYTES = 128_000_000
"""Maximum text to train BPE on, spread evenly over the corpus, to bound memory."""
_MIN_FREQUENCY = 2
"""Of the pair that a BPE rule merges."""


def train(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    corpus_bytes: int,
    special_tokens: Sequence[str] = (),
) -> Tokenizer:
    """Train a tokenizer; deterministic for the same texts and settings.

    Args:
        texts: the corpus in pieces, each small compared to `SAMPLE_BYTES` and cut between words.
        corpus_bytes: UTF-8 bytes of all texts.
        special_tokens: to be added; bpe and byte tokenizers always have `<|endoftext|>`.
    """
    if config.kind == "char":
        return _build_characters(texts, special_tokens)
    special = list(dict.fromkeys([END_OF_TEXT, *special_tokens]))
    if config.kind == "byte":
        return _build_bytes(special)
    return _train_bpe(_sample(texts, min(1.0, SAMPLE_BYTES / max(1, corpus_bytes))), config, special)


def _sample(texts: Iterable[str], fraction: float) -> Iterator[str]:
    """Yield texts, spread evenly, whose size is at most a fraction of all."""
    seen = used = 0
    for text in texts:
        size = len(text.encode())
        seen += size
        if used + size <= seen * fraction:
            used += size
            yield text


def _train_bpe(texts: Iterable[str], config: TokenizerConfig, special_tokens: Sequence[str]) -> Tokenizer:
    """Train byte-level BPE as in GPT-2: its pre-tokenisation, no prefix space, all bytes are tokens.

    With merges within characters, a frequent character is one token and a rare one its bytes. The mask includes the
    space before it, which is part of the token that it stands for (RoBERTa, Liu et al. 2019).
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if config.merges == "characters":
        characters = pre_tokenizers.Split(tokenizers.Regex(ANY_CHARACTER), "isolated")
        its_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([characters, its_bytes])
    backend.decoder = decoders.ByteLevel()
    if config.inline_casing:
        texts = [*texts]
        add_casing(backend, texts)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[
            tokenizers.AddedToken(token, lstrip=token == MASK, special=True, normalized=False)
            for token in special_tokens
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _build_characters(texts: Iterable[str], special_tokens: Sequence[str]) -> Tokenizer:
    """Build a vocabulary of the characters of the corpus, in order of code points."""
    characters = {character for text in texts for character in text}
    vocabulary = {character: index for index, character in enumerate(sorted(characters))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(ANY_CHARACTER), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(dict.fromkeys(special_tokens)))
    return Tokenizer(backend)


def _build_bytes(special_tokens: Sequence[str]) -> Tokenizer:
    """Build a vocabulary of the 256 bytes and the special tokens."""
    backend = tokenizers.Tokenizer(models.BPE(byte_alphabet(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*special_tokens])
    return Tokenizer(backend)
