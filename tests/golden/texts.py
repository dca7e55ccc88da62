"""The small texts that golden cases read: those in `text/`, and further formats made from them."""

import json
from pathlib import Path

TEXT = Path(__file__).parent / "text"


def write_texts(folder: Path) -> None:
    """Write the texts, dependency trees, prompts and examples into a new folder."""
    folder.mkdir(parents=True)
    for path in TEXT.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    stories = (TEXT / "stories.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    _write(folder / "stories.jsonl", [json.dumps({"text": story.strip("\n")}, ensure_ascii=False) for story in stories])
    for index, story in enumerate(stories[:6]):
        _write(folder / "folder" / f"{index}.txt", [story.strip("\n")])
    _write(folder / "prompts.txt", ["The road", "One day", "", "It was the best of days", "The road"])
    _write(folder / "beginnings.txt", ["The road", "One day", "The road"])
    for name in ("train", "test"):
        source, target = (
            (TEXT / f"{name}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")
        )
        pairs = list(zip(source, target, strict=True))
        _write(folder / f"{name}.heads", [" ".join(map(str, _heads(len(line.split())))) for line in source])
        _write(folder / f"{name}.tsv", [f"{english}\t{german}" for english, german in pairs])
        _write(folder / f"{name}-tagged.jsonl", [_line(source=english, target=german) for english, german in pairs])
        _write(
            folder / f"{name}-questions.jsonl",
            [_line(prompt=f"{e}\n", completion=" ".join(g.split()[:2])) for e, g in pairs],
        )
        _write(folder / f"{name}-labels.jsonl", [_line(text=english, label=_label(english)) for english in source])
    _write(folder / "blanks.txt", ["The [MASK] saw the fox.", "A [MASK] of [MASK] in the road."])
    _write(folder / "three.en", (TEXT / "test.en").read_text(encoding="utf-8").splitlines()[:3])
    _write(folder / "prefixes.txt", ["Der", "", "Die"])


def _heads(words: int) -> list[int]:
    """A tree in which the middle word is the root and each other one depends on its neighbour towards the middle."""
    root = (words + 1) // 2
    return [0 if place == root else place + (1 if place < root else -1) for place in range(1, words + 1)]


def _label(text: str) -> str:
    return "short" if len(text) < 40 else "medium" if len(text) < 70 else "long"


def _line(**fields: str) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
