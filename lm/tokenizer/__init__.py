"""Tokenizers: any `tokenizer.json`; encode, decode, decode as a stream, and split long documents into pieces.

`training` trains BPE, character and byte vocabularies; `chat_template` has templates and the tokens around a text.
Must not import `lm.corpus` or anything above it.

Pieces can be tokenized alone without changing a token. Cuts are made between the end of a word and white space, where
the usual pre-tokenizers (GPT-2, cl100k, Llama) split in any case, and are verified: the text around a cut must give the
same tokens whole and in two parts. For tokenizers that mark the beginning of a text (Llama 2) a piece has a few
characters of context before it, whose tokens are dropped. Text without such a place, such as megabytes of spaces, is
cut anywhere, as tokenizers need over a hundred bytes per character of a word. Only there can tokens differ from those
of the whole text.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from lm import files
from lm.config.run_config import MASK
from lm.errors import InputError
from lm.text import Part, Record
from lm.tokenizer.casing import MARKS
from lm.tokenizer.chat_template import CHAT_TOKENS, CONFIG_FILE, CUT, ChatTemplate, read_chat_template, read_json_object

Ids = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]

FILE_NAME = "tokenizer.json"

ANY_CHARACTER = r"[\s\S]"
"""The pattern that a character tokenizer splits by: each character, line ends included, is a token."""
_BYTE_FALLBACK = re.compile("<0x[0-9A-Fa-f]{2}>")
_PRINTABLE = {*map(chr, (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))}

_NAMES: Mapping[str, tuple[str, ...]] = {
    "bos_token_id": ("<|begin_of_text|>", "<s>", "<bos>", "<|bos|>", "[BOS]", "[CLS]"),
    "eos_token_id": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]"),
    "pad_token_id": ("[PAD]", "<pad>"),
    "mask_token_id": (MASK, "<mask>"),
}
"""What other toolkits call special tokens, the surest name first, by the key that states their IDs in `config.json`."""


_SPLITTERS: Mapping[str, Mapping[str, Any]] = {
    "char": {"type": "Split", "pattern": {"Regex": ANY_CHARACTER}, "behavior": "Isolated", "invert": False},
    "byte": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
}
"""The pre-tokenizers of tokenizers whose tokens are characters or bytes."""
_MISSING = np.uint32(0xFFFFFFFF)
"""In a lookup table: this character has no token."""


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


def decode_byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token with other characters stands for itself."""
    try:
        return bytes(map(byte_alphabet().__getitem__, token))
    except KeyError:
        return token.encode()


def decode_byte_fallback(token: str) -> bytes | None:
    """Return the byte of a byte-fallback token such as `<0x0A>`; None for any other token."""
    return bytes.fromhex(token[3:5]) if _BYTE_FALLBACK.fullmatch(token) else None


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary, in their order.

    Printable Latin-1 characters stand for themselves, other bytes for characters from U+0100 on.

    Source: Radford et al. 2019, `bytes_to_unicode` of GPT-2's encoder.
    """
    others = itertools.count(256)
    return {chr(byte) if chr(byte) in _PRINTABLE else chr(next(others)): byte for byte in range(256)}


def read_special_ids(values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the IDs of special tokens that a JSON object states, as `config.json` and `generation_config.json` do."""
    stated = {key: value if isinstance(value := values.get(key), list) else [value] for key in _NAMES}
    ids = {key: tuple(index for index in value if type(index) is int) for key, value in stated.items()}
    return {key: found for key, found in ids.items() if found}


