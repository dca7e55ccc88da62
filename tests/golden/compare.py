"""Run the same commands in an earlier commit and in this tree, and compare everything they leave behind bit by bit.

    python -m tests.golden.compare                      all cases (minutes)
    python -m tests.golden.compare --only decoding      those with this tag, or these letters in their name
    python -m tests.golden.compare --list               names and tags

The results of the earlier commit are cached by commit and case, so that only this tree's commands run again. Exits with
1 if anything differs, and names the tensor, field or line. What has changed on purpose is listed in `RENAMED` and
`CHANGED`, each entry with its reason.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden import cases as golden
from tests.golden import records
from tests.golden.cases import Case
from tests.golden.records import Record
from tests.golden.texts import TEXT, write_texts

BASE = "dbb4d0c6977c01330f9a117d8425a507c9c9ab90"
"""The commit before the refactoring."""
_ONE_MANIFEST = "format 2 has one manifest.json for all kinds of prepared data, which says the kind"
_NEW_NAME = "a field's new name; the old one is still read"
RENAMED: tuple[tuple[str, str, str], ...] = (
    (r"(^|/)(pairs|share)\.json:", r"\1manifest.json:", _ONE_MANIFEST),
    (r"(manifest\.json:)origin\.", r"\1", _ONE_MANIFEST),
    (r"(manifest\.json:)parts\b", r"\1chunks", _ONE_MANIFEST),
    (r"(command \d+:)every$", r"\1score_every", _NEW_NAME),
    (r"\bvalue_shares\b", "value_scalars", _NEW_NAME),
    (r"\bstream_shares\b", "residual_scalars", _NEW_NAME),
    (r"\bembedding_shares\b", "embedding_scalars", _NEW_NAME),
    (r"\blearned shares$", "residual scalars", _NEW_NAME),
    (r"^(command \d+:)parts_found$", r"\1chunks_reused", _NEW_NAME),
    (r"^(command \d+:)each\.", r"\1per_process.", _NEW_NAME),
    (r"\brepetition\.stretch$", "repetition.window", _NEW_NAME),
    (r"\b(model\.|config\.json:)rotary_share$", r"\1rotary_fraction", _NEW_NAME),
    (r"\btraining\.masked_share$", "training.masking_rate", _NEW_NAME),
    (r"\btraining\.final_learning_rate$", "training.final_learning_rate_fraction", _NEW_NAME),
    (r"\bplan\.decay_share$", "plan.decay_scale", _NEW_NAME),
    (r"\bplan\.deadline$", "plan.budget_seconds", _NEW_NAME),
)
"""Names that have changed: a pattern of the base tree's names, what replaces it, and why."""
CHANGED: tuple[tuple[str, str], ...] = (
    (r"README\.md:\d+$", "a model card gives its loss in nats/token"),
    (r"(configuration|positions|modeling)_lm\.py:", "the code that goes with a model: names and docstrings"),
    (r"(^|/)manifest\.json:(format_version|supervised|kind|heads|has_dependency_heads|sha256)$", _ONE_MANIFEST),
    (
        r"^generate/each/compressed/command [123]:.*(logprobs|score)$",
        "compressed attention reads all again, as --no-cache always did: it differs from its cache by 2e-7",
    ),
    (r"^tools/(info|presets)/.*cache_bytes_per_token$", "compressed attention caches nothing"),
    (r"^fill/masked-linformer/command 4:\d+$", "lm info in words; its --json is compared in tools/info"),
    (
        r"^tools/shards/command \d:per_process\.(total|loss)$",
        "memory of the loss in bfloat16: its gradients were left out of the estimate",
    ),
    (r"^tools/presets/.*:t-dmca\.summary$", "the summary says alternating"),
    (r"^perplexity/(show|html)/command 1:(66|3)$", "the conditions say: conditioned on a document-start token"),
    (r"(^|/)decisions\.jsonl:", "what chose each setting is written down; earlier versions did not tell"),
    (r"(config\.json:|command \d+:config\.)model\.max_tree_distance$", "a field of its own; max_distance was both"),
    (
        r"^(train/portable/|tools/presets/command 14:)",
        "portable presets have an output layer of their own, so that the first prediction is uniform",
    ),
    (
        r"(config\.json:|config\.)plan\.(extended_at|on_plateau|max_steps)$",
        "new: when a run was extended, why it decays, and the limit of its steps",
    ),
    (
        r"checkpoints/[^/]*/manifest\.json:sha256\.(model|optimizer)\.safetensors$",
        "some tensors have new names; each tensor is compared",
    ),
    (r":(improved|last_loss)$", "new in the summary of a run"),
    (r"^classify/.*command 2:", "the label is followed by its probability; --json, which is compared, had both"),
    (r"(^|/)origin:", "new file: what a fine-tuned or imported run was made from"),
    (r"tokenizer\.merges$", "new: what BPE merges, which was parts of words"),
    (r"training\.orthogonalisation$", "new: earlier versions had one"),
    (r"training\.decay_patience$", "new: earlier versions decay no learning rate on a plateau"),
    (
        r"^(?!.*step-[36]/(model|optimizer)\.safetensors:)train/(tuned|lora)",
        "a run from another's weights is evaluated and saved before its first step; its weights are as before",
    ),
    (r"^resume/[^/]*(?<!-branch)/", "an extended run's learning rate falls again, where its schedule was stretched"),
    (
        r"^(train|prepare)/(questions|labels|classifier|bert-classifier)/.*:repetition",
        "copies among labelled examples are counted; new",
    ),
    (r"(^|/)sources\.json:", "new file: what was in the folders of the corpus"),
    (r"(^|/)ancestors\.json:", "new file: the text that earlier runs were trained on"),
    (r"(config\.json:|command \d+:config\.)label_completions$", "labels of decoders are recorded; new"),
    (
        r"(questions|labels)[^/]*/.*metrics\.jsonl:.*validation_accuracy$",
        "evaluations of decoders that learn labels have an accuracy; new",
    ),
    (
        r"(config\.json:|command \d+:config\.)"
        r"(files\.\w+|data\.(field|label_field|(text|label)_column|keep_line_ends|strip_gutenberg))$",
        "how files are read and what is made of line ends is written down; the field of the text is null by default",
    ),
    (
        r"(^|/)manifest\.json:(config\.)?(field|label_field|(text|label)_column|keep_line_ends|strip_gutenberg)$|manifest\.json:.*read_as$",
        "the same, in the manifests of prepared data",
    ),
    (
        r"(config\.json:|command \d+:config\.)parallel\.(source|target)_(field|column)$",
        "columns have the names of their flags",
    ),
)
"""Values that are not compared: a pattern of CASE/NAME, and why they may differ."""

