"""The requested report of `lm perplexity`, and files of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.config.run_spec import refuse_settings
from lm.errors import UsageError
from lm.files import check_writable

_COMBINABLE = ({"--json", "--html"}, {"--csv", "--html"}, {"--json", "--versus"}, {"--json", "--compare-dtypes"})


@dataclass(frozen=True)
class ReportFormat:
    """The requested forms of the report; UsageError if two exclude each other or the page cannot be written."""

    as_json: bool
    as_csv: bool
    per_token: bool
    show: bool
    html: Path | None
    versus: Path | None
    compare_dtypes: bool

    @property
    def requested(self) -> list[str]:
        """Return the flags of the forms that are requested."""
        flags = {"--json": self.as_json, "--csv": self.as_csv, "--per-token": self.per_token, "--show": self.show,
                 "--html": self.html is not None, "--versus": self.versus is not None,
                 "--compare-dtypes": self.compare_dtypes}  # fmt: skip
        return [flag for flag, is_requested in flags.items() if is_requested]

    def refuse_reports_of_text(self, what: str, settings: Iterable[str]) -> None:
        """Raise UsageError if settings or forms of the report are given that are for text alone."""
        refuse_settings("perplexity", settings, beside=what)
        if forms := [flag for flag in self.requested if flag != "--json"]:
            raise UsageError(f"{', '.join(forms)} cannot be given beside {what}")

    def __post_init__(self) -> None:
        requested = self.requested
        if len(requested) > 1 and set(requested) not in _COMBINABLE:
            raise UsageError(f"{requested[0]} and {requested[1]} exclude each other; give one of them")
        if self.html is None:
            return
        if self.html.is_dir():
            raise UsageError(f"{self.html} is a folder; name the file to write, for instance {self.html / 'text.html'}")
        check_writable(self.html)


@dataclass(frozen=True)
class PairFiles:
    """Files of sources and of their translations, line by line; UsageError if sources or targets are missing."""

    sources: Sequence[str]
    targets: Sequence[str]
    language: str | None
    """Of the targets, if the model has several directions and file names don't tell."""
    heads: Sequence[str]
    """Dependency trees of the sources."""
    pairs: Sequence[str]
    """Files with both sides."""

    def __post_init__(self) -> None:
        if self.heads and not self:
            raise UsageError("--dependency-heads needs --source or --pairs: give that too")
        if bool(self.sources) != bool(self.targets):
            raise UsageError("pairs have two sides; give --source and --target, or both in one file (--pairs)")

    def __bool__(self) -> bool:
        return bool(self.sources or self.pairs)
