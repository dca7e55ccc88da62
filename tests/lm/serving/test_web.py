"""The web interface in headless Chromium, against a real server.

Each test also fails if the page requests anything from elsewhere, violates its Content-Security-Policy, or logs an
error.
"""

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
import torch.nn.functional as F

from lm import run_folder
from lm.checkpoint import save_checkpoint
from lm.config.model import ModelConfig
from lm.config.run_config import RunConfig, TokenizerConfig
from lm.model import build_model
from lm.run_folder import find_checkpoint
from lm.tokenizer import training
from lm.tokenizer.chat_template import CONFIG_FILE, ChatTemplate
from tests.lm.serving.conftest import RUNS, served

pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")]

WAIT = 60_000  # milliseconds: a limit for slow machines
NUMBERS = ["one", "two", "three", "four", "five", "six"]
PROMPT = "one two three"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base model that continues numbers, and the same with a chat template, which replies with the next numbers."""
    folder = tmp_path_factory.mktemp("models")
    make_counting_run(folder / "counting")
    shutil.copytree(folder / "counting", folder / "talking", symlinks=True)
    contents = "{% for message in messages %}{{ ' ' if not loop.first else '' }}{{ message['content'] }}{% endfor %}"
    config = json.dumps(ChatTemplate(contents).to_json())
    (find_checkpoint(folder / "talking") / CONFIG_FILE).write_text(config)
    return folder


def make_counting_run(folder):
    """A run of a small decoder that has learned to count from one to six, again and again."""
    texts = [" ".join((NUMBERS * 12)[start : start + 60]) for start in range(6)]
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    tokenizer = training.train(texts, config, corpus_bytes=sum(map(len, texts)))
    shape = ModelConfig(vocab_size=tokenizer.vocab_size, context_length=48, d_model=32, n_layers=2, n_heads=2)
    model = build_model(shape, seed=1)
    tokens = torch.tensor([tokenizer.encode(text)[:48] for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        logits = model.logits(model.hidden(tokens[:, :-1]))
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint(
        folder, config=RunConfig(model=shape), tokenizer=tokenizer, model=model.state_dict(),
        state=run_folder.TrainingState(), is_best=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(models):
    with served(models / "counting", models / "talking", RUNS / "translation") as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=WAIT)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Problems(list[str]):
    """What went wrong in a page.

    Attributes:
        expected: part of a message that is no problem in this test.
    """

    expected = "no message"


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def page(browser, server, problems) -> Iterator[playwright.Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT)
    watch(page, problems, server.url)
    yield page
    context.close()
    assert [each for each in problems if problems.expected not in each] == []


def watch(page, problems, url):
    def check(request):
        if not request.url.startswith(("blob:", "data:")) and urlsplit(request.url).netloc != urlsplit(url).netloc:
            problems.append(f"requested {request.url}")

    page.on("request", check)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))


def show(page, server, view):
    page.goto(f"{server.url}/#{view}")
    return page.locator(".view")


def until(locator, pattern):
    expect(locator).to_have_text(re.compile(pattern, re.DOTALL))


def has_value(locator, pattern):
    expect(locator).to_have_value(re.compile(pattern, re.DOTALL))


def set_option(page, label, value):
    """Fill an option, opening its group."""
    field = page.get_by_label(label, exact=True)
    field.evaluate("(field) => (field.closest('details').open = true)")
    if isinstance(value, bool):
        field.set_checked(value)
    else:
        field.fill(str(value))


def test_a_completion_streams_into_the_text_and_can_be_undone_and_redone(page, server):
    show(page, server, "complete")
    editor = page.get_by_label("Prompt and completion")
    editor.fill(PROMPT)
    set_option(page, "Maximum tokens", 12)
    set_option(page, "Temperature", 0)
    editor.press("Control+Enter")
    until(page.locator(".progress"), r"tokens, .* tokens/s")
    completed = editor.input_value()
    words = completed.split()
    assert len(words) > 10
    assert words[:-1] == (NUMBERS * 3)[: len(words) - 1]
    assert page.locator("mark.generated").inner_text() == completed.removeprefix(PROMPT)
    editor.press("Control+z")
    has_value(editor, f"^{PROMPT}$")
    editor.press("Control+Shift+z")
    has_value(editor, f"^{completed}$")
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo").click()
    has_value(editor, "^$")


def test_scores_of_tokens_add_up_to_the_total_and_alternatives_replace_the_rest(page, server):
    show(page, server, "score")
    text = "one two five four ünd 👩‍🔬 six"
    editor = page.get_by_label("Text to score")
    with page.expect_response("**/score") as answered:
        editor.fill(text)
    found = answered.value.json()
    until(page.locator(".totals"), r"bits \(")
    bits = math.fsum(token["nats"] or 0 for token in found["tokens"]) / math.log(2)
    shown = float(re.search(r"([\d,.]+) bits", page.locator(".totals").inner_text())[1].replace(",", ""))
    assert shown == pytest.approx(bits, rel=1e-3)
    assert page.locator(".editor-layer").text_content() == text + "\n"
    marks = page.locator(".editor-layer mark")
    assert sum(len(mark.encode()) for mark in marks.all_text_contents()) == found["bytes"]
    editor.evaluate("(area, place) => area.setSelectionRange(place, place)", text.index(" five") + 1)
    editor.press("ArrowRight")
    until(page.locator("#token-details-title"), "five")
    best = page.locator(".alternatives tbody tr").first
    until(best.locator("button"), "three")
    page.get_by_label("Continue after choosing an alternative").uncheck()
    best.locator("button").click()
    has_value(editor, "^one two three$")
    editor.press("Control+z")
    has_value(editor, "five")


def test_translations_are_ordered_and_a_word_shows_what_it_was_aligned_with(page, server):
    show(page, server, "translate")
    page.get_by_label("Source", exact=True).fill("drei vier fünf")
    page.get_by_label("Translations", exact=True).fill("2")
    with page.expect_response("**/translate") as answered:
        page.keyboard.press("Control+Enter")
    (found,) = answered.value.json()["results"]
    expect(page.locator(".hypothesis")).to_have_count(2)
    for card, translation in zip(page.locator(".hypothesis").all(), found["translations"], strict=True):
        words = card.locator(".target .word")
        assert words.all_text_contents() == translation["text"].split()
        for place, word in enumerate(words.all()):
            word.focus()
            aligned = [source for source, target in translation["alignment"]["pairs"] if target == place]
            marked = card.locator(".source .word.is-aligned").all_text_contents()
            assert marked == [found["source"].split()[source] for source in aligned]


def test_a_chat_of_several_turns(page, server):
    show(page, server, "chat")
    message, replies = page.get_by_label("Message", exact=True), page.locator(".message-assistant .message-text")
    set_option(page, "Maximum tokens", 8)
    set_option(page, "Temperature", 0)
    message.fill(PROMPT)
    message.press("Enter")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    until(replies, "^ ?four five six one")
    first = replies.text_content()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    until(replies, f"^{first}$")
    page.get_by_label("System prompt").fill("one")
    message.fill("six")
    with page.expect_request("**/v1/chat/completions") as asked:
        message.press("Control+Enter")
    expected = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "six"},
    ]
    assert json.loads(asked.value.post_data)["messages"] == expected
    expect(replies).to_have_count(2)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as JSON").click()
    assert json.loads(Path(saved.value.path()).read_text())["messages"][:-1] == expected
    page.get_by_role("button", name="Undo").click()
    has_value(message, "^six$")
    expect(replies).to_have_count(1)


def test_text_of_a_model_is_never_html(page, server):
    """An answer of the server that would be harmful as HTML is shown as it is."""
    show(page, server, "complete")
    harmful = "<img src=x onerror=alert(1)>"
    event = {"choices": [{"index": 0, "text": harmful, "finish_reason": "stop"}]}
    page.route("**/v1/completions", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"))  # fmt: skip
    page.get_by_label("Prompt and completion").fill(PROMPT)
    page.keyboard.press("Control+Enter")
    has_value(page.get_by_label("Prompt and completion"), re.escape(harmful))
    assert page.locator("main img").count() == 0
