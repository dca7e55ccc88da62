"""The requested report of `lm perplexity`, and files of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.errors import UsageError
from lm.files import check_writable

_EXCLUSIVE = ({"--json", "--html"}, {"--csv", "--html"}, {"--json", "--versus"}, {"--json", "--compare-dtypes"})


@dataclass(frozen=True)
class ReportFormat:
    """The requested forms of the report.

    Attributes:
        as_json: one JSON object.
        as_csv: CSV.
        per_token: a line of JSON per token.
        show: the text coloured by surprisal, before the table.
        html: the file for a page with the coloured text.
        versus: another run to compare with.
        compare_dtypes: compare all dtypes that the run can be used in.

    Raises:
        UsageError: two of them exclude each other, or the page cannot be written there.
    """

    as_json: bool
    as_csv: bool
    per_token: bool
    show: bool
    html: Path | None
    versus: Path | None
    compare_dtypes: bool = False

    def __post_init__(self) -> None:
        asked = self.given_flags
        if len(asked) > 1 and set(asked) not in _EXCLUSIVE:
            raise UsageError(f"{asked[0]} and {asked[1]} exclude each other; give one of them")
        if self.html is None:
            return
        if self.html.is_dir():
            raise UsageError(f"{self.html} is a folder; name the file to write, for instance {self.html / 'text.html'}")
        check_writable(self.html)

    @property
    def given_flags(self) -> list[str]:
        flags = {"--json": self.as_json, "--csv": self.as_csv, "--per-token": self.per_token, "--show": self.show,
                 "--html": self.html is not None, "--versus": self.versus is not None,
                 "--compare-dtypes": self.compare_dtypes}  # fmt: skip
        return [flag for flag, is_given in flags.items() if is_given]


@dataclass(frozen=True)
class PairFiles:
    """Files of sources and of their translations, line by line.

    Attributes:
        sources: source files.
        targets: as many files of their translations.
        language: of the targets, if the model has several directions and file names don't tell.
        heads: files of dependency heads of the sources.
        pairs: files that have both sides.

    Raises:
        UsageError: sources, targets or heads are missing.
    """

    sources: Sequence[str]
    targets: Sequence[str]
    language: str | None
    heads: Sequence[str] = ()
    pairs: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.heads and not self:
            raise UsageError("--heads needs --source or --pairs: give that too")
        if bool(self.sources) != bool(self.targets):
            raise UsageError("pairs have two sides; give --source and --target, or both in one file (--pairs)")

    def __bool__(self) -> bool:
        return bool(self.sources or self.pairs)
