"""Models of transformers: export a run, with custom code only if transformers has no such model, and import one.

A model of the Hub, `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`, is downloaded by `huggingface_hub`, into that library's
cache, and imported once, into ours. Its settings hold: token, endpoint, offline mode and the place of the cache. Only
weights in .safetensors, the tokenizer and the configuration are downloaded; config.json comes first, so that a
model that is not supported costs nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm import checkpoint, files, run_folder
from lm.checkpoint import save_checkpoint, save_tensors
from lm.config.inference import ExportConfig, SamplingConfig, TranslationConfig
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig
from lm.errors import InputError, missing_packages
from lm.interop import peft, tokenizer_files
from lm.interop.conversion import (
    empty_tensors,
    from_family_tensors,
    from_json,
    locate_tensor,
    split_tensor,
    to_family_tensors,
    to_json,
)
from lm.interop.families import CAUSAL_LM, CODE, MASKED_LM, SEQ2SEQ_LM, SEQUENCE_CLASSIFICATION, Family, find_family
from lm.interop.tokenizer_files import CARD, CONFIG, GENERATION, INDEX, TOKENIZER_CONFIG, WEIGHTS, read_weights
from lm.model.positions import sinusoidal_table
from lm.tokenizer import FILE_NAME, Tokenizer
from lm.tokenizer.chat_template import TEMPLATE_FILE, find_language_tags

_TASKS = {
    CAUSAL_LM: "text-generation", MASKED_LM: "fill-mask", SEQ2SEQ_LM: "translation",
    SEQUENCE_CLASSIFICATION: "text-classification",
}  # fmt: skip
_CARD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- lm-toolkit
---

# A language model trained with lm

A `{architecture}` of {model.n_layers} layers, {model.d_model} wide, with a context of {model.context_length:,} tokens
and a vocabulary of {model.vocab_size:,}. {framing}

- Training: {state.step:,} steps, {state.tokens:,} tokens, {state.flops:.3g} FLOPs
- Validation loss (nats/token): {loss}

```python
from transformers import {auto}, AutoTokenizer

folder = "."  # of this card
tokenizer, model = AutoTokenizer.from_pretrained(folder{trusting}), {auto}.from_pretrained(folder{trusting})
```
"""


def export_with_report(run: Path, out: Path, _config: ExportConfig) -> Mapping[str, str]:
    """Export a run's best checkpoint, or a checkpoint, for `AutoModelFor…` and `AutoTokenizer`."""
    source = run_folder.find_checkpoint(run)
    config = run_folder.load_config(source)
    tokenizer, source_tokenizer = checkpoint.load_tokenizers(source)
    family = find_family(config.model, tokenizer)
    with files.atomic_new(out) as folder:
        folder.mkdir()
        _write(folder, source, config.model, family, source_tokenizer or tokenizer)
    how = "with its code in the folder (trust_remote_code=True)" if family.takes_code else "of transformers"
    return {"model": f"{family.architecture} {how}"}


def _write(folder: Path, source: Path, model: ModelConfig, family: Family, tokenizer: Tokenizer) -> None:
    weights = checkpoint.load_weights(source)
    ids = tokenizer_files.special_token_ids(tokenizer, model)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    files.write_json(folder / CONFIG, {**to_json(model, family), **ids, "torch_dtype": dtype})
    if not model.is_masked:
        files.write_json(folder / GENERATION, {**ids, **_generation_config(model, tokenizer)})
    tokenizer_files.write_tokenizer(folder, tokenizer, model)
    if family.takes_code:
        for path in CODE.glob("*_lm.py"):
            shutil.copyfile(path, folder / path.name)
    save_tensors(dict(to_family_tensors(weights, model, family)), folder / WEIGHTS, metadata={"format": "pt"})
    files.replace_text(folder / CARD, _build_card(source, family, tokenizer))


