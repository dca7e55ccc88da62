"""The web interface in headless Chromium, against a real server.

Each test also fails if the page requests anything from elsewhere, violates its Content-Security-Policy, or logs an
error.
"""

import json
import math
import os
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
from lm.config.run_config import RunConfig
from lm.config.tokenizer import TokenizerConfig
from lm.model.transformer import build_model
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

WEB = Path(__file__).parents[3] / "lm" / "serving" / "web"
WAIT = 60_000  # milliseconds: a limit for slow machines
NUMBERS = ["one", "two", "three", "four", "five", "six"]
PROMPT = "one two three"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs to compare, to whose logs tests may add."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("gpt", "llama"):
        shutil.copytree(RUNS / name, folder / name)
        (folder / name / run_folder.TIMINGS).touch()
    return folder


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
        folder, config=RunConfig(model=shape), tokenizer=tokenizer, model=model.state_dict(), optimizer={},
        state=run_folder.TrainingState(), is_best=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(models, runs):
    with served(models / "counting", models / "talking", RUNS / "translation", "--runs", runs) as running:
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


def bars(page):
    """The next tokens, with the percentages of the model and after the options."""
    rows = page.locator(".distribution tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("button, .number").all()] for row in rows]


def test_a_completion_streams_into_the_text_and_can_be_undone_and_redone(page, server):
    show(page, server, "complete")
    editor = page.get_by_label("Prompt and completion")
    editor.fill(PROMPT)
    set_option(page, "Maximum tokens", 12)
    set_option(page, "Greedy", True)
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


def test_escape_stops_a_completion(page, server):
    show(page, server, "complete")
    editor = page.get_by_label("Prompt and completion")
    set_option(page, "Maximum tokens", 8000)
    set_option(page, "Ignore end of text", True)
    editor.fill(PROMPT)
    editor.press("Control+Enter")
    has_value(editor, f"^{PROMPT}.+")
    expect(page.get_by_role("button", name="Generate")).to_be_disabled()
    editor.press("Escape")
    until(page.locator(".progress"), "Stopped")
    stopped = editor.input_value()
    assert len(stopped.split()) < 8000
    expect(page.get_by_role("button", name="Generate")).to_be_enabled()
    page.wait_for_timeout(300)
    assert editor.input_value() == stopped


def test_bars_of_the_next_token_follow_the_options(page, server):
    show(page, server, "complete")
    page.get_by_label("Prompt and completion").fill(PROMPT)
    set_option(page, "Temperature", 1)
    row = page.locator(".distribution tbody tr").first
    until(row.locator("button"), "four")
    until(page.locator(".distribution-summary"), r"(\d+) of \1 tokens can be sampled, entropy (\S+) → \2 bits")
    at_one = bars(page)
    assert all(before == after for _, before, after in at_one)
    set_option(page, "Temperature", 5)
    until(page.locator(".distribution-summary"), r"entropy (\S+) → (?!\1 )")
    at_five = bars(page)
    assert [before for _, before, _ in at_five] == [before for _, before, _ in at_one]
    assert float(at_five[0][2].rstrip("%")) < float(at_one[0][2].rstrip("%"))
    set_option(page, "Top-k", 2)
    until(page.locator(".distribution-summary"), r"^2 of (\d+) tokens .* without Top-k \1 tokens")
    expect(page.locator(".bar-without")).to_have_count(len(at_one))
    assert [after == "0%" for _, _, after in bars(page)] == [False, False, *[True] * (len(at_one) - 2)]
    set_option(page, "Maximum tokens", 12)  # has no effect on the next token
    expect(page.locator(".bar-without")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    until(page.locator(".distribution-summary"), r"(\d+) of \1")
    row.get_by_role("button").click()
    assert page.get_by_label("Prompt and completion").input_value() == f"{PROMPT} four"


def test_an_error_of_the_server_is_one_line(page, server, problems):
    problems.expected = "status of 400"
    show(page, server, "complete")
    page.get_by_label("Prompt and completion").fill(PROMPT)
    set_option(page, "Top-p", 7)
    page.get_by_role("button", name="Generate").click()
    error = page.get_by_role("alert")
    until(error, "top_p: Expected")
    expect(page.locator(".progress")).to_be_empty()
    page.get_by_role("button", name="Dismiss error").click()
    expect(error).to_be_empty()
    until(page.locator(".distribution-summary"), "top_p: Expected")


def test_scores_of_tokens_add_up_to_the_total_and_alternatives_replace_the_rest(page, server):
    show(page, server, "score")
    text = "one two five four ünd 👩‍🔬 six"
    editor = page.get_by_label("Text to score")
    with page.expect_response("**/score") as answered:
        editor.fill(text)
    found = answered.value.json()
    until(page.locator(".totals"), r"bits \(")
    bits = math.fsum(token["bits"] or 0 for token in found["tokens"])
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


def test_attention_of_the_focused_token_is_that_of_the_server(page, server):
    with page.expect_response("**/attention"):
        show(page, server, "attention/counting")
    with page.expect_response("**/attention") as answered:
        page.get_by_label("Text", exact=True).fill("six one two three")
    found = answered.value.json()
    tokens = page.locator(".attention-token")
    expect(tokens).to_have_count(len(found["queries"]))
    page.get_by_label("Layer", exact=True).select_option(label="1")
    page.get_by_label("Head", exact=True).select_option(label="2")
    tokens.nth(2).hover()
    row = found["weights"][0][1][2]
    for weight, title in zip(row, [token.get_attribute("title") for token in tokens.all()], strict=True):
        assert title == "0%" if weight == 0 else abs(float(title.strip("<%")) - 100 * weight) < 0.06
    tokens.nth(2).focus()
    page.keyboard.press("ArrowLeft")
    expect(tokens.nth(1)).to_be_focused()
    expect(tokens.nth(1)).to_have_attribute("aria-selected", "true")
    page.locator("button.map").first.click()
    assert page.get_by_label("Head", exact=True).input_value() == "0"


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


def test_curves_of_runs_appear_and_grow_while_a_run_is_trained(page, server, runs):
    show(page, server, "runs")
    loss = page.get_by_role("img", name=re.compile("^Loss, nats.token by step"))
    expect(loss.locator("path").first).to_be_visible()
    for box in page.locator(".run-list input").all():
        box.check()
    for name in ("gpt", "llama"):
        expect(loss).to_have_attribute("aria-label", re.compile(f"{name} validation: "))
    log = runs / "gpt" / "metrics.jsonl"
    last = json.loads(log.read_text().splitlines()[-1])["step"]
    with log.open("a") as file:
        file.write(json.dumps({"step": last + 10, "loss": 0.25, "nll": 0.25, "learning_rate": 1e-4}) + "\n")
    expect(loss).to_have_attribute("aria-label", re.compile(rf"gpt training: 0\.250 at {last + 10}"))
    loss.focus()
    page.keyboard.press("ArrowLeft")
    until(page.locator(".readout").first, r"step .*: .*gpt training 0\.250")


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


@pytest.mark.parametrize("view", ["complete", "score", "attention", "translate", "chat", "runs"])
def test_a_narrow_screen_needs_no_horizontal_scrolling(page, server, view):
    page.set_viewport_size({"width": 360, "height": 700})
    show(page, server, view)
    fill_view(page, view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("view", ["complete", "score", "attention", "translate", "chat", "runs"])
def test_axe_finds_no_serious_violation(page, server, view, colours):
    source = os.environ.get("AXE_CORE")
    if source is None:
        pytest.skip("needs axe-core: npm install axe-core, AXE_CORE=…/axe-core/axe.min.js")
    page.emulate_media(color_scheme=colours)
    show(page, server, view)
    fill_view(page, view)
    page.evaluate(Path(source).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    assert found["passes"]
    violations = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []


def fill_view(page, view):
    """Let a view show what it shows."""
    if view == "complete":
        page.get_by_label("Prompt and completion").fill(PROMPT)
        page.get_by_label("Completions", exact=True).fill("2")
        page.keyboard.press("Control+Enter")
        until(page.locator(".progress"), "tokens/s")
        until(page.locator(".distribution tbody button").first, "four")
    elif view == "score":
        page.get_by_label("Text to score").fill("one two five four")
        until(page.locator(".alternatives"), "%")
    elif view == "attention":
        until(page.locator(".attention-strongest"), "attends to")
    elif view == "translate":
        page.get_by_label("Source", exact=True).fill("drei vier fünf")
        page.keyboard.press("Control+Enter")
        until(page.locator(".hypothesis").first, "Best translation")
    elif view == "chat":
        page.get_by_label("Message", exact=True).fill(PROMPT)
        page.keyboard.press("Enter")
        until(page.locator(".message-assistant .message-text"), "four")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
    elif view == "runs":
        expect(page.locator(".chart path").first).to_be_visible()


def test_all_files_are_packaged():
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = {file.distribution_path for file in wheel.WheelBuilder(str(WEB.parents[2])).recurse_included_files()}
    assert {f"lm/serving/web/{path.name}" for path in WEB.iterdir()} <= files
