"""Write the corpus: python -m corpora.parallel [FOLDER]."""

import sys
from pathlib import Path

from .generation import GeneratedCorpus, generate


def write(corpus: GeneratedCorpus, folder: Path) -> None:
    """Write train.en, train.de, heldout.en and heldout.de to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", corpus.training), ("heldout", corpus.held_out)):
        for suffix, lines in (("en", [each.english for each in pairs]), ("de", [each.german for each in pairs])):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{name}.{suffix}").write_bytes(text.encode())


if __name__ == "__main__":
    write(generate(), Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
