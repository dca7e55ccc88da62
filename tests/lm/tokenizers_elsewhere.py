"""Tokenizers of the kinds found in the wild, trained on a few lines so that tests need no download."""

import json
from collections.abc import Callable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from lm.config.run_config import TokenizerConfig
from lm.tokenizer.training import train

TEXT = (
    "The cat sat on the mat, and the dog's bone wasn't there.\n\nIt cost 1234567 won;  so they'd\tleft.\n"
    "    def walk(self):\n        return self.path / 'home'\r\n\n\n"
    "한국어 문장입니다. 고양이가 매트 위에 앉았다.\n我喜欢学习语言模型。天气很好。\n"
    "Émile naïvely ate 3 crêpes 🙂👩‍👩‍👧  … and more, and more, and more!!\n"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def gpt2_like() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _byte_level(backend, ["<|endoftext|>"])


def cl100k_like() -> tokenizers.Tokenizer:
    """As Llama 3 and GPT-4 have it: numbers in threes, line ends with the punctuation before them."""
    backend = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(CL100K), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    return _byte_level(backend, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])


def _byte_level(backend: tokenizers.Tokenizer, specials: list[str]) -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=500, special_tokens=specials, initial_alphabet=sorted(alphabet), show_progress=False
        ),
    )
    return backend


def llama2_like() -> tokenizers.Tokenizer:
    """A space before every text, spaces as ▁, no words, bytes for unknown characters."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        [TEXT[:150]] * 3,
        trainers.BpeTrainer(vocab_size=450, special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS], show_progress=False),
    )
    model = json.loads(trained.to_str())["model"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            model["vocab"],
            [tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def metaspace_like() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(
        [TEXT] * 3, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    )
    return backend


def unigram_like() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(
        TEXT.splitlines() * 3,
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    return backend


def bert_like() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    backend.train_from_iterator(
        [TEXT] * 3, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    )
    return backend


def inline_casing() -> tokenizers.Tokenizer:
    """Our own: capitals are marks and lower case, and rules of the decoder restore them."""
    config = TokenizerConfig(vocab_size=400, inline_casing=True)
    return tokenizers.Tokenizer.from_str(json.dumps(train([TEXT] * 3, config, corpus_bytes=len(TEXT)).description))


MADE: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": gpt2_like, "cl100k": cl100k_like, "llama2": llama2_like, "metaspace": metaspace_like,
    "unigram": unigram_like, "bert": bert_like, "inline casing": inline_casing,
}  # fmt: skip
_kept: dict[str, tokenizers.Tokenizer] = {}


def backend(name: str) -> tokenizers.Tokenizer:
    if name not in _kept:
        _kept[name] = MADE[name]()
    return _kept[name]
