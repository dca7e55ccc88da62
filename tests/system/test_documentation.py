"""README, CONTRIBUTING and docs: links and commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import run
from tests.cli.small_runs import make_run
from tests.documented_help import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {path.partition(" ")[2]: command for path, command in commands()}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def documented_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `$ lm …` line in a page's transcripts, up to a comment, pipe or redirection."""
    for line in page.read_text(encoding="utf-8").splitlines():
        for part in (
            re.split(r" \| | && ", line.strip().partition("$ ")[2]) if "$ lm " in line or "| lm " in line else ()
        ):
            if part.startswith("lm "):
                yield shlex.split(re.split(r" > |  +#|…", part)[0])[1:]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" not in target:
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_of_a_page_parse(page):
    for words in documented_commands(page):
        command_name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        COMMANDS[command_name].make_context(command_name, words[len(command_name.split()) :])


def test_every_page_is_linked_from_the_readme_or_from_a_page_it_links():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.exists():
            seen.add(page)
            targets = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
            waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert set(PAGES) <= seen


def is_cheap(words: list[str], folder: Path) -> bool:
    """Whether a documented command reads only files that are there, trains nothing and waits for nobody."""
    outputs = {words[i + 1] for i, word in enumerate(words[:-1]) if word in {"-o", "--html"}}
    files = [word for word in words if re.search(r"/|\.(txt|jsonl?|en|de)$", word) and word not in outputs]
    is_slow = words[0] in {"train", "compile", "import", "bench", "prepare", "export"} or {
        "--interactive", "--processes"
    } & {*words}  # fmt: skip
    reads = words[:2] in (["tokenizer", "decode"], ["corpus", "get"])  # stdin, or the network
    return not is_slow and not reads and all((folder / file).exists() for file in files)


def test_cheap_commands_of_the_docs_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "stories", n_layers=4, d_model=32, n_heads=4)
    for part in ("train", "heldout"):
        text = (ROOT / "corpora" / "stories" / f"{part}.txt").read_text(encoding="utf-8")
        (tmp_path / "corpora" / "stories").mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpora" / "stories" / f"{part}.txt").write_text(text[:1500], encoding="utf-8")
    ran = []
    for page in PAGES:
        for words in documented_commands(page):
            if is_cheap(words, tmp_path):
                assert run(words) == 0, (page, words, capsys.readouterr().err)
                ran.append(words[0])
    assert {"generate", "perplexity", "info", "tokenizer", "attention"} <= set(ran)
