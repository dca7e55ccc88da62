"""Small models with random weights, tokenizers, and the surprisal of tokens by a float64 loop."""

import math
from pathlib import Path

import numpy as np
import torch

from lm.checkpoint import LoadedModel
from lm.config.inference import PerplexityConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, TokenizerConfig
from lm.data import Batch, batched
from lm.evaluation.scoring import Scored, ScoredTexts, Scorer, score_batch, split_windows
from lm.model import DecoderOnly, build_model
from lm.text.find import find_text_files
from lm.tokenizer import Tokenizer, training
from lm.tokenizer.chat_template import SpecialTokenFrame

SEPARATOR = "<|endoftext|>"
CONTEXT = 16
TEXT = (
    "The owl saw the fox. \n\n  »Über den Bäumen«, said the owl,\tand 狐 ran — past the mill; the mill stood still.\n"
    * 4
)


def make_model(vocab_size: int = 320, *, seed: int = 4, **fields) -> DecoderOnly:
    shape = {**({} if "architecture" in fields else {"positions": "rotary"}), **fields}
    config = ModelConfig(
        vocab_size=vocab_size, context_length=CONTEXT, d_model=32, n_layers=2, n_heads=4, init_std=0.3, **shape
    )
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, DecoderOnly)
    return model


def train_tokenizer(kind: str) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=320)
    return training.train([TEXT], config, corpus_bytes=len(TEXT.encode()))


BPE, CHAR = train_tokenizer("bpe"), train_tokenizer("char")


def token_by_token(model, tokens, *, context, stride, start_token):
    """One forward pass in float64 for every single token, each with exactly the tokens it may see."""
    sequence = ([] if start_token is None else [start_token]) + list(tokens)
    nats = []
    with torch.no_grad():
        reference = model.double()
        for index in range(1, len(sequence)):
            window = 0 if index <= context else math.ceil((index - context) / stride)
            logits = reference(torch.tensor([sequence[window * stride : index]]))[0, -1]
            nats.append(-logits.log_softmax(-1)[sequence[index]].item())
    model.float()
    return np.array(nats)


def score_document(model, tokens, *, context, stride, start_token, batch_size=16):
    """The surprisal of each token of a document; of the first one only with a start token, which predicts it."""
    frame = SpecialTokenFrame(() if start_token is None else (start_token,))
    windows = split_windows([(np.asarray(tokens, dtype=np.int64), True)], frame, context=context, stride=stride)
    nats = [
        part
        for some in batched(windows, batch_size)
        for part in score_batch(model, Batch.from_rows([w.tokens for w in some], [w.is_scored for w in some]))
    ]
    return np.concatenate([np.zeros(0), *nats])


def loaded(model, tokenizer, **fields) -> LoadedModel:
    """A model as loaded from a run."""
    return LoadedModel(model, tokenizer, RunConfig(model=model.config, **fields), Path("run"))


def score_files(model, tokenizer, *names, **config) -> list[Scored]:
    """Score files of any kind."""
    run = loaded(model, tokenizer)
    files = find_text_files([str(name) for name in names], run.config.data)
    return list(Scorer(run, PerplexityConfig(**config)).score(ScoredTexts(files)))


def random_tokens(length: int, vocab_size: int = 320) -> list[int]:
    return np.random.default_rng(length).integers(0, vocab_size, length).tolist()
