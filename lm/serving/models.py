"""The models that a server offers, by name."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lm.checkpoint import LoadedModel
from lm.config.decoding import SamplingConfig
from lm.config.hardware import HardwareConfig
from lm.config.serving import ServerConfig
from lm.config.settings import did_you_mean
from lm.decoding.chat import fit_into_context
from lm.decoding.generator import Generator
from lm.decoding.sampling import Sampler
from lm.engine.fastest_dtype import load_for_decoding
from lm.errors import LMError, UsageError
from lm.model.transformer import DecoderOnly, count_parameters
from lm.run_folder import CHECKPOINTS, find_checkpoint, weights_key
from lm.serving.api_errors import ApiError, invalid
from lm.serving.scheduler import Deliver, Scheduler
from lm.text.decode import normalize_like_training
from lm.text.records import Part
from lm.tokenizer.chat_template import ChatTemplate
from lm.tokenizer.offsets import TokenOffsets
from lm.tokenizer.tokenizer import Tokenizer

_ANY_LENGTH = 2**62
_MAX_GENERATORS = 256
"""Settings whose generators are kept, so that equal ones are sampled together."""


@dataclass(frozen=True)
class ServedModel:
    """A model with its name and scheduler.

    Attributes:
        scheduler: the only user of the model.
        fingerprint: of the weights.
        loaded_at: seconds since 1970.
    """

    name: str
    loaded: LoadedModel
    scheduler: Scheduler
    fingerprint: str
    loaded_at: int = field(default_factory=lambda: int(time.time()))
    _generators: OrderedDict[SamplingConfig, Generator] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template; ApiError if the model has none."""
        self.decoder  # noqa: B018 (raises the error for a model of another kind)
        if (template := self.tokenizer.chat_template) is None:
            raise invalid(
                f"model {self.name!r} has no chat template, as it was not trained on conversations; use "
                "/v1/completions",
                param="model",
                code="no_chat_template",
            )
        return template

    def encode_chat(self, messages: Sequence[Part], *, max_tokens: int, truncates: bool) -> tuple[list[int], int]:
        """Return the tokens of messages and the generation prompt, and the number of turns that are left out.

        Args:
            truncates: whether the oldest turns may be left out; see `fit_into_context`.

        Raises:
            ApiError: the messages exceed the context, or the template refuses them.
        """
        encode, context = partial(self.chat_template.encode, self.tokenizer), self.decoder.config.context_length
        try:
            if truncates:
                return fit_into_context(messages, encode, context=context, max_tokens=max_tokens)
            ids = encode(messages)
        except LMError as error:
            code = "context_length_exceeded" if isinstance(error, UsageError) else None
            raise invalid(str(error), param="messages", code=code) from None
        if len(ids) >= context:
            raise invalid(
                f"the messages have {len(ids)} tokens, and the model's context is {context}; leave out the oldest, or "
                "set truncation to auto",
                param="messages",
                code="context_length_exceeded",
            )
        return ids, 0

    def generator(self, config: SamplingConfig) -> Generator:
        """Return a generator, the same for equal settings apart from their seed; ApiError as of `decoder`."""
        settings, model = config.replace(seed=0), self.decoder
        with self._lock:
            generator = self._generators.pop(settings, None)
            if generator is None:
                generator = Generator(
                    model, self.tokenizer, settings, follows_examples=self.loaded.config.is_supervised
                )
            self._generators[settings] = generator
            if len(self._generators) > _MAX_GENERATORS:
                self._generators.popitem(last=False)
            return generator

    def normalize(self, text: str) -> str:
        """Normalise a text as the training data were."""
        return normalize_like_training(text, self.loaded.config.data)

    def sampler(self, config: SamplingConfig) -> Sampler:
        """Return a sampler, the same for settings that choose tokens in the same way; errors as of `Generator`."""
        alike = config.replace(stop=(), max_tokens=_ANY_LENGTH, token_healing=True)
        return self.generator(alike).sampler

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


class Models:
    """The models of a server; the first is the default if there are no others."""

    def __init__(self, served: Iterable[ServedModel]) -> None:
        self._by_name = {model.name: model for model in served}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: Any) -> ServedModel:
        """Return the model that a request names; ApiError 404 if there is none."""
        if name is None and len(self._by_name) == 1:
            return next(iter(self._by_name.values()))
        if not isinstance(name, str):
            raise invalid(f"model must be one of {', '.join(self._by_name)}", param="model")
        if name not in self._by_name:
            shown = name if len(name) <= 80 else f"{name[:80]}…"
            hint = did_you_mean(name, self._by_name) or f"; choose from {', '.join(self._by_name)}"
            raise ApiError(404, f"there is no model {shown!r}{hint}", param="model", code="model_not_found")
        return self._by_name[name]

    def start(self) -> None:
        for model in self:
            model.scheduler.start()

    def stop(self) -> None:
        for model in self:
            model.scheduler.stop()


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


def load_models(runs: dict[str, Path], hardware: HardwareConfig, config: ServerConfig, deliver: Deliver) -> Models:
    """Load models.

    Args:
        deliver: receives the events of completions.

    Raises:
        InputError: a run is missing or damaged.
    """
    served = []
    for name, run in runs.items():
        loaded = load_for_decoding(run, hardware)
        scheduler = Scheduler(
            name, loaded.model, batch_size=config.batch_size, max_waiting=config.max_requests,
            prefill_chunk=config.prefill_chunk, deliver=deliver,
        )  # fmt: skip
        served.append(ServedModel(name, loaded, scheduler, f"lm_{weights_key(find_checkpoint(run))[:16]}"))
    return Models(served)
