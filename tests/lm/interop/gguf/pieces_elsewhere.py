"""A tokenizer of SentencePiece, with the rules that follow from its pieces and their scores."""

import functools
import json

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from corpora import path
from lm.tokenizer import Tokenizer
from tests.lm.tokenizers_elsewhere import llama2_like

_SPACES = ("▁▁", "▁▁▁▁")
_CHARACTERS = 40_000


@functools.cache
def _pieces() -> tuple[str, ...]:
    """The best first: runs of spaces, and what BPE makes of words."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    text = path("stories/heldout.txt").read_text()[:_CHARACTERS] + "Aa aaa aaaa ababab\n" * 20
    trained.train_from_iterator([text], trainers.BpeTrainer(vocab_size=900, show_progress=False))
    made = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    return (*_SPACES, *(token for token, _ in made if len(token) > 1), *(token for token, _ in made if len(token) == 1))


def sentencepiece_like(*, begins_with_space: bool = True) -> Tokenizer:
    """Of Llama 2's kind: every two pieces that spell one are a rule, those of the better piece first."""
    made = json.loads(llama2_like().to_str())
    first = [token for token in made["model"]["vocab"] if token in ("<unk>", "<s>", "</s>") or token.startswith("<0x")]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*first, *_pieces()]))}
    merges = []
    for token in _pieces():
        splits = [(token[:place], token[place:]) for place in range(1, len(token))]
        merges += [pair for pair in splits if all(part in vocabulary for part in pair)]
    made["model"] |= {"vocab": vocabulary, "merges": merges}
    if not begins_with_space:
        made["normalizer"] = made["normalizer"]["normalizers"][1]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(made)))
