"""The model card of an exported run: training data, length, losses and usage."""

from __future__ import annotations

from pathlib import Path

from lm.config.run_config import RunConfig
from lm.corpus.manifest import Manifest
from lm.errors import LMError
from lm.interop.hugging_face.family_schema import CAUSAL_LM, MASKED_LM, SEQ2SEQ_LM, SEQUENCE_CLASSIFICATION, Family
from lm.run_folder import TrainingState
from lm.tokenizer.tokenizer import Tokenizer

_MAX_NAMED = 5
"""Files of the data that are named, at most."""
_TESTED = "tested with transformers 5.0.0 and 5.24.0"
_CARD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- lm-toolkit
---

# A language model trained with lm

A `{architecture}` of {layers} layers, {width} wide, with a context of {context:,} tokens and a vocabulary of
{vocabulary:,}. It loads in transformers {code}.

## Use

```python
from transformers import {auto}, AutoTokenizer

folder = "."  # of this card
tokenizer, model = AutoTokenizer.from_pretrained(folder{trusting}), {auto}.from_pretrained(folder{trusting})
{use}
```

{framing}

## Training

{training}
"""
_USES = {
    CAUSAL_LM: (
        "text-generation",
        """\
prompt = tokenizer({bos}"It was", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=100)[0], skip_special_tokens=True))""",
    ),
    MASKED_LM: (
        "fill-mask",
        """\
text = tokenizer(f"It was a {{tokenizer.mask_token}} day.", return_tensors="pt")
print(tokenizer.decode(model(**text).logits[text.input_ids == tokenizer.mask_token_id].argmax(-1)))""",
    ),
    SEQ2SEQ_LM: (
        "translation",
        """\
text = tokenizer("The owl saw the fox.", return_tensors="pt")
print(tokenizer.decode(model.generate(**text)[0], skip_special_tokens=True))""",
    ),
    SEQUENCE_CLASSIFICATION: (
        "text-classification",
        """\
text = tokenizer("The parcel never came.", return_tensors="pt")
print(model.config.id2label[model(**text).logits.argmax().item()])""",
    ),
}
"""Pipeline tag and usage code, by auto class."""


def build_model_card(config: RunConfig, family: Family, tokenizer: Tokenizer, state: TrainingState) -> str:
    """Return the card in Markdown, without local file paths."""
    task, use = _USES[family.auto]
    facts = [*_describe_data(config), *_describe_length(config, state), *_describe_losses(state)]
    return _CARD.format(
        task=task,
        architecture=family.architecture,
        layers=config.model.n_layers,
        width=config.model.d_model,
        context=config.model.context_length,
        vocabulary=config.model.vocab_size,
        code=f"by the code in this folder, {_TESTED}" if family.keeps_names else "without code of its own",
        auto=family.auto,
        trusting=", trust_remote_code=True" if family.keeps_names else "",
        use=use.format(bos="" if tokenizer.start_of_text is None else "tokenizer.bos_token + "),
        framing=_describe_special_tokens(tokenizer, is_masked=config.model.is_masked),
        training="\n".join(f"- {fact}" for fact in facts) or "Nothing is known of its training.",
    )


def _describe_special_tokens(tokenizer: Tokenizer, *, is_masked: bool) -> str:
    if tokenizer.start_of_text is None:
        return "The tokenizer has no special tokens."
    adds = "adds" if is_masked else "does not add"
    start = tokenizer.token(tokenizer.start_of_text)
    return f"Each text began with `{start}` in training, which the tokenizer {adds} by itself."


def _describe_data(config: RunConfig) -> list[str]:
    """Describe the training data as far as prepared data are still there; file names without folders."""
    if config.plan is None:
        return []
    kind = "examples of prompts and completions" if config.data.supervised else "text"
    try:
        manifest = Manifest.read(Path(config.plan.data))
    except LMError:
        return [f"Data: {kind}."]
    kind = "conversations, of which the replies were learned" if manifest.kind == "conversations" else kind
    train, held_out = manifest.splits["train"], manifest.splits["validation"]
    names = [Path(source.path).name for source in manifest.sources]
    shown = ", ".join(names[:_MAX_NAMED]) + (
        f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    )
    return [f"Data: {kind} ({shown}); {train.tokens:,} tokens to train on, {held_out.tokens:,} held out."]


def _describe_length(config: RunConfig, state: TrainingState) -> list[str]:
    if not state.step:
        return []
    training = config.training
    return [
        f"Steps: {state.step:,}, {state.tokens:,} tokens in all, {state.flops:.3g} FLOPs.",
        f"Optimizer: {training.optimizer}, learning rate {training.learning_rate:g} ({training.schedule}).",
    ]


def _describe_losses(state: TrainingState) -> list[str]:
    if state.best_loss is None:
        return []
    return [f"Validation loss: {state.best_loss:.4f} nats/token, at step {state.best_step:,}."]
