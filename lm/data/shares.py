"""A corpus shared out among machines: each tokenizes a share of its parts, and in the end the shares are joined.

A share is a folder with the parts that fall to it, the tokenizer, and `share.json`, which is written last. It says how
all parts follow each other, so that shares are joined without the corpus, to the very folder that one machine makes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lm import files
from lm.config import options
from lm.config.data import DataConfig
from lm.data.corpus import Corpus
from lm.data.folder import locked_folder
from lm.data.manifest import Manifest, SourceRecord, check_version
from lm.data.part_store import StoredPart, find_part, part_name, stored_parts
from lm.data.prepare import Prepared
from lm.data.tokens import Origin, counted, making_of, tokens_of_parts
from lm.errors import InputError, UsageError
from lm.text.files import Progress
from lm.tokenizer.tokenizer import FILE_NAME, Tokenizer

VERSION = 1
"""Of the format of `share.json` and of the parts beside it."""

SHARE = "share.json"
_PARTS = "parts"


@dataclass(frozen=True)
class Share:
    """Which share of a corpus a folder holds; `share.json` is this, as JSON.

    Attributes:
        number: of the share, from 1.
        count: of all shares.
        tokenizer: hash of the tokenizer (`Tokenizer.sha256`).
        parts: the names of all parts of the corpus in order; they fall to the shares in turns.
        origin: of the tokens.
    """

    number: int
    count: int
    tokenizer: str
    parts: tuple[str, ...]
    origin: Origin

    @property
    def own(self) -> tuple[str, ...]:
        """The parts that fall to this share."""
        return self.parts[self.number - 1 :: self.count]

    @classmethod
    def read(cls, folder: Path) -> Share:
        """The share in a folder; InputError if there is none that is complete."""
        path = folder / SHARE
        if not path.is_file():
            raise InputError(f"{folder}: no complete share of a corpus (it has no {SHARE}); make it with --part")
        values = files.read_json(path)
        try:
            check_version(values, VERSION, where=str(path), what="share")
            fields = {key: value for key, value in values.items() if key != "format_version"}
            origin = _origin(fields["origin"], where=str(path))
            return options.build(cls, {**fields, "parts": tuple(fields["parts"]), "origin": origin}, where=str(path))
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            raise InputError(f"{path}: damaged ({error}); prepare the share again") from None


def _origin(values: Mapping[str, Any], *, where: str) -> Origin:
    records = {
        key: tuple(options.build(SourceRecord, record, where=where) for record in values[key])
        for key in ("sources", "validation_sources")
    }
    config = options.build(DataConfig, values["config"], where=where)
    return options.build(Origin, {**values, **records, "config": config}, where=where)


@dataclass(frozen=True)
class PreparedShare:
    """A share in a folder.

    Attributes:
        folder: where it is.
        share: which one.
        parts_found: how many of its parts were there already.
    """

    folder: Path
    share: Share
    parts_found: int


def prepare_share(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    number: int,
    count: int,
    force: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> PreparedShare:
    """Tokenize a share of a corpus into a folder, or what of it is missing there.

    Args:
        corpus: the whole corpus.
        tokenizer: what makes the tokens: the same for all shares.
        folder: is made with its parents; it may exist if it is empty or holds this share.
        number: of the share, from 1.
        count: of all shares.
        force: replace another share in the folder.
        processes: that tokenize at the same time, at most [default: as many as there are processors].
        progress: called as text is tokenized.

    Raises:
        InputError: as of `prepare_corpus`, or another process is at work on the folder.
        UsageError: as of `prepare_corpus`.
    """
    making = making_of(corpus.config)
    every = making.parts(corpus)
    own = every[number - 1 :: count]
    names = tuple(part_name(part, tokenizer.sha256) for part in every)
    share = Share(number, count, tokenizer.sha256, names, Origin.of(corpus, tokenizer))
    done = counted(progress, round(corpus.bytes * len(own) / len(every)))
    with locked_folder(folder):
        _make_room(folder, share, force=force)
        tokenizer.save(folder / FILE_NAME)
        place, saved = folder / _PARTS, folder / FILE_NAME
        stored = stored_parts(own, tokenizer, making.write, folder=place, saved=saved, workers=processes, done=done)
        found = sum(part.found for part in stored)
        files.write_json(folder / SHARE, {"format_version": VERSION, **asdict(share)})
    return PreparedShare(folder, share, found)


def _make_room(folder: Path, share: Share, *, force: bool) -> None:
    """Remove what is no part of a share from its folder; InputError if that might be precious."""
    present = {path.name for path in folder.iterdir()}
    if present - {SHARE, _PARTS, FILE_NAME}:
        raise InputError(f"{folder}: is there already, and holds no share of a corpus; choose another folder")
    if SHARE in present and not force and Share.read(folder) != share:
        raise InputError(f"{folder}: holds another share already; choose another folder, or --force")
    (folder / SHARE).unlink(missing_ok=True)
    (folder / _PARTS).mkdir(exist_ok=True)
    for path in (folder / _PARTS).iterdir():
        if path.name not in share.own:
            shutil.rmtree(path)


def join_shares(
    folders: Sequence[Path], *, folder: Path | None = None, force: bool = False, root: Path | None = None
) -> Prepared[Manifest]:
    """Join all shares of a corpus to a folder of tokens, or find it there.

    Args:
        folders: of the shares, in any order.
        folder: as of `prepare_corpus`.
        force: as of `prepare_corpus`.
        root: as of `prepare_corpus`.

    Raises:
        InputError: a share is missing, damaged or of another corpus, or the errors of `prepare_corpus`.
    """
    shares = {share.number: (place, share) for place in folders for share in (Share.read(place),)}
    first_place, first = shares[min(shares)]
    _check_complete(shares)

    def stored(_unfinished: Path, _saved: Path) -> Iterator[StoredPart]:
        for place, name in enumerate(first.parts):
            owner, share = shares[place % first.count + 1]
            if (part := find_part(owner / _PARTS / name)) is None:
                again = f"--part {share.number}/{share.count}"
                raise InputError(f"{owner / _PARTS / name}: missing or damaged; prepare the share again ({again})")
            yield part

    tokenizer = Tokenizer.load(first_place / FILE_NAME)
    if tokenizer.sha256 != first.tokenizer:
        raise InputError(f"{first_place / FILE_NAME}: not the tokenizer that made the share; prepare the share again")
    made = tokens_of_parts(first.origin, tokenizer, stored, folder=folder, force=force, root=root)
    return Prepared(made.folder, made.manifest, reused=made.reused)


def _check_complete(shares: Mapping[int, tuple[Path, Share]]) -> None:
    """Raise InputError unless the shares are all of one corpus."""
    first_place, first = shares[min(shares)]
    for place, share in shares.values():
        if (share.parts, share.count, share.origin.key) != (first.parts, first.count, first.origin.key):
            raise InputError(f"{place}: a share of another corpus, or by another tokenizer, than {first_place}")
    missing = [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in shares]
    if missing:
        raise InputError(f"shares are missing: {', '.join(missing)}; make them with --part, and name them too")
