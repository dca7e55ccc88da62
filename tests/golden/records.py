"""What a golden case leaves behind, as named values: each tensor, number and line of it."""

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, str]
"""Values by name, `PATH:FIELD` or `command N:FIELD`, in the order in which a reader wants to see what differs."""

_LONGEST = 200
_UNRECORDED = ("timings.jsonl", ".lock", "lock")
_DURATIONS = frozenset({
    "seconds", "training_seconds", "elapsed", "budget_seconds_used", "bytes_per_second", "tokens_per_second",
    "seconds_left", "changed", "modified",
})  # fmt: skip
"""Fields of JSON that say how long something took."""
_OF_DURATIONS = frozenset({"config.json", "state.json"})
"""Files of a checkpoint whose checksums depend on durations and on where the data lie."""
_WHOLE = frozenset({"tokenizer.json", "source_tokenizer.json"})
"""Files recorded by their checksum alone: they have thousands of values, and are compared byte by byte anyway."""
_UPWARDS = re.compile(r"(\.\./)+(cases/)?")
"""The beginning of a path to another run, which depends on the depth of the folder that a tree's results are in."""
_KEY = re.compile(r"[0-9a-f]{16,}")


def of_folder(folder: Path) -> Record:
    """Record all files that commands wrote into a folder."""
    record: Record = {}
    seen: dict[str, int] = {}
    for path in sorted(_files(folder)):
        name = _KEY.sub("#", path.relative_to(folder).as_posix())
        seen[name] = seen.get(name, 0) + 1
        name = name if seen[name] == 1 else f"{name} ({seen[name]})"
        for field, value in _of_file(path, folder):
            record[f"{name}:{field}"] = value
    return record


def of_output(text: str, folder: Path) -> Record:
    """Record what a command wrote to stdout: the values of JSON, or lines."""
    return dict(_of_text(text, folder))


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder, those behind links aside."""
    for path in folder.iterdir():
        if path.is_symlink() or path.name in _UNRECORDED:
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _of_file(path: Path, folder: Path) -> Iterator[tuple[str, str]]:
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        yield from _tensors(content)
        return
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        yield "bytes", _hash(content)
        return
    if path.name in _WHOLE or path.parent.name == "tokenizers":
        yield "bytes", _hash(content)
    elif path.name == "manifest.json":
        manifest = json.loads(text)
        sums = manifest.get("sha256") or manifest
        for name in sums:
            if name in _OF_DURATIONS:
                sums[name] = "…"
        yield from _flat("", manifest, folder)
    else:
        yield from _of_text(text, folder)


def _tensors(content: bytes) -> Iterator[tuple[str, str]]:
    """The tensors of a safetensors file: dtype, shape and the hash of their bytes."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), memoryview(content)[8 + size :]
    for name, value in sorted(header.pop("__metadata__", {}).items()):
        yield f"metadata {name}", value
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        yield name, f"{entry['dtype']} {entry['shape']} {_hash(data[begin:end])}"


def _of_text(text: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Values of a JSON document or of JSON lines, or else lines of text."""
    try:
        yield from _flat("", json.loads(text), folder)
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            step = f" (step {value['step']})" if "step" in value else ""
            yield from _flat(f"{number}{step}.", value, folder)
        else:
            yield str(number), _shown(line, folder)


def _flat(prefix: str, value: Any, folder: Path) -> Iterator[tuple[str, str]]:
    """The plain values inside a value of JSON, with their places; lists of plain values are kept whole."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in _DURATIONS:
                yield from _flat(f"{prefix}{name}.", each, folder)
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        for index, each in enumerate(value):
            yield from _flat(f"{prefix}{index}.", each, folder)
    else:
        yield prefix.removesuffix("."), _shown(json.dumps(value, ensure_ascii=False), folder)


def _shown(text: str, folder: Path) -> str:
    """Shorten a text: without the name of the folder it was written in; of a long one the beginning and its hash."""
    text = text.replace(str(folder.resolve()), "<folder>").replace(str(folder), "<folder>")
    text = _UPWARDS.sub("…/", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {_hash(text.encode())}"


def _hash(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
