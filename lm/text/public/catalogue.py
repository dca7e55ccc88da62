"""Public corpora: URLs, sizes, checksums and licences."""

from __future__ import annotations

from dataclasses import dataclass

from lm.config import settings as options
from lm.errors import UsageError


@dataclass(frozen=True)
class PublicFile:
    """A file of a public corpus.

    Attributes:
        size: download size in bytes; approximate without a checksum.
        sha256: checksum of the download; None if not published, so that the first download is trusted.
        text: name of the extracted text, if the download is an archive or a table.
    """

    url: str
    size: int
    sha256: str | None = None
    text: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class PublicCorpus:
    """A corpus that `lm corpus` lists.

    Attributes:
        name: as the user types it.
        train: the files to train on, with `{folder}` for their folder.
        validation: a file or a fraction; None for the default.
        shipped: the files in the `corpora` package, if it ships with lm.
    """

    name: str
    description: str
    licence: str
    train: tuple[str, ...]
    files: tuple[PublicFile, ...] = ()
    shipped: tuple[str, ...] = ()
    validation: str | None = None

    @property
    def size(self) -> int:
        """Return the download size in bytes."""
        return sum(file.size for file in self.files)

    @property
    def is_size_exact(self) -> bool:
        """Return whether all checksums, and so the size, are known."""
        return all(file.sha256 for file in self.files)


_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/"
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
_WIKITEXT = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/"
_TINY_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/"
_MAHONEY = "https://mattmahoney.net/dc/"

CORPORA = (
    PublicCorpus(
        "stories",
        "1,069 short English stories; ships with lm",
        "MIT",
        ("{folder}/train.txt",),
        shipped=("stories/train.txt", "stories/heldout.txt"),
    ),
    PublicCorpus(
        "parallel",
        "20,000 English sentences and their German; ships with lm",
        "MIT",
        ("{folder}/train.en",),
        shipped=("parallel/train.en", "parallel/train.de", "parallel/heldout.en", "parallel/heldout.de"),
    ),
    PublicCorpus(
        "tinyshakespeare",
        "40,000 lines of Shakespeare's plays",
        "public domain",
        ("{folder}/input.txt",),
        (
            PublicFile(
                _SHAKESPEARE + "input.txt",
                1_115_394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
    ),
    PublicCorpus(
        "wikitext-2",
        "720 Wikipedia articles, 2 million words",
        "CC BY-SA",
        ("{folder}/train.txt",),
        (
            PublicFile(_WIKITEXT + "wikitext-2-raw-v1/train-00000-of-00001.parquet", 6_400_000, text="train.txt"),
            PublicFile(
                _WIKITEXT + "wikitext-2-raw-v1/validation-00000-of-00001.parquet", 660_000, text="validation.txt"
            ),
            PublicFile(_WIKITEXT + "wikitext-2-raw-v1/test-00000-of-00001.parquet", 730_000, text="test.txt"),
        ),
        validation="{folder}/validation.txt",
    ),
    PublicCorpus(
        "wikitext-103",
        "28,000 Wikipedia articles, 100 million words",
        "CC BY-SA",
        ("{folder}/train-1.txt", "{folder}/train-2.txt"),
        (
            PublicFile(_WIKITEXT + "wikitext-103-raw-v1/train-00000-of-00002.parquet", 157_000_000, text="train-1.txt"),
            PublicFile(_WIKITEXT + "wikitext-103-raw-v1/train-00001-of-00002.parquet", 157_000_000, text="train-2.txt"),
            PublicFile(
                _WIKITEXT + "wikitext-103-raw-v1/validation-00000-of-00001.parquet", 660_000, text="validation.txt"
            ),
            PublicFile(_WIKITEXT + "wikitext-103-raw-v1/test-00000-of-00001.parquet", 730_000, text="test.txt"),
        ),
        validation="{folder}/validation.txt",
    ),
    PublicCorpus(
        "tinystories",
        "2.7 million children's stories by GPT-4",
        "CDLA-Sharing-1.0",
        ("{folder}/TinyStoriesV2-GPT4-train.txt",),
        (
            PublicFile(_TINY_STORIES + "TinyStoriesV2-GPT4-train.txt", 2_230_000_000),
            PublicFile(_TINY_STORIES + "TinyStoriesV2-GPT4-valid.txt", 22_500_000),
        ),
        validation="{folder}/TinyStoriesV2-GPT4-valid.txt",
    ),
    PublicCorpus(
        "enwik8",
        "100 million bytes of Wikipedia with mark-up, of 2006",
        "CC BY-SA, GFDL",
        ("{folder}/enwik8.txt",),
        (PublicFile(_MAHONEY + "enwik8.zip", 36_400_000, text="enwik8.txt"),),
        validation="0.05",
    ),
    PublicCorpus(
        "multi30k",
        "29,000 image captions, English and German",
        "none given; images: Flickr's",
        ("{folder}/train.en.gz",),
        (
            PublicFile(
                _MULTI30K + "train.en.gz", 568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"
            ),
            PublicFile(
                _MULTI30K + "train.de.gz", 637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"
            ),
            PublicFile(
                _MULTI30K + "val.en.gz", 21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"
            ),
            PublicFile(
                _MULTI30K + "val.de.gz", 24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"
            ),
            PublicFile(
                _MULTI30K + "test_2016_flickr.en.gz",
                21_077,
                "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            ),
            PublicFile(
                _MULTI30K + "test_2016_flickr.de.gz",
                22_890,
                "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
            ),
        ),
        validation="{folder}/val.en.gz",
    ),
)


def find_corpus(name: str) -> PublicCorpus:
    """Return a corpus by name; UsageError if there is none."""
    known = {corpus.name: corpus for corpus in CORPORA}
    if name.lower() not in known:
        hint = options.did_you_mean(name.lower(), known)
        raise UsageError(f"no corpus is called {name!r}{hint}; choose from {', '.join(known)}")
    return known[name.lower()]