def _build_card(source: Path, family: Family, tokenizer: Tokenizer) -> str:
    """Return the model card of a checkpoint, which names nothing of the machine."""
    config, state = run_folder.load_config(source), run_folder.load_state(source)
    model, start, framing = config.model, tokenizer.start_token, ""
    if model.translates and config.has_language_tags:
        tags = " ".join(tag.token for tag in find_language_tags(tokenizer).values())
        framing = f"Each source begins with the tag of its target language: {tags}."
    elif start and not model.translates:
        adds = "adds" if model.is_masked else "does not add"
        framing = f"Each text began with `{start}` in training, which the tokenizer {adds} by itself."
    return _CARD.format(
        task=_TASKS[family.auto],
        architecture=family.architecture,
        auto=family.auto,
        model=model,
        state=state,
        loss="unknown" if state.best_loss is None else f"{state.best_loss:.4f}",
        framing=framing,
        trusting=", trust_remote_code=True" if family.takes_code else "",
    )


def _generation_config(model: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the default sampling or beam settings of our commands."""
    if not model.is_encoder_decoder:
        ends = {"eos_token_id": list(tokenizer.stop_ids)} if len(tokenizer.stop_ids) > 1 else {}
        return {"do_sample": True, "temperature": SamplingConfig.temperature, "top_k": 0, **ends}
    start, search = tokenizer.start_of_text, TranslationConfig()
    return {
        "num_beams": search.beam, "length_penalty": search.length_penalty, "early_stopping": True,
        "max_length": model.context_length,
        **({} if start == tokenizer.end_of_text else {"bad_words_ids": [[start]]}),
    }  # fmt: skip


def import_model(folder: Path, out: Path) -> Path:
    """Write a run with the model of a folder as its only checkpoint; it can be used or fine-tuned, not resumed.

    Args:
        folder: in transformers' layout, with .safetensors and `tokenizer.json`.
        out: the folder of the new run; InputError if it holds a run.

    Returns:
        The checkpoint.

    Raises:
        InputError: the folder is damaged, or its model is not supported; the message names the key or the tensor.
    """
    run_folder.refuse_existing(out)
    try:
        return _import_model(folder, out)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: not a model that can be read: {error!r}") from error


def _import_model(folder: Path, out: Path) -> Path:
    values = files.read_json(folder / CONFIG)
    family, model = from_json(values, folder / CONFIG)
    tokenizer, source_tokenizer = tokenizer_files.read_tokenizer(folder, model, values)
    if tokenizer.vocab_size > model.vocab_size:
        problem = f"has {tokenizer.vocab_size:,} tokens, but the model {model.vocab_size:,}"
        raise InputError(f"{folder}: its tokenizer {problem} (vocab_size)")
    weights = _read_named_weights(folder, model, family)
    if model.n_layers + model.n_encoder_layers > len(weights):
        raise InputError(f"{folder / CONFIG}: has more layers than the weights tensors")
    ours = empty_tensors(model)
    _check_shapes(weights, ours, model, family, folder)
    return save_checkpoint(
        out,
        config=RunConfig(
            model=model,
            origin=f"import {family.model_type}",
        ),
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        model={
            name: from_family_tensors(name, len(empty), model, family, read=weights.__getitem__)
            for name, empty in ours.items()
        },
        state=run_folder.TrainingState(finished=True),
        is_best=True,
    )


def _read_named_weights(folder: Path, model: ModelConfig, family: Family) -> dict[str, Tensor]:
    """Return the tensors of a folder by current names, without unused ones.

    Raises:
        InputError: two that are one tensor of the model differ, or stored positions are not sinusoidal.
    """
    stored = list(read_weights(folder))
    prefix = "" if any(name.startswith(family.prefix) for name, _ in stored) else family.prefix
    embedding, head = (family.layers.get(layer, layer) + ".weight" for layer in ("embedding.tokens", "head"))
    weights: dict[str, Tensor] = {}
    for stored_name, value in stored:
        name = stored_name
        for old, current in family.renamed.items():
            name = name.removesuffix(old) + current if name.endswith(old) else name
        if name.endswith(family.unused):
            continue
        if family.sinusoids and name.endswith(family.sinusoids):
            table = sinusoidal_table(model.context_length, model.d_model, interleaved=False)
            if value.shape != table.shape or not torch.allclose(value.float(), table, rtol=0, atol=4e-3):
                raise InputError(f"{folder}: {name} is not sinusoidal, which is not supported by lm")
            continue
        name = prefix + name if name != head else embedding if model.tie_embeddings else head
        earlier = weights.setdefault(name, value)
        if earlier is not value and (earlier.dtype != value.dtype or not earlier.equal(value)):
            raise InputError(f"{folder}: {stored_name} differs from a copy, but {name} is one tensor by {CONFIG}")
    return weights


def _check_shapes(
    weights: dict[str, Tensor], ours: dict[str, Tensor], model: ModelConfig, family: Family, folder: Path
) -> None:
    """Raise InputError if a tensor of the folder is missing, unknown, or has another shape than the config says."""
    expected = dict(
        pair
        for name, empty in ours.items()
        for pair in split_tensor(empty, locate_tensor(name, len(empty), model, family), model)
    )
    for name in {**expected, **weights}:
        found, wanted = (tuple(each[name].shape) if name in each else "missing" for each in (weights, expected))
        if found != wanted:
            raise InputError(f"{folder}: {name} is {found}, but by {CONFIG} it is {wanted}")
        if not weights[name].is_floating_point():
            raise InputError(f"{folder}: {name} is {weights[name].dtype}; quantized models are not read")


PREFIX = "hf:"
_FILES = [
    CONFIG, GENERATION, TOKENIZER_CONFIG, TEMPLATE_FILE, FILE_NAME, INDEX, WEIGHTS, "model-*-of-*.safetensors",
    "source.spm", "target.spm", "vocab.json", peft.CONFIG, peft.WEIGHTS,
]  # fmt: skip
_COMMIT_DIGITS = 12


def is_hub_name(name: object) -> bool:
    """Return whether a path or name is that of a model of the Hub."""
    return str(name).startswith(PREFIX)


def download_model(name: str) -> Path:
    """Download a model, as far as it is not in the cache of `huggingface_hub`, and return its folder.

    Raises:
        InputError: the name is malformed, the Hub does not give the model and it is not in the cache, or it is not
            supported; or the package is not installed.
    """
    folder = _fetch(name, [CONFIG, peft.CONFIG])
    if (folder / CONFIG).exists() or not peft.is_peft_folder(folder):
        from_json(files.read_json(folder / CONFIG), Path(f"{name}/{CONFIG}"))
    return _fetch(name, _FILES)


def import_from_hub(name: str, *, on_import: Callable[[Path], object] = lambda _: None) -> Path:
    """Download and import a model, unless that was done before, and return its run in our cache.

    Args:
        on_import: called with the new run, before others see it.

    Raises:
        InputError: as of `download_model` and `import_model`.
    """
    folder = download_model(name)
    repository = name.removeprefix(PREFIX).partition("@")[0]
    run = files.cache_root() / "models" / f"{repository.replace('/', '--')}-{folder.name[:_COMMIT_DIGITS]}"
    if run_folder.is_run(run):
        return run
    try:
        with files.replacing(run) as unfinished:
            import_model(folder, unfinished)
            on_import(unfinished)
    except (OSError, InputError):
        if not run_folder.is_run(run):  # by another process
            raise
    return run


def _fetch(name: str, patterns: list[str]) -> Path:
    """Download files of a model; return the folder of its revision."""
    try:
        import huggingface_hub  # noqa: PLC0415 (an optional dependency)
    except ImportError:
        raise missing_packages("the Hugging Face Hub", "huggingface_hub") from None
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision or None, allow_patterns=patterns))
    except Exception as error:  # of the library, and of its HTTP client
        raise InputError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error
