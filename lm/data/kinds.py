"""The training data of a run, from a folder that `lm.data` prepared, of whatever kind they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lm.config.model import ModelConfig
from lm.config.run import RunConfig
from lm.data.corpus import Corpus
from lm.data.examples.batches import ExampleData
from lm.data.examples.labelled import LabelledData
from lm.data.examples.prepare import write_examples
from lm.data.manifest import Manifest
from lm.data.pairs.batches import PairData
from lm.data.prepare import Prepared, prepare_tokens
from lm.data.training_data import TrainingData
from lm.data.windows.batches import WindowData
from lm.data.windows.masked import MaskedWindowData
from lm.data.windows.prepare import write_text
from lm.errors import UsageError
from lm.text.files import Progress
from lm.tokenizer.tokenizer import Tokenizer

KINDS: tuple[type[TrainingData], ...] = (PairData, ExampleData, WindowData)
"""Asked in this order whether a folder is theirs."""

_OF_MASKED_MODELS: dict[type[TrainingData], type[TrainingData]] = {
    ExampleData: LabelledData,
    WindowData: MaskedWindowData,
}
"""What a masked model makes of data of a kind."""


def open_data(folder: Path, config: RunConfig) -> TrainingData:
    """The data in a folder, batched as a run wants it.

    Args:
        folder: of prepared data of any kind.
        config: of the run; its model must be one for such data.

    Raises:
        InputError: the folder holds no prepared data, or too little of it.
        UsageError: the model is not one for this data.
    """
    kind = _kind(folder)
    check_model(config.model, pairs=kind.holds_pairs)
    return (_OF_MASKED_MODELS[kind] if config.model.is_masked else kind).open(folder, config)


def prepare_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    folder: Path | None = None,
    force: bool = False,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Prepared[Manifest]:
    """Tokenize a corpus into a folder, as running text or as examples, or find it there.

    Args:
        corpus: the corpus.
        tokenizer: what makes the tokens.
        folder: the folder to be made; it may exist if it is empty or holds prepared tokens [default: in the cache].
        force: replace prepared tokens in the folder that are not the same.
        root: the cache [default: `cache_root()`].
        progress: called as text is tokenized; not at all if the tokens are there.

    Raises:
        InputError: the tokenizer has no token for a character, nothing is left to train on, or the folder holds
            something else.
        UsageError: examples need a token that ends a text, and the tokenizer has none.
    """
    write = partial(write_examples if corpus.config.supervised else write_text, corpus, tokenizer, progress)
    return prepare_tokens(corpus, tokenizer, write, folder=folder, force=force, root=root)


def check_model(config: ModelConfig, *, pairs: bool) -> None:
    """UsageError unless a model of this kind can be trained on pairs, or on anything else."""
    if pairs and not config.translates:
        raise UsageError(
            "pairs need an encoder-decoder (--n-encoder-layers, or --preset translation), or one stack that reads both "
            "sides (--decoder-only)"
        )
    if config.translates and not pairs:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "for translation (--decoder-only)"
        raise UsageError(f"the model is {kind}, which needs pairs of texts (--source, --target)")


def data_key(folder: Path) -> str:
    """A hash of what the data in a folder was made from; InputError if it holds none."""
    return _kind(folder).manifest(folder).key


def data_files(folder: Path) -> list[str]:
    """The files that the data in a folder was made from, as the user named them; InputError if it holds none."""
    return [record.path for record in _kind(folder).manifest(folder).sources]


def _kind(folder: Path) -> type[TrainingData]:
    """What kind of data a folder holds; InputError if it holds none."""
    return next(kind for kind in KINDS if kind.is_in(folder))