class Tokenizer:
    """A tokenizer of the `tokenizers` library.

    Encoding never adds special tokens, truncates, pads or applies dropout, whatever the file says, and treats the
    spelling of a special token as text unless asked.

    Attributes:
        description: the parsed `tokenizer.json`.
        chat_template: for conversations; None if the tokenizer has none.
        special_ids: IDs of special tokens that do not follow from their names, by the keys of `read_special_ids`.
        added_tokens: the tokens that are never split, special or not, and their IDs.
        special_tokens: the special tokens and their IDs.
        vocab_size: the largest ID plus one: the rows of an embedding, even if the vocabulary has gaps.
        is_byte_level: whether tokens spell bytes as characters, as GPT-2's do.
        marks: characters that stand for the case of those after them (inline casing).
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
        self.chat_template, self.special_ids = chat_template, special_ids or {}
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        if isinstance(self._backend.model, tokenizers.models.BPE):
            self._backend.model.dropout = None
        self._backend.encode_special_tokens = True
        self.description: dict[str, Any] = json.loads(self._backend.to_str())
        self.added_tokens = {token["content"]: token["id"] for token in self.description["added_tokens"]}
        self.special_tokens = {
            token["content"]: token["id"] for token in self.description["added_tokens"] if token["special"]
        }
        self._names = {index: token for token, index in self._backend.get_vocab(with_added_tokens=True).items()}
        self.vocab_size = max(self._names) + 1
        decoder = self.description["decoder"] or {}
        first, *others = decoder.get("decoders", [decoder])
        is_cased = [one.get("pattern") for one in others[-len(MARKS) :]] == [{"String": mark} for mark in MARKS]
        self.is_byte_level = first.get("type") == "ByteLevel" and (not others or is_cased)
        self.marks = MARKS if self.is_byte_level and is_cased else ()
        self._rules = _build_decoder(others) if self.marks else None

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a `tokenizer.json`, and the chat template and special tokens beside it.

        Raises:
            InputError: the file is not a tokenizer.
            OSError: it cannot be read.
        """
        content = path.read_bytes()
        try:
            tokenizer = cls(tokenizers.Tokenizer.from_buffer(content))
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"{path}: not a {FILE_NAME} that the tokenizers library reads ({error})") from None
        if path.name == FILE_NAME:
            tokenizer.chat_template = read_chat_template(path.parent)
            tokenizer.special_ids = read_special_ids(read_json_object(path.parent / CONFIG_FILE))
        return tokenizer

    def save(self, path: Path) -> None:
        """Write a `tokenizer.json` atomically, and the chat template and special tokens beside it."""
        files.replace_text(path, self._backend.to_str(pretty=True))
        if path.name == FILE_NAME and self._config:
            files.replace_text(path.parent / CONFIG_FILE, self._config)

    @property
    def _config(self) -> str:
        values = {**self.special_ids, **(self.chat_template.to_json() if self.chat_template else {})}
        return json.dumps(values, indent=2, ensure_ascii=False, sort_keys=True) if values else ""

    @cached_property
    def sha256(self) -> str:
        """Return the checksum of what `save` writes: equal for equal tokenizers, whatever their formatting."""
        return hashlib.sha256((self._backend.to_str(pretty=True) + self._config).encode()).hexdigest()

    def with_special_ids(self, ids: Mapping[str, tuple[int, ...]]) -> Tokenizer:
        """Return a tokenizer with given special tokens, as far as it has them and their names don't tell the same."""
        known = {key: tuple(index for index in found if self.token(index)) for key, found in ids.items()}
        named = Tokenizer(self._with_special(self._names[index] for found in known.values() for index in found))
        stated = {key: found for key, found in known.items() if found != named._find_special(key)}
        return Tokenizer(named._backend, chat_template=self.chat_template, special_ids=stated)

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
    def kind(self) -> str:
        """Return "char", "byte", or the type of its model: "bpe", "unigram", "wordpiece", "wordlevel"."""
        model, splitter = self.description["model"], self.description["pre_tokenizer"]
        has_more = model.get("merges") or self.description["normalizer"] or self.added_tokens != self.special_tokens
        alone = [kind for kind, expected in _SPLITTERS.items() if splitter == expected and not has_more]
        return next(iter(alone), str(model["type"]).lower())

    @cached_property
    def _table(self) -> Ids | None:
        """Return the ID of each character or byte, some hundred times as fast as the library; None for other kinds."""
        model = self.description["model"]
        if self.kind == "byte":
            return np.array([model["vocab"].get(name, _MISSING) for name in byte_alphabet()], dtype=np.uint32)
        if self.kind != "char":
            return None
        table = np.full(0x110000, model["vocab"].get(model["unk_token"], _MISSING), dtype=np.uint32)
        for token, index in model["vocab"].items():
            if len(token) == 1:
                table[ord(token)] = index
        return table

    @property
    def end_of_text(self) -> int | None:
        """Return the token that ends a document, else the one that starts the next; None without either."""
        return next(iter(self.ends), None)

    @cached_property
    def start_of_text(self) -> int | None:
        """Return the token that starts a document, else the one that ends the previous (GPT-2); None without either."""
        return next(iter(self._find_special("bos_token_id", "eos_token_id")), None)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Return all tokens that end a text: the one that ends a document first."""
        return self._find_special("eos_token_id", "bos_token_id")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Return the tokens that end generation: those that end a text and, of a chat template, a turn."""
        turn = self.chat_template.end_of_turn(self) if self.chat_template else ()
        return tuple(dict.fromkeys((*turn, *self.ends)))

    @property
    def padding(self) -> int | None:
        """Return the padding token, else the one that ends a document; None without either."""
        return next(iter(self._find_special("pad_token_id", "eos_token_id", "bos_token_id")), None)

    @cached_property
    def mask(self) -> int | None:
        """Return the mask token; None without one."""
        return next(iter(self._find_special("mask_token_id")), None)

    @cached_property
    def unknown(self) -> int | None:
        """Return the token for text that the vocabulary cannot represent; None without one."""
        model = self.description["model"]
        name = model.get("unk_token")
        return model.get("unk_id") if name is None else self.token_id(name)

    def _find_special(self, *keys: str) -> tuple[int, ...]:
        """Return the special tokens of the first of some keys that has any: as stated, else one by its name."""
        for key in keys:
            named = [self.special_tokens[name] for name in _NAMES[key] if name in self.special_tokens]
            if found := self.special_ids.get(key) or tuple(named[:1]):
                return found
        return ()

    def has_same_ids(self, other: Tokenizer) -> bool:
        """Return whether each ID stands for the same text in another tokenizer, however they split and spell text."""
        ours, theirs = (
            [one.decode([index], skip_special=False) for index in sorted(one._names)] for one in (self, other)
        )
        return self.sha256 != other.sha256 and ours == theirs

    def extends(self, other: Tokenizer) -> bool:
        """Return whether weights of a model with another tokenizer fit: it has its tokens, with the same IDs.

        Pre-tokenisation may differ, and further special tokens may follow.
        """
        ours, theirs = self._names.items(), other._names.items()
        return ours >= theirs and all(token in self.special_tokens for _, token in ours - theirs)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Encode a text.

        Args:
            parse_special: encode the spelling of a special token as that token.

        Raises:
            InputError: a character has no token, and there is no unknown token.
        """
        return self.encode_special(text)[0] if parse_special else self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encode several texts on all cores, without the GIL.

        Returns:
            An array of uint32 per text.

        Raises:
            InputError: as for `encode`.
        """
        if self._table is not None:
            return [self._look_up(text, self._table) for text in texts]
        encodings = self._encodings(texts, self._backend.encode_batch_fast)  # without offsets
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def encode_words(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        """Encode several texts, with the word index of each token.

        Words are the tokenizer's own: their tokens don't depend on other words.

        Raises:
            InputError: as for `encode`.
        """
        encodings = self._encodings(texts, self._backend.encode_batch)
        return [(np.array(one.ids, dtype=np.uint32), np.array(one.word_ids, dtype=np.uint32)) for one in encodings]

    def character_ends(self, text: str) -> list[int]:
        """Return the character offset where each token of `encode(text)` ends, as far as the tokenizer knows.

        Raises:
            InputError: as for `encode`.
        """
        return [end for _, end in self._encodings([text], self._backend.encode_batch)[0].offsets]

    def _look_up(self, text: str, table: Ids) -> Ids:
        if self.kind == "byte":
            return table[np.frombuffer(text.encode(), dtype=np.uint8)]
        ids = table[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
        if (missing := ids == _MISSING).any():
            raise InputError(f"character {text[int(missing.argmax())]!r} is not in the tokenizer's vocabulary")
        return ids

    def _encodings(
        self, texts: Sequence[str], encode: Callable[..., list[tokenizers.Encoding]]
    ) -> list[tokenizers.Encoding]:
        try:
            return encode(texts, add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"the tokenizer cannot encode this text: {error}") from None

    @cached_property
    def merge_rules(self) -> MergeRules | None:
        """Return the merge rules of a BPE tokenizer; None for others."""
        model = self.description["model"]
        if (
            self.kind != "bpe"
            or not model["merges"]
            or model["continuing_subword_prefix"]
            or model["end_of_word_suffix"]
        ):
            return None
        bytes_spelled = (index for token, index in model["vocab"].items() if decode_byte_fallback(token) is not None)
        return MergeRules(model["vocab"], model["merges"], [*self.added_tokens.values(), *bytes_spelled])

    def encode_special(self, text: str, cuts: Sequence[int] = ()) -> tuple[list[int], Offsets, Offsets]:
        """Encode a text in which the spelling of a special token is that token.

        Text between two tokens is of the second, and a character of several tokens of the first.

        Args:
            cuts: places that no token crosses; the parts are not texts of their own.

        Returns:
            The IDs, where each begins in the text, and where its characters end: (tokens,) characters.

        Raises:
            InputError: as for `encode`.
        """
        marked = CUT.join(text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)]))
        encoding = self._encodings([marked], self._special_parser.encode_batch)[0]
        ids = np.array(encoding.ids)
        is_cut = ids == self._special_parser.token_to_id(CUT)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) - is_cut.cumsum()[:, None]
        firsts, lasts = offsets[~is_cut].T
        return ids[~is_cut].tolist(), firsts, np.maximum.accumulate(lasts)

    @cached_property
    def _special_parser(self) -> tokenizers.Tokenizer:
        parser = tokenizers.Tokenizer.from_str(self._backend.to_str())
        parser.encode_special_tokens = False
        parser.add_tokens([tokenizers.AddedToken(CUT, normalized=False)])
        return parser

    def decode(self, ids: Sequence[int] | npt.NDArray[Any], *, skip_special: bool = True) -> str:
        """Decode IDs; invalid UTF-8 becomes replacement characters.

        Raises:
            InputError: an ID is negative or beyond the vocabulary.
        """
        numbers = [int(index) for index in ids]
        if wrong := [index for index in numbers if not 0 <= index < self.vocab_size]:
            raise InputError(f"token {wrong[0]} is not in the vocabulary")
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
        # Some decoders treat the first token of a text differently.
        once, twice = (self._backend.decode([index] * times, skip_special_tokens=False) for times in (1, 2))
        return str(twice[len(once) :]).encode()


