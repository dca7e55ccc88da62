"""Writes attention maps to files: text, JSON, HTML or pictures, by the file's suffix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cli.attention import plot
from cli.attention.html_page import render_page
from cli.attention.rendering import render_lines, to_dict
from cli.console.heat_map import NO_COLOURS
from cli.console.plots import load_pyplot
from cli.console.text import format_json_line, print_note
from lm.config.evaluation import AttentionConfig
from lm.decoding.translation import TranslatedLine
from lm.decoding.translation_input import TranslationModel
from lm.errors import UsageError
from lm.evaluation.text_attention import TextAttention, compute_translation_attention
from lm.files import atomic_write_text, check_writable

_PICTURES = (".png", ".svg")
SUFFIXES = (".html", ".png", ".svg", ".txt", ".json", ".jsonl", ".pharaoh")


class AttentionMapWriter:
    """Collects translations, and writes their attention maps at the end."""

    def __init__(self, path: Path, config: AttentionConfig, prefix: str) -> None:
        """Create a writer to a file; `prefix` is the start of each translation."""
        check_output_path(path)
        self._path, self._config, self._prefix = path, config, prefix
        self._translated: list[TranslatedLine] = []

    def add(self, translated: TranslatedLine) -> None:
        """Add the translations of a line, of which the best is shown."""
        self._translated.append(translated)

    def write(self, model: TranslationModel, *, to: str | None) -> None:
        """Run the model on each line and its translation, and write the maps in order, of blank lines too."""
        prefix = model.tokenizer.encode(self._prefix) if self._prefix else []
        reads_trees = model.model.config.syntax != "none"  # else another model of an ensemble may read them
        maps = (
            compute_translation_attention(
                model,
                line.source,
                [*prefix, *tokens] if (tokens := line.translations[0].tokens) else [],
                unit=self._config.unit,
                to=to,
                dependency_heads=line.heads if reads_trees else None,
            )
            for line in self._translated
        )
        write_maps(self._path, maps, self._config)


def check_output_path(path: Path) -> None:
    """Raise UsageError unless a file with this suffix can be written; to be called before long work."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the file to write, such as {path / 'attention.html'}")
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: unknown suffix; it is one of {', '.join(SUFFIXES)}")
    check_writable(path)
    if path.suffix in _PICTURES:
        load_pyplot()


def write_maps(path: Path, maps: Iterable[TextAttention], config: AttentionConfig) -> None:
    """Write maps to a file, atomically, and name the written files on stderr.

    Maps are written as they come. A picture holds one map: the files of further ones are named FILE-2.png and so on.
    """
    for written in _write_files(path, maps, config):
        print_note(f"wrote {written}")


def _write_files(path: Path, maps: Iterable[TextAttention], config: AttentionConfig) -> list[Path]:
    if path.suffix in _PICTURES:
        return [plot.save_plot(_numbered(path, number), attention, config) for number, attention in enumerate(maps, 1)]
    writers = {".html": render_page, ".txt": _text, ".json": _json, ".jsonl": _json_lines, ".pharaoh": _pharaoh}
    with atomic_write_text(path) as file:
        for part in writers[path.suffix](maps, config):
            file.write(part)
    return [path]


def _numbered(path: Path, number: int) -> Path:
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def _text(maps: Iterable[TextAttention], config: AttentionConfig) -> Iterator[str]:
    for number, attention in enumerate(maps):
        yield "\n" * bool(number)
        for line in render_lines(attention, config, width=None, colours=NO_COLOURS):
            yield line + "\n"


def _json(maps: Iterable[TextAttention], config: AttentionConfig) -> Iterator[str]:
    for number, line in enumerate(_json_lines(maps, config)):
        if number:
            raise UsageError("a .json file holds one map; write several to a .jsonl file, one a line")
        yield line


def _json_lines(maps: Iterable[TextAttention], config: AttentionConfig) -> Iterator[str]:
    for attention in maps:
        yield format_json_line(to_dict(attention, config)) + "\n"


def _pharaoh(maps: Iterable[TextAttention], config: AttentionConfig) -> Iterator[str]:
    for attention in maps:
        if not attention.map.is_of_translation:
            raise UsageError("only a translation has alignments (.pharaoh)")
        yield attention.map.pharaoh(layer=config.layer, head=config.head) + "\n"
