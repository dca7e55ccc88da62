"""The model card of an exported run: what it learned from, how long and how well, and how to use it."""

from __future__ import annotations

from lm.config.run import RunConfig
from lm.interop.hugging_face.families import Family
from lm.run_folder import TrainingState
from lm.tokenizer.tokenizer import Tokenizer

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
    """What kind of text it learned; where that lay is nobody else's concern."""
    if config.plan is None:
        return []
    kind = "examples of a prompt and its completion" if config.data.supervised else "text"
    held_out = config.data.validation if _is_number(config.data.validation) else "another file"
    return [f"Data: {kind}; held out: {held_out}."]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


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
