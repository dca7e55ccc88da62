"""A tokenizer with a mask, and small masked models with random weights."""

from lm.config.model import ModelConfig
from lm.config.run_config import END_OF_TEXT, MASK, TokenizerConfig
from lm.model import EncoderOnly, build_model
from lm.tokenizer import Tokenizer, training

TEXT = "A cup of tea, and a cup of milk. Über 狐 the owl saw a fox by the mill.\n" * 5


def make_tokenizer(kind: str = "bpe") -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=300)
    special = (END_OF_TEXT, MASK)
    return training.train([TEXT], config, corpus_bytes=len(TEXT.encode()), special_tokens=special)


def make_model(tokenizer: Tokenizer, **fields) -> EncoderOnly:
    shape = {"context_length": 32, "d_model": 16, "n_layers": 2, "n_heads": 2, "init_std": 0.3, **fields}
    config = ModelConfig(objective="masked", **{"vocab_size": tokenizer.vocab_size, **shape})
    model = build_model(config, seed=1).eval()
    assert isinstance(model, EncoderOnly)
    return model
