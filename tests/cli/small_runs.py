"""Runs with random weights, for tests of commands that need a model."""

from pathlib import Path
from string import ascii_uppercase

from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import END_OF_TEXT, MASK, DataConfig, DataKind, RunConfig, RunPlan, TokenizerConfig
from lm.model import build_model
from lm.run_folder import TrainingState
from lm.tokenizer import Tokenizer, training

TEXT = "The owl saw the fox by the mill.\nÜber den Bäumen sang 狐 the owl — and the fox ran.\n" * 3


def make_run(
    folder: Path,
    *,
    kind: str = "bpe",
    data_kind: DataKind = "text",
    label_completions: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    plan: RunPlan | None = None,
    data: DataConfig | None = None,
    seed: int = 3,
    **fields,
) -> Path:
    """A run of a small model that was never trained, on text or on examples; `fields` are those of ModelConfig."""
    tokenizer = tokenizer or make_tokenizer(kind, has_mask=fields.get("objective") == "masked")
    shape = {"context_length": 32, "d_model": 32, "n_layers": 2, "n_heads": 2, "init_std": 0.3, **fields}
    model = ModelConfig(vocab_size=tokenizer.vocab_size, **shape)
    save_checkpoint(
        folder,
        config=RunConfig(
            model=model,
            data=data or DataConfig(),
            data_kind=data_kind,
            label_completions=label_completions,
            plan=plan,
        ),
        tokenizer=tokenizer,
        model=build_model(model, seed=seed).state_dict(),
        state=TrainingState(),
        is_best=True,
    )
    return folder


def make_tokenizer(kind: str, *, has_mask: bool = False, inline_casing: bool = False) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=300, inline_casing=inline_casing)
    special = (END_OF_TEXT, MASK) if has_mask else ()
    text = TEXT + ascii_uppercase if inline_casing else TEXT  # only capitals of the text have marks
    return training.train([text], config, corpus_bytes=len(text.encode()), special_tokens=special)
