"""What each attention pattern costs and learns against the length of a context: the same text, the same tokens."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.attention_patterns import LENGTHS, Setting, costs
from tests.benchmarks.runs import lm, readings

_COST, _LOSS = "costs", "losses"

KINDS = {
    "full": (), "window": ("--attention", "window"), "bigbird": ("--attention", "bigbird"),
    "compressed": ("--attention", "compressed"), "full, encoder": ("--objective", "masked"),
    "linformer, encoder": ("--objective", "masked", "--attention", "linformer"),
}  # fmt: skip
"""Flags of `lm train`; Linformer reads both ways, so it fills masked tokens, beside full attention that does."""


class Lengths:
    """Costs and losses, kept in a file as they are measured, so that what is there is not measured again."""

    def __init__(self, text: Path, file: Path, *, steps: int, step_tokens: int = LENGTHS[-1]) -> None:
        """Train on a text for so many steps of as many tokens as the longest context has."""
        self._text, self._file, self._steps, self._step_tokens = text, file, steps, step_tokens
        self.found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}

    def measure(self, lengths: Sequence[int], *, seed: int = 1) -> None:
        """All costs first, on a machine that should do nothing else; then all losses."""
        if f"{_COST} full" not in self.found:
            for cost in costs(lengths, list(KINDS), Setting()):
                self._note(_COST, cost.kind, cost.length, cost.seconds)
        for length in lengths:
            for kind in KINDS:
                if f"{length}" not in self.found.get(f"{_LOSS} {kind}", {}):
                    self._note(_LOSS, kind, length, self._loss(kind, length, seed))

    def _note(self, what: str, kind: str, length: int, figure: float) -> None:
        self.found.setdefault(f"{what} {kind}", {})[str(length)] = figure
        self._file.write_text(json.dumps(self.found, indent=2) + "\n")

    def _loss(self, kind: str, length: int, seed: int) -> float:
        """Bits/byte of the text held out; of masked tokens, nats/token."""
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            lm(
                "train", str(self._text), "-o", str(run), "--preset", "tiny", "--context", str(length), "--batch-size",
                str(self._step_tokens // length), "--steps", str(self._steps), "--evaluate-every", "0", "--seed",
                str(seed), "--threads", "1", *KINDS[kind],
            )  # fmt: skip
            last = readings(run)[-1]
            return last.loss if kind.endswith("encoder") else last.bits_per_byte

    def table(self) -> Iterator[str]:
        """Milliseconds a layer, and losses, by length."""
        lengths = [str(length) for length in LENGTHS if str(length) in self.found.get(f"{_COST} full", {})]
        for what, scale, digits in ((_COST, 1000, 1), (_LOSS, 1, 3)):
            yield f"| {what} | {' | '.join(f'{int(length):,}' for length in lengths)} |"
            yield "|-" * (len(lengths) + 1) + "|"
            for kind in KINDS:
                row = self.found.get(f"{what} {kind}", {})
                cells = [f"{scale * row[length]:.{digits}f}" if length in row else "" for length in lengths]
                yield f"| {kind} | {' | '.join(cells)} |"
            yield ""
