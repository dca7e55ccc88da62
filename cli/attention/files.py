"""Attention maps as text, JSON, pages and pictures: the file's suffix says which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli.attention.figures import as_json, lines
from cli.attention.maps import Looked, looked_at
from cli.console.escapes import json_line
from cli.console.heat_map import NO_COLOURS
from lm.config.evaluation import AttentionConfig
from lm.errors import UsageError
from lm.files import check_place, replaced

if TYPE_CHECKING:
    from lm.decoding.translation import Translated
    from lm.decoding.translation_input import TranslationModel

SUFFIXES = (".html", ".png", ".svg", ".txt", ".json", ".jsonl", ".pharaoh")


class Maps:
    """Gathers the translations of a run, to write maps of them in the end."""

    def __init__(self, path: Path, config: AttentionConfig, prefix: str) -> None:
        """Maps to be written to a path; UsageError unless its suffix says what to write.

        Args:
            path: the file.
            config: what is to be shown.
            prefix: how each translation begins.
        """
        check(path)
        self._path, self._config, self._prefix = path, config, prefix
        self._translated: list[tuple[str, tuple[int, ...]]] = []

    def add(self, translated: Translated) -> None:
        """Keep the best translation of a line."""
        self._translated.append((translated.source, translated.translations[0].tokens))

    def write(self, model: TranslationModel, *, to: str | None) -> None:
        """Read each line and its translation again, and write the maps, in order; blank ones too."""
        from cli.console.messages import note

        prefix = model.tokenizer.encode(self._prefix) if self._prefix else []
        looked = (
            looked_at(model, source, [*prefix, *tokens] if tokens else [], self._config, to=to)
            for source, tokens in self._translated
        )
        for path in write(self._path, looked, self._config):
            note(f"wrote {path}")


def check(path: Path) -> None:
    """Raise UsageError unless the suffix says what to write; to be called before long work."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the file to write, for instance {path / 'attention.html'}")
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: cannot tell what to write; the suffix is one of {', '.join(SUFFIXES)}")
    check_place(path)
    if path.suffix in (".png", ".svg"):
        from cli.attention.picture import pyplot

        pyplot()


def write(path: Path, looked: Iterable[Looked], config: AttentionConfig) -> list[Path]:
    """Write maps to a file, whole or not at all; returns the files written.

    Maps are written as they come. A picture holds one map: those of further ones are named FILE-2.png and so on.
    """
    if path.suffix in (".png", ".svg"):
        from cli.attention.picture import save

        return [save(_numbered(path, number), one, config) for number, one in enumerate(looked, 1)]
    writers = {".html": _page, ".txt": _text, ".json": _json, ".jsonl": _lines, ".pharaoh": _pharaoh}
    with replaced(path) as file:
        for part in writers[path.suffix](looked, config):
            file.write(part)
    return [path]


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _page(looked: Iterable[Looked], config: AttentionConfig) -> Iterator[str]:
    from cli.attention import page

    return page.page(looked, config)


def _text(looked: Iterable[Looked], config: AttentionConfig) -> Iterator[str]:
    for number, one in enumerate(looked):
        yield "\n" * bool(number)
        for line in lines(one, config, width=None, colours=NO_COLOURS):
            yield line + "\n"


def _json(looked: Iterable[Looked], config: AttentionConfig) -> Iterator[str]:
    for number, line in enumerate(_lines(looked, config)):
        if number:
            raise UsageError("a .json file holds one map; write several to a .jsonl file, one a line")
        yield line


def _lines(looked: Iterable[Looked], config: AttentionConfig) -> Iterator[str]:
    for one in looked:
        yield json_line(as_json(one, config)) + "\n"


def _pharaoh(looked: Iterable[Looked], config: AttentionConfig) -> Iterator[str]:
    for one in looked:
        if one.map.kind != "cross":
            raise UsageError("only a translation has alignments (.pharaoh)")
        yield one.map.pharaoh(layer=config.layer, head=config.head) + "\n"