_ENVIRONMENT = {"LM_BACKGROUND_COMPILE": "0",
    "COLUMNS": "100", "TERM": "dumb", "HF_HUB_OFFLINE": "1", "LM_SEED": "7", "PYTHONDONTWRITEBYTECODE": "",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
"""Of each command. The seed is reported even where nothing is sampled; there a flag for it would be refused."""
_SWITCHED_OFF = {"LM_TOKEN_HEALING": "no"}
"""Settings of this tree's commands alone, without which they do what the base tree can't do."""
_TRAINED_AS_BEFORE = ("--set", "training.orthogonalisation=newton-schulz")
"""The same, of this tree's `lm train`."""
_TREE = Path(__file__).parents[2]
_HERE = Path(__file__).parent
_PACKAGES = ("cli", "lm", "corpora")
_TIMEOUT = 300.0
_SHOWN = 6


def main() -> None:
    """Compare the cases that the arguments select."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, help="commit to compare with")
    parser.add_argument("--base-tree", type=Path, help="folder of the base commit's tree, instead of extracting it")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="tags, or parts of names")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these out")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "lm-golden"), metavar="FOLDER")
    parser.add_argument("--twice", action="store_true", help="compare the base with itself: what is not deterministic")
    parser.add_argument("--all", action="store_true", help="show all differences of a case")
    given = parser.parse_args()
    wanted = [
        case
        for case in golden.cases()
        if (not given.only or any(case.matches(word) for word in given.only))
        and not any(case.matches(word) for word in given.without)
    ]
    if given.list:
        for case in wanted:
            print(f"{case.name:40} {' '.join(sorted(case.tags))}")
        return
    if not wanted:
        parser.error("no such case; --list names them")
    sys.exit(compare(wanted, given))


def compare(wanted: list[Case], given: argparse.Namespace) -> int:
    """Compare cases, print a line for each and a summary; returns the exit code."""
    base = Base(given.cache, given.base, given.base_tree)
    began, different = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="head-", dir=base.folder) as work:
        head = Tree(base.tree.root, base) if given.twice else Tree(_TREE, base, _SWITCHED_OFF, _TRAINED_AS_BEFORE)
        for case in wanted:
            expected = base.record(case)
            started = time.perf_counter()
            found = head.run(case, Path(work, _folder_name(case)))
            shutil.rmtree(Path(work, _folder_name(case)))
            differences = list(_differences(case, expected, found))
            seconds = time.perf_counter() - started
            failed = [
                expected[name.replace(":exit", ":stderr")].strip().splitlines()[-1:]
                for name, value in expected.items()
                if name.endswith(":exit") and value != "0"
            ]
            print(
                f"{'DIFFERS' if differences else 'same':8} {case.name:40} {len(expected):5} values {seconds:5.1f} s"
                f"{f'  fails in both trees: {failed[0]}' if failed and not differences else ''}",
                flush=True,
            )
            for line in differences if given.all else differences[:_SHOWN]:
                print(f"    {line}", flush=True)
            if len(differences) > _SHOWN and not given.all:
                print(f"    … {len(differences)} differences in all", flush=True)
            different += [case.name] * bool(differences)
        head.close()
    base.tree.close()
    total = time.perf_counter() - began
    print(f"{len(wanted) - len(different)} of {len(wanted)} cases are the same as at {base.commit[:7]}, {total:.0f} s")
    if different:
        print("different:", " ".join(different))
    return 1 if different else 0


def _differences(case: Case, expected: Record, found: Record) -> Iterator[str]:
    """Lines that say what differs, in the order of the records."""
    # both: this tree copies files of the base tree's runs as they are
    records_by_name = ({_renamed(name): value for name, value in record.items()} for record in (expected, found))
    expected, found = (
        {name: value for name, value in record.items() if not _may_differ(f"{case.name}/{name}")}
        for record in records_by_name
    )
    for name, value in expected.items():
        if name not in found:
            yield f"{name}: missing (was {value})"
        elif found[name] != value:
            yield f"{name}: {value} -> {found[name]}"
    for name, value in found.items():
        if name not in expected:
            yield f"{name}: new ({value})"


@cache
def _renamed(name: str) -> str:
    for pattern, replacement, _reason in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


@cache
def _may_differ(name: str) -> bool:
    return name.endswith(":stderr") or any(re.search(pattern, name) for pattern, _reason in CHANGED)


class Base:
    """The tree of the base commit, its runs, and its records of cases."""

    def __init__(self, cache_folder: Path, commit: str, tree: Path | None) -> None:
        self.commit = tree.name if tree else _git("rev-parse", commit).strip()
        key = hashlib.sha256(str(tree.resolve()).encode()).hexdigest() if tree else self.commit
        self.folder = cache_folder / f"base-{key[:7]}-{_recorder_key()[:6]}{_texts_key()[:6]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.texts, self.runs = self.folder / "texts", self.folder / "runs"
        with self._locked():
            root = tree.resolve() if tree else extracted(self.commit, self.folder / "tree")
            if not self.texts.exists():
                write_texts(self.texts)
        self.runs.mkdir(exist_ok=True)
        self.tree = Tree(root, self)
        self._cases = {case.name: case for case in golden.cases()}
        self._known: dict[str, Record] = {}

    def record(self, case: Case) -> Record:
        """What the case leaves behind in the base tree, from the cache or computed now."""
        if case.name not in self._known:
            for needed in case.needs:
                self.record(self._cases[needed])
            with self._locked():
                self._known[case.name] = self._cached(case)
        return self._known[case.name]

    def _cached(self, case: Case) -> Record:
        folder, file = (
            self.folder / "cases" / _folder_name(case),
            self.folder / "records" / f"{_folder_name(case)}.json",
        )
        key = self._key(case)
        if file.exists() and (saved := json.loads(file.read_text()))["key"] == key:
            return saved["record"]
        shutil.rmtree(folder, ignore_errors=True)
        record = self.tree.run(case, folder)
        if case.name.startswith("train/"):
            link = self.runs / case.name.removeprefix("train/")
            link.unlink(missing_ok=True)
            link.symlink_to(folder / "run")
        else:
            shutil.rmtree(folder)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"key": key, "record": record}, indent=0, ensure_ascii=False))
        return record

    def _key(self, case: Case) -> str:
        """Changes whenever the record of a case could."""
        described = [asdict(case) | {"tags": None}, _ENVIRONMENT,
                     *(self._key(self._cases[needed]) for needed in case.needs)]  # fmt: skip
        return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other comparisons that share the cache from computing the same."""
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Tree:
    """A source tree whose commands are run; its server starts with the first case."""

    def __init__(
        self,
        root: Path,
        base: Base | None = None,
        settings: Mapping[str, str] | None = None,
        of_training: Sequence[str] = (),
    ) -> None:
        """A tree whose commands have some variables besides those of all trees, and new runs some arguments."""
        self.root, self._base, self._settings, self._of_training = root, base, settings or {}, [*of_training]
        self._server: subprocess.Popen[str] | None = None
        self._is_compiled = False

    def run(self, case: Case, folder: Path) -> Record:
        """Run the commands of a case in a new folder; returns what they left behind."""
        assert self._base is not None
        folder.mkdir(parents=True)
        (folder / "text").symlink_to(self._base.texts)
        (folder / "runs").symlink_to(self._base.runs)
        environment = {"LM_CACHE": str(folder / "cache")}
        if case.is_compiled:
            environment = {"LM_CACHE": str(self._compiled())}
        record: Record = {}
        for number, command in enumerate(case.commands, 1):
            code, output, errors = self.command(
                shlex.split(command), folder, environment, is_process=case.is_process, is_compiled=case.is_compiled
            )
            record[f"command {number}:exit"] = str(code)
            record |= {f"command {number}:{name}": value for name, value in records.of_output(output, folder).items()}
            record[f"command {number}:stderr"] = errors[-2000:] if code else ""
        return record | records.of_folder(folder)

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.wait()

    def command(
        self,
        words: list[str],
        folder: Path,
        environment: dict[str, str],
        *,
        is_process: bool = False,
        is_compiled: bool = False,
    ) -> tuple[int, str, str]:
        """Run a command line of a case in a folder; returns its exit code, stdout and stderr."""
        if words[0] == "copy":
            shutil.copytree(folder / words[1], folder / words[2])
            return 0, "", ""
        if words[0] == "train" and "--resume" not in words:
            words = [*words, *self._of_training]
        stdin = "/dev/null"
        if "<" in words:
            stdin = str(folder / words[words.index("<") + 1])
            words = words[: words.index("<")] + words[words.index("<") + 2 :]
        files = {name: folder / f".{name}" for name in ("stdout", "stderr")}
        preload = ["numba"] if is_compiled else []
        request = {
            "arguments": words, "folder": str(folder), "stdin": stdin, "environment": environment, "preload": preload,
            "timeout": _TIMEOUT, **{name: str(path) for name, path in files.items()},
        }  # fmt: skip
        code = self._process(request) if is_process else self._ask(request)
        output, errors = (path.read_text(encoding="utf-8", errors="replace") for path in files.values())
        for path in files.values():
            path.unlink()
        return code, output.replace(str(self.root), "<tree>"), errors

    def _process(self, request: dict[str, Any]) -> int:
        """Run a request in a process of its own."""
        with (
            Path(request["stdin"]).open() as stdin,
            Path(request["stdout"]).open("w") as stdout,
            Path(request["stderr"]).open("w") as stderr,
        ):
            done = subprocess.run(
                [sys.executable, "-P", "-m", "cli", *request["arguments"]], cwd=request["folder"], stdin=stdin,
                stdout=stdout, stderr=stderr, env=self._environment() | request["environment"], timeout=_TIMEOUT,
                check=False,
            )  # fmt: skip
        return done.returncode

    def _ask(self, request: dict[str, Any]) -> int:
        """Have the server run a request."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-P", str(_HERE / "command_server.py")], stdin=subprocess.PIPE, text=True,
                stdout=subprocess.PIPE, env=self._environment(),
            )  # fmt: skip
            loaded = json.loads(self._answer())["lm"]
            if Path(loaded).resolve() != (self.root / "lm").resolve():
                sys.exit(f"{loaded} was imported instead of {self.root / 'lm'}")
        assert self._server.stdin is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return int(self._answer())

    def _answer(self) -> str:
        assert self._server is not None
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            sys.exit(f"{self.root}: its commands cannot be imported")
        return line

    def _environment(self) -> dict[str, str]:
        """Return this process's environment without settings of lm, with the tree before all installed packages."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LM_")}
        return kept | _ENVIRONMENT | self._settings | {"PYTHONPATH": str(self.root)}

    def _compiled(self) -> Path:
        """The cache that holds this tree's compiled code, which is made now if it is not there."""
        assert self._base is not None
        key = hashlib.sha256(str(self.root).encode()).hexdigest()[:12]
        folder = self._base.folder.parent / f"compiled-{key}"
        if not self._is_compiled:
            folder.mkdir(exist_ok=True)
            done = subprocess.run(
                [sys.executable, "-P", "-m", "cli", "compile"], env=self._environment() | {"LM_CACHE": str(folder)},
                capture_output=True, text=True, check=False, cwd=folder,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{self.root}: lm compile: {done.stderr}")
            self._is_compiled = True
        return folder


def extracted(commit: str, folder: Path) -> Path:
    """The packages of a commit, extracted into a folder unless they are there."""
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            archive = subprocess.run(
                ["git", "-C", str(_TREE), "archive", commit, *_PACKAGES], check=True, capture_output=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", made], input=archive, check=True)
            shutil.copytree(made, folder)
    return folder


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(_TREE), *arguments], check=True, capture_output=True, text=True).stdout


def _folder_name(case: Case) -> str:
    return case.name.replace("/", "--")


@cache
def _recorder_key() -> str:
    """Changes with the code that runs and records commands."""
    content = b"".join((_HERE / name).read_bytes() for name in ("records.py", "command_server.py"))
    return hashlib.sha256(content).hexdigest()[:12]


@cache
def _texts_key() -> str:
    content = b"".join(path.name.encode() + path.read_bytes() for path in sorted(TEXT.iterdir()))
    content += (_HERE / "texts.py").read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


if __name__ == "__main__":
    main()
