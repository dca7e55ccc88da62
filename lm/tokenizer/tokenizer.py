"""Any `tokenizer.json`: encode, decode, decode as a stream, and split long documents into pieces.

Pieces can be tokenized alone without changing a token. Cuts are made between the end of a word and white space, where
the usual pre-tokenizers (GPT-2, cl100k, Llama) split in any case, and are verified: the text around a cut must give the
same tokens whole and in two parts. For tokenizers that mark the beginning of a text (Llama 2) a piece has a few
characters of context before it, whose tokens are dropped.

Text without such a place, such as megabytes of spaces, is cut after `MAX_PIECE_CHARACTERS`, as tokenizers need over a
hundred bytes per character of a word. Only there can tokens differ from those of the whole text.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from lm import files
from lm.config.tokenizer import MASK
from lm.errors import InputError
from lm.text.records import Part, Record
from lm.tokenizer.byte_tokens import (
    MISSING,
    build_lookup_table,
    decode_byte_fallback,
    decode_byte_level,
    is_byte_level,
    splits_characters,
)
from lm.tokenizer.chat_template import (
    CHAT_TOKENS,
    CONFIG_FILE,
    CUT,
    SPECIAL,
    ChatTemplate,
    read_chat_template,
    read_json_object,
)

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

FILE_NAME = "tokenizer.json"

_NAMES: Mapping[str, tuple[str, ...]] = {
    "bos_token_id": ("<|begin_of_text|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "[CLS]"),
    "eos_token_id": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]"),
    "pad_token_id": ("[PAD]", "<pad>"),
    "mask_token_id": (MASK, "<mask>"),
}
"""What other toolkits call special tokens, the surest name first, by the key that states their IDs in `config.json`."""


class MergeRules(NamedTuple):
    """The merge rules of a BPE tokenizer.

    Attributes:
        vocabulary: token to ID.
        rules: the two tokens that each rule merges, by priority.
        whole: IDs of tokens that are never split.
    """

    vocabulary: Mapping[str, int]
    rules: Sequence[Sequence[str]]
    whole: Sequence[int]


def read_special_ids(values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the IDs of special tokens that a JSON object states, as `config.json` and `generation_config.json` do."""
    ids = {}
    for key in _NAMES:
        stated = value if isinstance(value := values.get(key), list) else [value]
        if found := tuple(index for index in stated if type(index) is int and 0 <= index < 1 << 32):
            ids[key] = found
    return ids


