"""From stories to the two files.

One stream of stories feeds both. Which file a story may go to follows from three choices made before its first word:
the hero's kind, the plot scheme and the thing it is about. About one combination in sixteen, picked by a checksum of
its name (`is_held_out`), is kept out of `train.txt` altogether: a rabbit may build a raft in training and a fox may
build a sledge, but if foxes with rafts are held out, only `heldout.txt` tells of one. Nearly all the words in it occur
in training, but in other company.
"""

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from .dice import Dice
from .scheme import Story, tell
from .schemes import SCHEMES

SEED = 20
SEPARATOR = "<|endoftext|>"
TRAIN_BYTES = 1_020_000
HELDOUT_BYTES = 60_000
HELDOUT_SHARE = 16
WORDS_IN_A_STORY = range(80, 201)


def is_held_out(story: Story) -> bool:
    """Whether this combination of kind, scheme and thing belongs to `heldout.txt`."""
    return crc32(f"{story.kind}/{story.scheme}/{story.thing}".encode()) % HELDOUT_SHARE == 0


def stories(seed: int) -> Iterator[Story]:
    """Endless stories of the right length, none twice."""
    dice = Dice(seed)
    told: set[str] = set()
    while True:
        story = tell(dice.choose(SCHEMES), dice)
        if len(story.text.split()) in WORDS_IN_A_STORY and story.text not in told:
            told.add(story.text)
            yield story


def generate(seed: int = SEED) -> tuple[str, str]:
    """The text of `train.txt` and of `heldout.txt`."""
    files: dict[bool, list[str]] = {False: [], True: []}
    room = {False: TRAIN_BYTES, True: HELDOUT_BYTES}
    for story in stories(seed):
        held_out = is_held_out(story)
        if room[held_out] > 0:
            files[held_out].append(story.text)
            room[held_out] -= len(story.text) + len(f"\n{SEPARATOR}\n")
        elif max(room.values()) <= 0:
            break
    return join(files[False]), join(files[True])


def join(texts: list[str]) -> str:
    """The stories as one file, with a separator line between them."""
    return f"\n{SEPARATOR}\n".join(texts) + "\n"


def write(folder: Path) -> list[Path]:
    """Write both files into `folder`, which is made if need be, and say where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "train.txt", folder / "heldout.txt"]
    for path, text in zip(paths, generate(), strict=True):
        path.write_bytes(text.encode("ascii"))
    return paths
