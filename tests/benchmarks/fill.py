"""Blanks in held-out stories: a masked model against what counting n-grams guesses.

    python -m tests.benchmarks.fill [--steps 1500] [--masking-rate 0.3] [--seed 1] [--blanks 400] [--run FOLDER]

Trains a masked model of the preset tiny on the stories that ship, on one thread, unless a run is given. Then single
tokens of the held-out stories are hidden, the same for all, and the fraction that each guesses at first is printed: the
model, which reads the whole context around a blank, and n-gram models of all orders up to 5 that counted what the
model was trained on, with interpolated Kneser-Ney smoothing. These guess from the tokens to the left, from those to
the right (having counted the text backwards), from both (the token that makes the tokens from its place to the right
likeliest after those to the left, which is all that such a model can know of a blank), and with a hint: whichever of
left and right happens to be correct.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from corpora import path
from lm.checkpoint import LoadedModel, load_model
from lm.config.hardware import HardwareConfig
from lm.corpus.shards import open_split
from lm.evaluation.ngram_baseline import compute_ngram_surprisals
from lm.hardware import select_inference_hardware
from lm.model.transformer import EncoderOnly
from lm.text.documents import read_pieces
from lm.text.text_files import find_text_files
from tests.benchmarks.runs import lm

Ids = NDArray[np.int64]

_ORDERS = (2, 3, 4, 5)
_BLANKS_AT_ONCE = 50


def held_out(loaded: LoadedModel) -> Ids:
    """(tokens,) the held-out stories one after another, as the model was trained on others."""
    (file,) = find_text_files([str(path("stories/heldout.txt"))])
    stories: list[str] = []
    for piece in read_pieces(file, loaded.config.data.separator):
        stories = [*stories, ""] if piece.starts_document else stories
        stories[-1] += piece.text
    start = loaded.tokenizer.start_of_text
    return np.concatenate([np.array([start, *loaded.tokenizer.encode(story)], dtype=np.int64) for story in stories])


def blanks_of(tokens: Ids, number: int, *, seed: int, special: int | None) -> Ids:
    """(number,) places to be hidden, far enough from both ends for every context, in order."""
    places = np.flatnonzero(tokens != special)
    places = places[(places >= max(_ORDERS)) & (places < len(tokens) - max(_ORDERS))]
    return np.sort(np.random.default_rng(seed).choice(places, number, replace=False))


@torch.inference_mode()
def guesses_of_model(loaded: LoadedModel, tokens: Ids, blanks: Ids) -> Ids:
    """(blanks,) the token that the model takes for the likeliest, with half of its context on either side."""
    assert isinstance(loaded.model, EncoderOnly)
    context, found = loaded.config.model.context_length, []
    for place in blanks.tolist():
        first = min(max(0, place - context // 2), max(0, len(tokens) - context))
        row = torch.from_numpy(tokens[first : first + context])[None].clone()
        row[0, place - first] = loaded.tokenizer.mask
        found.append(int(loaded.model(row)[0, place - first].argmax()))
    return np.array(found)


def guesses_by_counting(train: Ids, tokens: Ids, blanks: Ids, *, vocab_size: int, order: int, reach: int) -> Ids:
    """(blanks,) the token that makes itself and `reach` tokens after it likeliest, after `order` - 1 before it."""
    found = []
    for some in np.split(blanks, range(_BLANKS_AT_ONCE, len(blanks), _BLANKS_AT_ONCE)):
        around = tokens[some[:, None] + np.arange(1 - order, reach + 1)]
        rows = np.repeat(around[:, None], vocab_size, axis=1)
        rows[:, :, order - 1] = np.arange(vocab_size)
        nats = compute_ngram_surprisals(train, rows.reshape(-1), vocab_size=vocab_size, order=order)[-1].reshape(
            rows.shape
        )
        found.append(nats[:, :, order - 1 :].sum(-1).argmin(-1))
    return np.concatenate(found)


def counted(train: Ids, tokens: Ids, blanks: Ids, *, vocab_size: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """What counting guesses, by name: (blanks,) whether it is right."""
    wanted = tokens[blanks]
    backwards, places = tokens[::-1], len(tokens) - 1 - blanks
    yield "the most frequent token", wanted == np.bincount(train).argmax()
    for order in _ORDERS:
        sizes = {"vocab_size": vocab_size, "order": order}
        left = guesses_by_counting(train, tokens, blanks, reach=0, **sizes) == wanted
        right = guesses_by_counting(train[::-1].copy(), backwards, places, reach=0, **sizes) == wanted
        both = guesses_by_counting(train, tokens, blanks, reach=order - 1, **sizes) == wanted
        yield f"{order}-grams, left", left
        yield f"{order}-grams, right", right
        yield f"{order}-grams, both sides", both
        yield f"{order}-grams, left or right, whichever is correct", left | right


def compare(run: Path, *, number: int, seed: int) -> None:
    """Print how many blanks each guesses."""
    loaded = load_model(run, select_inference_hardware(HardwareConfig(threads=1)))
    tokens, size = held_out(loaded), loaded.tokenizer.vocab_size
    blanks = blanks_of(tokens, number, seed=seed, special=loaded.tokenizer.start_of_text)
    assert loaded.config.plan is not None
    split = open_split(Path(loaded.config.plan.data), "train")
    train = split.read(0, len(split)).astype(np.int64)
    model = guesses_of_model(loaded, tokens, blanks) == tokens[blanks]
    rows = [("masked model", model), *counted(train, tokens, blanks, vocab_size=size)]
    print(f"{number} blanks in {len(tokens):,} tokens of held-out stories; {len(train):,} tokens were learned from")
    for name, right in rows:
        error = (right.mean() * (1 - right.mean()) / number) ** 0.5
        print(f"{name:<50}{right.mean():7.1%} ± {error:.1%}")


def main() -> None:
    """Train unless there is a run, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--masking-rate", type=float, default=0.3, help="more than BERT's, to learn more from a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blanks", type=int, default=400)
    parser.add_argument("--run", type=Path, help="compare this run instead of training one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or Path(folder) / "run"
        if not arguments.run:
            given = {"--steps": arguments.steps, "--masking-rate": arguments.masking_rate, "--seed": arguments.seed}
            settings = [part for flag, value in given.items() for part in (flag, str(value))]
            corpus = str(path("stories/train.txt"))
            lm("train", corpus, "-o", str(run), "--objective", "masked", *settings, "--threads", "1")
        compare(run, number=arguments.blanks, seed=arguments.seed)


if __name__ == "__main__":
    main()
