"""The models that a server offers, by name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from lm.checkpoint import LoadedModel
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.config.settings import LARGEST, did_you_mean
from lm.decoding.chat import fit_into_context
from lm.decoding.generator import Generator
from lm.engine.fastest_dtype import load_for_decoding
from lm.errors import UsageError
from lm.model.transformer import DecoderOnly, count_parameters
from lm.run_folder import CHECKPOINTS, find_checkpoint, weights_key
from lm.serving.bodies import ApiError, invalid
from lm.serving.scheduler import Scheduler
from lm.text.decode import normalize_text
from lm.text.records import Part
from lm.tokenizer.offsets import TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model with its name and scheduler.

    Attributes:
        scheduler: the only user of the model.
        fingerprint: of the weights.
        max_length: tokens of a prompt, or of a text to score.
        loaded_at: seconds since 1970.
    """

    name: str
    loaded: LoadedModel
    scheduler: Scheduler
    fingerprint: str
    max_length: int
    loaded_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def purpose(self) -> str:
        return self.loaded.config.purpose

    @cached_property
    def decoder(self) -> DecoderOnly:
        """The decoder; ApiError if the model doesn't continue texts."""
        model = self.loaded.model
        if model.config.translates or not isinstance(model, DecoderOnly):
            raise self.wrong_kind("continue or score texts")
        return model

    @cached_property
    def offsets(self) -> TokenOffsets:
        return TokenOffsets(self.tokenizer)

    def wrong_kind(self, description: str) -> ApiError:
        """Return the error for a model of another kind."""
        return invalid(
            f"model {self.name!r} {self.purpose}; it does not {description}", param="model", code="wrong_model"
        )

    def encode_chat(self, messages: Sequence[Part], *, max_tokens: int, truncates: bool) -> tuple[list[int], int]:
        """Return the tokens of messages and the generation prompt, and the number of turns that are left out.

        Args:
            truncates: whether the oldest turns may be left out; see `fit_into_context`.

        Raises:
            ApiError: the model has no chat template, or the messages exceed the context.
            InputError: the template refuses the messages.
        """
        context, template = self.decoder.config.context_length, self.tokenizer.chat_template
        if template is None:
            message = f"model {self.name!r} has no chat template: use /v1/completions"
            raise invalid(message, param="model", code="no_chat_template")
        encode, code = partial(template.encode, self.tokenizer), "context_length_exceeded"
        if truncates:
            try:
                return fit_into_context(messages, encode, context=context, max_tokens=max_tokens)
            except UsageError as error:
                raise invalid(str(error), param="messages", code=code) from None
        ids = encode(messages)
        if len(ids) >= context:
            message = f"the messages have {len(ids)} tokens, and the context is {context}: set truncation to auto"
            raise invalid(message, param="messages", code=code)
        return ids, 0

    def generator(self, config: SamplingConfig) -> Generator:
        """Return a generator, the same for settings that differ in their seed and `max_tokens` alone.

        Raises:
            ApiError: as of `decoder`.
            UsageError: the settings are wrong.
        """
        return self._build_generator(config.replace(seed=0, max_tokens=LARGEST))

    @cached_property
    def _build_generator(self) -> Callable[[SamplingConfig], Generator]:
        is_supervised = self.loaded.config.is_supervised
        return lru_cache(256)(partial(Generator, self.decoder, self.tokenizer, follows_examples=is_supervised))

    def normalize(self, text: str) -> str:
        """Normalise a text as the training data were."""
        return normalize_text(text)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `/v1/models`; fields beyond OpenAI's describe the model."""
        model, source = self.loaded.model, self.loaded.source_tokenizer
        is_decoder = not (model.config.is_masked or model.config.translates)
        return {
            "id": self.name,
            "object": "model",
            "created": self.loaded_at,
            "owned_by": "lm",
            "purpose": self.purpose,
            "parameters": count_parameters(model),
            "context_length": model.config.context_length,
            "vocab_size": self.tokenizer.vocab_size,
            "n_layers": model.config.n_layers,
            "n_heads": model.config.n_heads,
            "has_completions": is_decoder,
            "has_chat_template": is_decoder and self.tokenizer.chat_template is not None,
            "languages": _languages(source or self.tokenizer) if model.config.translates else [],
        }


def _languages(tokenizer: Tokenizer) -> list[str]:
    return sorted(match[1] for name in tokenizer.special_tokens if (match := re.fullmatch("<2(.+)>", name)))


Models = Mapping[str, ServedModel]


def find_model(models: Models, name: str | None) -> ServedModel:
    """Return the model that a request names, or the only one; ApiError if there is none."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise invalid(f"model must be one of {', '.join(models)}", param="model")
    if name not in models:
        hint = did_you_mean(name, models) or f"; choose from {', '.join(models)}"
        raise ApiError(404, f"there is no model {name[:80]!r}{hint}", param="model", code="model_not_found")
    return models[name]


def name_models(arguments: Sequence[str]) -> dict[str, Path]:
    """Name the runs of a command line: NAME=RUN, or the name of the folder.

    Raises:
        UsageError: two have the same name.
    """
    named: dict[str, Path] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        is_named = bool(separator and name and path) and not Path(argument).exists()
        run = Path(path if is_named else argument)
        if not is_named:
            resolved = run.resolve()
            name = (resolved if run.name == ".." else run.absolute()).name
            if resolved.parent.name == CHECKPOINTS:
                name = f"{resolved.parent.parent.name}/{resolved.name}"
        if name in named:
            raise UsageError(f"{named[name]} and {run} are both called {name!r}: name one, NAME={run}")
        named[name] = run
    return named


def load_models(runs: Mapping[str, Path], hardware: HardwareConfig, config: ServerConfig) -> Models:
    """Load models; InputError if a run is missing or damaged."""
    served = {}
    for name, run in runs.items():
        loaded = load_for_decoding(run, hardware)
        scheduler = Scheduler(
            loaded.model, batch_size=config.batch_size, max_waiting=config.max_requests,
            prefill_chunk=config.prefill_chunk,
        )  # fmt: skip
        fingerprint = f"lm_{weights_key(find_checkpoint(run))[:16]}"
        served[name] = ServedModel(name, loaded, scheduler, fingerprint, config.max_length)
    return served
