"""What a user asks of `lm perplexity`: the form of its report, and files of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lm.errors import UsageError
from lm.files import check_place

_EXCLUSIVE = ({"--json", "--html"}, {"--csv", "--html"}, {"--json", "--versus"}, {"--json", "--compare-dtypes"})


@dataclass(frozen=True)
class ReportFormat:
    """The forms of a report that the user asked for.

    Attributes:
        as_json: the figures as one JSON object.
        as_csv: the figures as CSV.
        per_token: a line of JSON for each token.
        show: the text itself, coloured by surprisal, before the table.
        html: the file of a page with the coloured text.
        versus: another run to compare with.
        compare_dtypes: what each type that the run can be used in costs.

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
        check_place(self.html)

    @property
    def given_flags(self) -> list[str]:
        """The flags that were given."""
        flags = {"--json": self.as_json, "--csv": self.as_csv, "--per-token": self.per_token, "--show": self.show,
                 "--html": self.html is not None, "--versus": self.versus is not None,
                 "--compare-dtypes": self.compare_dtypes}  # fmt: skip
        return [flag for flag, given in flags.items() if given]


@dataclass(frozen=True)
class PairFiles:
    """Files of sources and of their translations, line by line.

    Attributes:
        sources: files of sources.
        targets: as many files of their translations.
        language: of the targets, where the model has several directions and the names of the files don't tell.
        heads: files of the heads of the sources' words.

    Raises:
        UsageError: there are files of one side alone, or of heads alone.
    """

    sources: Sequence[str]
    targets: Sequence[str]
    language: str | None
    heads: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.heads and not self.sources:
            raise UsageError("--heads are of the words of --source: give that too")
        if bool(self.sources) != bool(self.targets):
            raise UsageError("pairs have two sides; give --source and --target")

    def __bool__(self) -> bool:
        return bool(self.sources)