class Tokenizer:
    """A tokenizer of the `tokenizers` library.

    Encoding never adds special tokens, truncates, pads or applies dropout, whatever the file says, and treats the
    spelling of a special token as text unless asked.

    Attributes:
        description: the parsed `tokenizer.json`.
        chat_template: for conversations; None if the tokenizer has none.
        special_ids: IDs of special tokens that do not follow from their names, by the keys of `read_special_ids`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        special_ids: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Copy a tokenizer of the `tokenizers` library.

        Scoring and prompts use one segmentation of each text; `lm.data.pairs` varies it in training.
        """
        self.chat_template = chat_template
        self.special_ids = special_ids or {}
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        if isinstance(self._backend.model, tokenizers.models.BPE):
            self._backend.model.dropout = None
        self._backend.encode_special_tokens = True
        self.description: dict[str, Any] = json.loads(self._backend.to_str())
        self._table = build_lookup_table(self.description)

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.kind}, {self.vocab_size:,} tokens>"

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """Read a `tokenizer.json`, and the chat template and special tokens beside it.

        Raises:
            InputError: the file is missing or not a tokenizer.
        """
        path = Path(path)
        try:
            tokenizer = cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"{path}: not a {FILE_NAME} that the tokenizers library reads ({error})") from None
        if path.name == FILE_NAME:
            tokenizer.chat_template = read_chat_template(path.parent)
            tokenizer.special_ids = read_special_ids(read_json_object(path.parent / CONFIG_FILE))
        return tokenizer

    def save(self, path: Path | str) -> None:
        """Write a `tokenizer.json` atomically, and the chat template and special tokens beside it."""
        path = Path(path)
        with files.atomic_write_bytes(path) as file:
            file.write(self._canonical)
        config = {**self.special_ids, **(self.chat_template.to_json() if self.chat_template else {})}
        if path.name == FILE_NAME and config:
            files.replace_text(path.parent / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def with_special_ids(self, ids: Mapping[str, tuple[int, ...]]) -> Tokenizer:
        """Return a tokenizer with given special tokens, as far as it has them; itself if their names tell the same."""
        known = {key: tuple(index for index in dict.fromkeys(found) if self.token(index)) for key, found in ids.items()}
        backend = self._with_special(self._names[index] for found in known.values() for index in found)
        special_ids = {key: found for key, found in known.items() if found}
        stated = Tokenizer(backend, chat_template=self.chat_template, special_ids=special_ids)
        before, after = (
            (each.start_of_text, each.end_of_text, {*each.stop_ids}, each.padding, each.mask) for each in (self, stated)
        )
        return self if before == after else stated

    def with_chat_template(self) -> Tokenizer:
        """Return a tokenizer with our own chat template, and the special tokens that it needs and this one lacks."""
        template = ChatTemplate.default(self.start_token)
        return Tokenizer(self._with_special(CHAT_TOKENS), chat_template=template, special_ids=self.special_ids)

    def _with_special(self, names: Iterable[str]) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
        return backend

    @property
    def start_token(self) -> str | None:
        """Return the spelling of the token that starts a document; None without one."""
        return None if self.start_of_text is None else self.token(self.start_of_text)

    @cached_property
    def _canonical(self) -> bytes:
        return self._backend.to_str(pretty=True).encode()

    @cached_property
    def sha256(self) -> str:
        """Return the checksum of what `save` writes: equal for equal tokenizers, whatever their formatting."""
        template = b"" if self.chat_template is None else repr(self.chat_template).encode()
        special = repr(sorted(self.special_ids.items())).encode() if self.special_ids else b""
        return hashlib.sha256(self._canonical + template + special).hexdigest()

    @cached_property
    def _names(self) -> dict[int, str]:
        return {index: token for token, index in self._backend.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """Return the largest ID plus one: the rows of an embedding, even if the vocabulary has gaps."""
        return max(self._names, default=-1) + 1

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Return the special tokens and their IDs."""
        return {token["content"]: token["id"] for token in self.description["added_tokens"] if token["special"]}

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Return the tokens that are never split, special or not, and their IDs."""
        return {token["content"]: token["id"] for token in self.description["added_tokens"]}

    @property
    def kind(self) -> str:
        """Return "char", "byte", or the type of its model: "bpe", "unigram", "wordpiece", "wordlevel"."""
        return self._table[0] if self._table else str(self.description["model"]["type"]).lower()

    @property
    def merges_within_characters(self) -> bool:
        """Return whether each token is a character or part of one."""
        splitter = self.description["pre_tokenizer"] or {}
        return self.kind == "bpe" and splits_characters(next(iter(splitter.get("pretokenizers", ())), None))

    @cached_property
    def end_of_text(self) -> int | None:
        """Return the token that ends a document, else the one that starts the next; None without either."""
        return self._find_special("eos_token_id", "bos_token_id")

    @cached_property
    def start_of_text(self) -> int | None:
        """Return the token that starts a document, else the one that ends the previous (GPT-2); None without either."""
        return self._find_special("bos_token_id", "eos_token_id")

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Return all tokens that end a text: the one that ends a document first."""
        named = () if self.end_of_text is None else (self.end_of_text,)
        return self.special_ids.get("eos_token_id", named)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the tokens that end generation: those that end a text and, of a chat template, a turn."""
        turn = () if self.chat_template is None else self.chat_template.end_of_turn(self)
        return tuple(dict.fromkeys((*turn, *self.ends)))

    @cached_property
    def padding(self) -> int | None:
        """Return the padding token, else the one that ends a document; None without either."""
        return self._find_special("pad_token_id", "eos_token_id", "bos_token_id")

    @cached_property
    def mask(self) -> int | None:
        """Return the mask token; None without one."""
        return self._find_special("mask_token_id")

    @cached_property
    def unknown(self) -> int | None:
        """Return the token for text that the vocabulary cannot represent; None without one."""
        model = self.description["model"]
        name = model.get("unk_token")
        return model.get("unk_id") if name is None else self.token_id(name)

    def _find_special(self, *keys: str) -> int | None:
        """Return the first special token of the first kind that there is, as stated or by its name."""
        named = (
            index
            for key in keys
            for index in (*self.special_ids.get(key, ()), *(self.special_tokens.get(name) for name in _NAMES[key]))
        )
        return next((index for index in named if index is not None), None)

    def has_same_ids(self, other: Tokenizer) -> bool:
        """Return whether each ID stands for the same text in another tokenizer, however they split and spell text."""
        sides = [
            [side.decode([index], skip_special=False) for index in range(side.vocab_size)] for side in (self, other)
        ]
        return self.sha256 != other.sha256 and sides[0] == sides[1]

    def extends(self, other: Tokenizer) -> bool:
        """Return whether weights of a model with another tokenizer fit: it has its tokens, with the same IDs.

        Pre-tokenisation may differ, and so may the names of special tokens (a reserved one can be given a use), and
        further special tokens may follow.
        """
        ours, theirs = self._names, other._names
        differing = [index for index in ours if ours[index] != theirs.get(index)]
        return (
            ours.keys() >= theirs.keys()
            and {ours[index] for index in differing}.isdisjoint(theirs.values())
            and all(ours[index] in self.special_tokens for index in differing)
            and all(theirs[index] in other.special_tokens for index in differing if index in theirs)
        )

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Encode a text.

        Args:
            parse_special: encode the spelling of a special token as that token.

        Raises:
            InputError: a character has no token, and there is no unknown token.
        """
        if not parse_special:
            return self.encode_batch([text])[0].tolist()
        return self.encode_marked(self.special_pattern.sub(lambda name: SPECIAL + name[0], text))[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode several texts on all cores, without the GIL.

        Returns:
            An array of uint32 per text.

        Raises:
            InputError: as for `encode`.
        """
        if self._table:
            return [*map(self._look_up, texts)]
        encodings = self._encodings(self._backend.encode_batch_fast, texts)  # without offsets
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Encode several texts, with the word index of each token.

        Words are the tokenizer's own: their tokens don't depend on other words. Without pre-tokenisation each token is
        a word.

        Raises:
            InputError: as for `encode`.
        """
        if self._table:
            return [(ids, np.arange(len(ids), dtype=np.uint32)) for ids in map(self._look_up, texts)]
        return [
            (np.array(encoding.ids, dtype=np.uint32), np.array(encoding.word_ids, dtype=np.uint32))
            for encoding in self._encodings(self._backend.encode_batch, texts)
        ]

    def character_ends(self, text: str) -> list[int]:
        """Return the character offset where each token of `encode(text)` ends, as far as the tokenizer knows.

        Raises:
            InputError: as for `encode`.
        """
        return [end for _, end in self._encodings(self._backend.encode_batch, [text])[0].offsets]

    def _look_up(self, text: str) -> Ids:
        """Return the ID of each character or byte."""
        assert self._table is not None, "the caller has asked"
        kind, table = self._table
        if kind == "byte":
            return table[np.frombuffer(text.encode(), dtype=np.uint8)]
        ids = table[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
        if (missing := ids == MISSING).any():
            character = text[int(missing.argmax())]
            raise InputError(f"character {character!r} (U+{ord(character):04X}) is not in the tokenizer's vocabulary")
        return ids

    def _encodings(
        self, encode: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]
    ) -> list[tokenizers.Encoding]:
        try:
            return encode(texts, add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"the tokenizer cannot encode this text: {error}") from None

    @cached_property
    def merge_rules(self) -> MergeRules | None:
        """Return the merge rules of a BPE tokenizer; None for others."""
        model = self.description["model"]
        marks = [model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")]
        if self.kind != "bpe" or not model["merges"] or any(marks):
            return None
        bytes_spelled = (index for token, index in model["vocab"].items() if decode_byte_fallback(token) is not None)
        return MergeRules(model["vocab"], model["merges"], [*self.added_tokens.values(), *bytes_spelled])

    def encode_marked(self, text: str, cuts: Sequence[int] = ()) -> tuple[list[int], Offsets, Offsets]:
        """Encode a text in which SPECIAL stands before each name that is a special token; all others are text.

        Text between two tokens is of the second, and a character of several tokens of the first.

        Args:
            cuts: places that no token crosses; the parts are not texts of their own.

        Returns:
            The IDs, where each begins in the text, and where its characters end: (tokens,) characters.

        Raises:
            InputError: as for `encode`.
        """
        parser, known = self._marked_parser
        marked = CUT.join(text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)]))
        encoding = self._encodings(parser.encode_batch, [marked])[0]
        ids = np.array(encoding.ids)
        is_cut = ids == parser.token_to_id(CUT)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) - is_cut.cumsum()[:, None]
        firsts, lasts = offsets[~is_cut].T
        return [known.get(index, index) for index in ids[~is_cut].tolist()], firsts, np.maximum.accumulate(lasts)

    @cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Return the pattern of the names of special tokens, the longest first."""
        names = sorted(self.special_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    @cached_property
    def _marked_parser(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """Return a parser of marked special tokens, and the IDs that its own stand for."""
        parser = tokenizers.Tokenizer.from_str(self._backend.to_str())
        parser.encode_special_tokens = True
        marked = [
            tokenizers.AddedToken(
                SPECIAL + token["content"],
                normalized=False,
                **{key: token[key] for key in ("single_word", "lstrip", "rstrip")},
            )
            for token in self.description["added_tokens"]
            if token["special"]
        ]
        parser.add_tokens([*marked, tokenizers.AddedToken(CUT, normalized=False)])
        vocabulary = parser.get_vocab(with_added_tokens=True)
        return parser, {vocabulary[SPECIAL + name]: index for name, index in self.special_tokens.items()}

    def decode(self, ids: Sequence[int] | npt.NDArray[Any], *, skip_special: bool = True) -> str:
        """Decode IDs; invalid UTF-8 becomes replacement characters.

        Raises:
            InputError: an ID is negative or beyond the vocabulary.
        """
        numbers = [int(index) for index in ids]
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocab_size:
            wrong = max(numbers, key=lambda index: (index < 0, index))
            raise InputError(f"token {wrong} is not in the vocabulary (IDs go from 0 to {self.vocab_size - 1})")
        text: str = self._backend.decode(numbers, skip_special_tokens=skip_special)
        return text

    def decode_stream(self, after: Sequence[int] = ()) -> DecodeStream:
        """Return a decoder of one ID at a time that never splits a character.

        Its output is what `decode` of all IDs has beyond `decode` of those before, back to the last special token.

        Args:
            after: IDs before the first one, such as a prompt.
        """
        return DecodeStream(self, after)

    def token(self, index: int) -> str | None:
        """Return a token as spelled in the vocabulary; None if no token has this ID."""
        return self._names.get(index)

    def token_id(self, token: str | None) -> int | None:
        """Return the ID of a token as spelled in the vocabulary; None if there is none."""
        index: int | None = None if token is None else self._backend.token_to_id(token)
        return index

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes of a token inside a text, possibly part of a character; the name of a special token."""
        if (token := self.token(index)) is None:
            return b""
        if self.is_byte_level:
            return decode_byte_level(token)
        if token in self.special_tokens:
            return token.encode()
        if (byte := decode_byte_fallback(token)) is not None:
            return byte
        before = [self._ordinary_token]  # some decoders treat the first token differently
        return self.decode([*before, index], skip_special=False)[
            len(self.decode(before, skip_special=False)) :
        ].encode()

    @cached_property
    def is_byte_level(self) -> bool:
        return is_byte_level(self.description)

    @cached_property
    def _ordinary_token(self) -> int:
        vocabulary = sorted((index, token) for token, index in self._backend.get_vocab(with_added_tokens=False).items())
        return next((index for index, token in vocabulary if token.isalpha()), vocabulary[0][0])


_TOKENS_BEFORE = 16
"""IDs that affect how those after them are decoded: spaces between neighbours, and bytes of a character."""


class DecodeStream:
    """Decodes one ID at a time; `finish` returns the rest.

    Byte-level tokenizers (GPT-2, Llama 3) decode each token's bytes in constant time. All others return the text of
    `ids[start:]` minus that of `ids[start:end]`, which was returned before, so that spaces and prefixes between
    neighbours come out right (as `decode_token` of Hugging Face's text-generation-inference).
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        self._tokenizer, self._special = tokenizer, {*tokenizer.special_tokens.values()}
        self._decode: Callable[[list[int]], str] = partial(tokenizer._backend.decode, skip_special_tokens=False)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.is_byte_level else None
        before = itertools.takewhile(lambda index: index not in self._special, reversed(after[-_TOKENS_BEFORE:]))
        self._ids = [*before][::-1]
        self._end = len(self._ids)

    def feed(self, index: int) -> str:
        """Return the text that is complete with this ID; often empty."""
        token = self._tokenizer.token(index)
        if token is None or index in self._special:
            return ""
        if self._utf8:
            return self._utf8.decode(decode_byte_level(token))
        self._ids.append(index)
        # Byte tokens are decoded together as one run: whether it is valid is known when it has ended.
        return "" if decode_byte_fallback(token) is not None else self._new_text()

    def finish(self) -> str:
        """Return the rest of the text, and reset the stream."""
        if self._utf8:
            rest = self._utf8.decode(b"", final=True)
            self._utf8.reset()
            return rest
        rest = self._new_text()
        self._ids, self._end = [], 0
        return rest

    def _new_text(self) -> str:
        known, text = self._decode(self._ids[: self._end]), self._decode(self._ids)
        if len(text) <= len(known):
            return ""
        self._ids, self._end = self._ids[self._end :], len(self._ids) - self._end
        return text[len(known) :]


PIECE_CHARACTERS = 1 << 16
MAX_PIECE_CHARACTERS = 1 << 17

_WORD_END = re.compile(r"[^\W_](?=[ \n])")
_UP_TO_TEXT = re.compile(r"\s*\S")
_WINDOW = 64  # characters on each side of a cut between words that are tokenized to check it
_FAR_REACH = 1024  # and after a cut elsewhere
_MAX_SPACES = 4096  # characters of white space after a cut, which are searched through
_CONTEXT = 8
_MAX_TRIES = 16
_NEAR = 1024  # characters before the limit, which usually have as many words


def split_into_pieces(
    records: Iterable[Record], tokenizer: Tokenizer | None, *, limit: int = PIECE_CHARACTERS
) -> Iterator[Record]:
    """Split documents into pieces of about `limit` characters that can be tokenized alone.

    Args:
        records: texts, cut anywhere.
        tokenizer: whose tokens the cuts must not change; None to cut between words (for training a tokenizer).
        limit: target size. All pieces but the last of a document have at least half of it. Text without a valid cut is
            cut as soon as possible, or after `MAX_PIECE_CHARACTERS`.
    """
    rest, reach = Record.of_text(""), limit
    for record in records:
        if record.starts:
            if rest.text:
                yield rest
            rest, reach = Record.of_text(""), limit
        text = rest.text + record.text
        while len(text) >= reach + _FAR_REACH:
            try:
                cut = _find_cut(text, rest.context, reach, tokenizer)
            except InputError:  # the caller cannot tokenize it either, and knows which file it is
                cut = reach, ""
            if cut is None and 2 * reach <= MAX_PIECE_CHARACTERS:
                reach *= 2
                continue
            position, context = cut or (reach, "")
            yield rest._replace(parts=(Part("text", text[:position]),), ends=False)
            text, reach = text[position:], limit
            rest = rest._replace(starts=False, context=context)
        rest = rest._replace(parts=(Part("text", text),))
    if rest.text:
        yield rest


def encode_pieces(pieces: Sequence[Record], tokenizer: Tokenizer) -> list[Ids]:
    """Encode pieces of documents, each with the context before it, whose tokens are dropped."""
    encoded = tokenizer.encode_batch([piece.context + piece.text for piece in pieces])
    context = {piece.context: len(tokenizer.encode(piece.context)) for piece in pieces if piece.context}
    return [ids[context.get(piece.context, 0) :] for piece, ids in zip(pieces, encoded, strict=True)]


def _find_cut(text: str, context: str, limit: int, tokenizer: Tokenizer | None) -> tuple[int, str] | None:
    """Return the last valid cut in the second half of `text[:limit]`, and the context of what follows."""
    for start in (max(limit // 2, limit - _NEAR), limit // 2):
        ends = [match.end() for match in _WORD_END.finditer(text, start, limit)]
        if len(ends) > _MAX_TRIES:
            break
    if tokenizer is None:
        return (ends[-1] if ends else limit), ""
    words = ends[: -_MAX_TRIES - 1 : -1]
    # Without words (Chinese, code, noise) any place may do, but what starts a token there may lie far back.
    for number, position in enumerate([*words, *range(limit, limit - _MAX_TRIES, -1)]):
        after = _check_cut(text[max(0, position - _WINDOW) : position], text, position, _WINDOW, tokenizer)
        if after is not None and number >= len(words):
            after = _check_cut(context + text[:position], text, position, _FAR_REACH, tokenizer)
        if after is not None:
            return position, after
    return None


def _check_cut(left: str, text: str, position: int, reach: int, tokenizer: Tokenizer) -> str | None:
    """Return the context of the text after a cut, if both parts together give the same tokens as apart."""
    up_to_text = _UP_TO_TEXT.match(text, position, position + _MAX_SPACES)
    if not up_to_text or position <= 0:
        return None
    right = text[position : up_to_text.end() + reach]
    whole, left_tokens = tokenizer.encode(left + right), tokenizer.encode(left)
    for before in ("", left[-_CONTEXT:]):
        count = len(tokenizer.encode(before)) if before else 0
        if whole == left_tokens + tokenizer.encode(before + right)[count:]:
            return before
    return None
