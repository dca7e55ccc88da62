"""Export a run for transformers, with custom code only if transformers has no such model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm import checkpoint, files, run_folder
from lm.config.inference import ExportConfig, SamplingConfig, TranslationConfig
from lm.config.model import ModelConfig
from lm.interop.hugging_face import tokenizer_files
from lm.interop.hugging_face.configuration import to_json
from lm.interop.hugging_face.families import (
    CAUSAL_LM,
    CODE,
    MASKED_LM,
    SEQ2SEQ_LM,
    SEQUENCE_CLASSIFICATION,
    Family,
    find_family,
)
from lm.interop.hugging_face.folder import CARD, CONFIG, GENERATION, WEIGHTS
from lm.interop.hugging_face.tensors import to_family_tensors
from lm.run_folder import TrainingState
from lm.safetensors_io import save_tensors
from lm.tokenizer.tokenizer import Tokenizer

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
    files.replace_text(folder / CARD, _build_card(model, family, tokenizer, run_folder.load_state(source)))


def _build_card(model: ModelConfig, family: Family, tokenizer: Tokenizer, state: TrainingState) -> str:
    """Return the model card, which names nothing of the machine."""
    start = tokenizer.start_token
    adds = "adds" if model.is_masked else "does not add"
    return _CARD.format(
        task=_TASKS[family.auto],
        architecture=family.architecture,
        auto=family.auto,
        model=model,
        state=state,
        loss="unknown" if state.best_loss is None else f"{state.best_loss:.4f}",
        framing=f"Each text began with `{start}` in training, which the tokenizer {adds} by itself." if start else "",
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