def _build_decoder(described: Sequence[Mapping[str, Any]]) -> tokenizers.decoders.Decoder:
    """Return the decoder that parts of a `tokenizer.json` describe."""
    decoder = tokenizers.decoders.Sequence([])
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": described}).encode())
    return decoder


_TOKENS_BEFORE = 40
"""IDs that affect how those after them are decoded: spaces between neighbours, bytes of a character, casing marks."""


class DecodeStream:
    """Decodes one ID at a time; `finish` returns the rest.

    Byte-level tokenizers (GPT-2, Llama 3) decode each token's bytes in constant time; inline casing applies its rules
    to the word so far. All others return the text of `ids[start:]` minus that of `ids[start:end]`, which was returned
    before, so that spaces and prefixes between neighbours come out right (as `decode_token` of Hugging Face's
    text-generation-inference).
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int]) -> None:
        self._tokenizer, self._special = tokenizer, {*tokenizer.special_tokens.values()}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.is_byte_level else None
        before = itertools.takewhile(lambda index: index not in self._special, reversed(after[-_TOKENS_BEFORE:]))
        self._ids = [*before][::-1]
        self._end = len(self._ids)
        if self._utf8 and tokenizer.marks:  # the word so far, with its marks
            self._word = _last_word(self._utf8.decode(b"".join(map(tokenizer.token_bytes, self._ids))))

    def feed(self, index: int) -> str:
        """Return the text that is complete with this ID; often empty."""
        token = self._tokenizer.token(index)
        if token is None or index in self._special:
            return ""
        if self._utf8:
            return self._apply_rules(self._utf8.decode(decode_byte_level(token)))
        self._ids.append(index)
        # Byte tokens are decoded together as one run: whether it is valid is known when it has ended.
        return "" if decode_byte_fallback(token) is not None else self._new_text()

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._apply_rules(self._utf8.decode(b"", final=True)) if self._utf8 else self._new_text()

    def _apply_rules(self, characters: str) -> str:
        if (rules := self._tokenizer._rules) is None:
            return characters
        before, text = self._word, self._word + characters
        self._word = _last_word(text)
        if not any(mark in text for mark in self._tokenizer.marks):
            return characters
        return str(rules.decode([text])[len(rules.decode([before])) :])

    def _new_text(self) -> str:
        backend = self._tokenizer._backend
        known, text = (backend.decode(ids, skip_special_tokens=False) for ids in (self._ids[: self._end], self._ids))
        if len(text) <= len(known):
            return ""
        self._ids, self._end = self._ids[self._end :], len(self._ids) - self._end
        return str(text[len(known) :])


def _last_word(text: str) -> str:
    return text[text.rfind(" ") + 1 :][-_TOKENS_BEFORE:]


PIECE_CHARACTERS = 1 << 16

_WORD_END = re.compile(r"[^\W_](?=[ \n])")
_UP_TO_TEXT = re.compile(r"\s*\S")
_WINDOW, _FAR_WINDOW = 64, 1024  # characters that are tokenized to check a cut, on each side: between words, elsewhere
_MAX_SPACES = 4096  # characters of white space after a cut, which are searched through
_CONTEXT = 8
_MAX_TRIES = 16
_NEAR = 8192  # characters before the limit that are searched for words


def split_into_pieces(
    records: Iterable[Record], tokenizer: Tokenizer | None, *, limit: int = PIECE_CHARACTERS
) -> Iterator[Record]:
    """Split documents into pieces of about `limit` characters that can be tokenized alone.

    Args:
        records: texts, cut anywhere.
        tokenizer: whose tokens the cuts must not change; None to cut between words (for training a tokenizer).
        limit: target size. All pieces but the last of a document have at least half of it.
    """
    text, starts, context = "", True, ""
    for record in itertools.chain(records, [Record.of_text("")]):
        if record.starts:
            if text:
                yield Record((Part("text", text),), starts=starts, context=context)
            text, starts, context = "", True, ""
        text += record.text
        while len(text) >= limit + _FAR_WINDOW:
            position, has_context = _find_cut(text, limit, tokenizer)
            yield Record((Part("text", text[:position]),), starts=starts, ends=False, context=context)
            text, starts, context = text[position:], False, text[position - _CONTEXT : position] * has_context


def encode_pieces(pieces: Sequence[Record], tokenizer: Tokenizer) -> list[Ids]:
    """Encode pieces of documents, each with the context before it, whose tokens are dropped."""
    encoded = tokenizer.encode_batch([piece.context + piece.text for piece in pieces])
    return [
        ids[len(tokenizer.encode(piece.context)) :] if piece.context else ids
        for piece, ids in zip(pieces, encoded, strict=True)
    ]


def _find_cut(text: str, limit: int, tokenizer: Tokenizer | None) -> tuple[int, bool]:
    """Return the last valid cut in the second half of `text[:limit]`, else the limit; and whether it has a context.

    A cut is valid if both parts of the text around it together give the same tokens as the whole.
    """
    ends = [match.end() for match in _WORD_END.finditer(text, max(limit // 2, limit - _NEAR), limit)]
    if tokenizer is None or tokenizer.kind in ("char", "byte"):
        return (ends or [limit])[-1], True
    # Without words (Chinese, code, noise) any place may do, but what starts a token there may lie far back.
    places = [(position, _WINDOW) for position in ends[: -_MAX_TRIES - 1 : -1]]
    for position, window in [*places, *((limit - back, _FAR_WINDOW) for back in range(_MAX_TRIES))]:
        if up_to_text := _UP_TO_TEXT.match(text, position, position + _MAX_SPACES):
            left, right = text[max(0, position - window) : position], text[position : up_to_text.end() + window]
            whole, left_tokens = map(tokenizer.encode, (left + right, left))
            for context in (left[-_CONTEXT:], ""):
                if whole == left_tokens + tokenizer.encode(context + right)[len(tokenizer.encode(context)) :]:
                    return position, bool(context)
    return limit, False
