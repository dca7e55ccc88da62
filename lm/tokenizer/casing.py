"""Inline casing: a text in lower case, with marks that say which letters are capitals.

In a small vocabulary "The", "THE" and "the" are unrelated tokens, and names in capitals are spelled letter by letter.
With a mark before them they are one token. `tokenizers` does all of it, by rules that are part of the `tokenizer.json`.

Source: Bérard et al. 2019 (WMT19 robustness task of Naver Labs), whose marks follow their word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, normalizers

MARKS = _CAPITALS, _CAPITAL = "\x0e", "\x0f"
"""Before several capitals, before one; ASCII's "shift out" and "shift in"."""
_MAX_LETTERS = 64
"""How many letters have rules: each is a pass over a text. Other capitals stay as they are."""
_SCOPE = 32
"""How many capitals a mark is for; of a longer run each further one has its own."""


def add_casing(backend: Tokenizer, texts: Iterable[str]) -> None:
    """Give a byte-level tokenizer the rules for the most frequent capitals of some texts, if they have any.

    Decoding restores every text without the two marks, which are control characters.
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    capitals = [character for character, _ in counts.most_common() if _has_lower_case(character)]
    letters = "".join(sorted(capitals[:_MAX_LETTERS]))
    if not letters:
        return
    small = "".join(map(str.lower, letters))  # each on its own, as a capital sigma at the end of a word is no other
    upper, lower, either = f"[{letters}]", f"[{small}]", f"[{letters}{small}]"
    # A run of capitals ends before the one that begins a word: HTMLParser is "html" in capitals and "Parser"
    several = f"(?<!{upper})(?={upper}{{2}}(?!{lower}))|(?<={upper}{{{_SCOPE}}})(?={upper})"
    one = f"(?={upper}{lower})|(?<![{letters}{_CAPITALS}])(?={upper}(?!{upper})|{upper}{upper}{lower})"
    capitalise = [
        decoders.Replace(Regex(f"(?<={_CAPITALS}{either}{{0,{_SCOPE - 1}}}){letter.lower()}"), letter)
        for letter in letters
    ]
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(several), _CAPITALS),
            normalizers.Replace(Regex(one), _CAPITAL),
            # With its mark, as the library splits a mark wrongly that was only inserted at the start of a text
            *(normalizers.Replace(mark + each, mark + each.lower()) for each in letters for mark in (*MARKS, "")),
        ]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.ByteLevel(),
            *capitalise,
            *(decoders.Replace(_CAPITAL + letter.lower(), letter) for letter in letters),
            *(decoders.Replace(mark, "") for mark in MARKS),
        ]
    )


def _has_lower_case(character: str) -> bool:
    lower = character.lower()
    return character.isupper() and len(lower) == 1 and lower.upper() == character
