"""The model card of an exported run: what it learned from, how long and how well, and how to use it."""

from __future__ import annotations

from pathlib import Path

from lm.config.run import RunConfig
from lm.data.manifest import Manifest
from lm.errors import LMError
from lm.interop.hugging_face.families import Family
from lm.run_folder import TrainingState
from lm.tokenizer.tokenizer import Tokenizer

_NAMED = 5
"""Files of the data that are named, at most."""
_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- lm-toolkit
---

# A language model trained with lm

A `{architecture}` of {layers} layers, {width} wide, with a context of {context:,} tokens and a vocabulary of
{vocabulary:,}. It loads in transformers without code of its own.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # of this card
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
prompt = tokenizer({prompt}, return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=100)[0], skip_special_tokens=True))
```

{framing}

## Training

{training}
"""


def model_card(config: RunConfig, family: Family, tokenizer: Tokenizer, state: TrainingState) -> str:
    """The card, in Markdown; it names no file of the machine that the run was trained on."""
    start = None if tokenizer.start_of_text is None else tokenizer.token(tokenizer.start_of_text)
    facts = [*_data(config), *_length(config, state), *_losses(state)]
    return _CARD.format(
        architecture=family.architecture,
        layers=config.model.n_layers,
        width=config.model.d_model,
        context=config.model.context_length,
        vocabulary=config.model.vocab_size,
        prompt='"It was"' if start is None else 'tokenizer.bos_token + "It was"',
        framing="The tokenizer has no special tokens."
        if start is None
        else f"Each text began with `{start}` in training, which the tokenizer does not add by itself.",
        training="\n".join(f"- {fact}" for fact in facts) or "Nothing is known of its training.",
    )


def _data(config: RunConfig) -> list[str]:
    """What it learned from, as far as the prepared data are still there; files without the folders they lay in."""
    if config.plan is None:
        return []
    kind = "examples of prompts and completions" if config.data.supervised else "text"
    try:
        manifest = Manifest.read(Path(config.plan.data))
    except LMError:
        return [f"Data: {kind}."]
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    names = [Path(source.path).name for source in manifest.sources]
    some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
    return [f"Data: {kind} ({some}); {train.tokens:,} tokens to train on, {held_out.tokens:,} held out."]


def _length(config: RunConfig, state: TrainingState) -> list[str]:
    if not state.step:
        return []
    training = config.training
    return [
        f"Steps: {state.step:,}, {state.tokens:,} tokens in all, {state.flops:.3g} FLOPs.",
        f"Optimizer: {training.optimizer}, learning rate {training.learning_rate:g} ({training.schedule}).",
    ]


def _losses(state: TrainingState) -> list[str]:
    if state.best_loss is None:
        return []
    return [f"Validation loss: {state.best_loss:.4f} nats a token, at step {state.best_step:,}."]
