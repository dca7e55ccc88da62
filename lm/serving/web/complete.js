// The completion playground: a prompt and its streamed completion in one text, or several completions to choose from.

import { announce, button, clearError, count, element, format, report } from "./dom.js";
import { Latest } from "./api.js";
import { complete } from "./endpoints.js";
import { Distribution } from "./distribution.js";
import { Editor } from "./editor.js";
import { SamplingOptions } from "./options.js";

const MOST = 8; // completions beside each other

export class CompleteView {
  static id = "complete";
  static label = "Complete";
  static supports = (model) => model.completes;

  constructor() {
    this.model = null;
    this.latest = new Latest();
    this.editor = new Editor({
      label: "Prompt and completion",
      placeholder: "Write the beginning of a text, then press Ctrl+Enter.",
      rows: 8,
      describedBy: "complete-help",
      oninput: () => this.#changed(),
    });
    this.options = new SamplingOptions({
      onchange: () => this.distribution.update(),
      onfocus: (option) => this.distribution.compare(option),
    });
    this.distribution = new Distribution({
      read: () => ({ model: this.model.id, prompt: this.editor.text, options: this.options.values }),
      onchoose: (text) => this.#use(text),
    });
    this.number = element("input", { type: "number", min: 1, max: MOST, value: 1, id: "complete-n" });
    this.generateButton = button("Generate", () => this.run(), { class: "primary", keys: "Ctrl+Enter" });
    this.stopButton = button("Stop", () => this.stop(), { keys: "Escape", disabled: true });
    this.progress = element("span", { class: "muted progress" });
    this.cards = element("div", { class: "cards" });
    this.root = element(
      "div",
      { class: "view columns" },
      element(
        "div",
        { class: "column-main" },
        this.editor.root,
        element(
          "p",
          { id: "complete-help", class: "visually-hidden" },
          "Control and Enter continues the text. Escape stops.",
        ),
        element(
          "div",
          { class: "toolbar", role: "group", "aria-label": "Completion" },
          this.generateButton,
          this.stopButton,
          this.editor.undoButton,
          this.editor.redoButton,
          element("span", { class: "labelled" }, element("label", { for: "complete-n" }, "Completions"), this.number),
          this.progress,
        ),
        this.cards,
      ),
      element("div", { class: "column-side" }, this.distribution.root, this.options.root),
    );
  }

  show(model) {
    this.model = model;
    this.distribution.update();
  }

  hide() {
    this.stop();
  }

  focus() {
    this.editor.focus();
  }

  async run() {
    if (this.latest.isBusy) return;
    clearError();
    const number = Math.min(Math.max(Math.round(Number(this.number.value)) || 1, 1), MOST);
    this.number.value = number;
    const write = number === 1 ? this.#writeIntoEditor() : this.#writeIntoCards(number);
    const prompt = this.editor.text;
    this.#setBusy(true);
    this.progress.textContent = "Generating…";
    let ended = "Stopped";
    try {
      await this.latest.run(async (signal) => {
        const began = performance.now();
        const body = { model: this.model.id, prompt, n: number, options: this.options.values, signal };
        for await (const { index, text, finishReason, tokens } of complete(body)) {
          if (text) write.append(index, text);
          if (finishReason) write.finish(index, finishReason);
          if (tokens)
            ended = `${count(tokens, "token")}, ${format((1000 * tokens) / (performance.now() - began))} tokens/s`;
        }
      });
    } catch (error) {
      if (error.name !== "AbortError") ended = "";
      report(error);
    } finally {
      write.end();
      this.#setBusy(false);
      this.progress.textContent = ended;
      announce(ended);
    }
  }

  stop() {
    this.latest.abort();
  }

  undo() {
    this.editor.undo();
  }

  redo() {
    this.editor.redo();
  }

  #writeIntoEditor() {
    this.cards.replaceChildren();
    this.editor.beginGeneration();
    return {
      append: (_, text) => this.editor.append(text),
      finish: () => {},
      end: () => this.editor.endGeneration(),
    };
  }

  #writeIntoCards(number) {
    const cards = Array.from({ length: number }, (_, index) => this.#createCard(index));
    this.cards.replaceChildren(...cards.map(({ root }) => root));
    return {
      append: (index, text) => cards[index].body.append(text),
      finish: (index, reason) => (cards[index].note.textContent = REASONS[reason] ?? reason),
      end: () => cards.forEach(({ use, body }) => (use.disabled = body.textContent === "")),
    };
  }

  #createCard(index) {
    const body = element("p", { class: "card-text", tabindex: 0, "aria-label": `Completion ${index + 1}` });
    body.setAttribute("role", "group");
    const note = element("span", { class: "muted" });
    const use = button(
      "Use this one",
      () => {
        const text = body.textContent;
        this.cards.replaceChildren();
        this.#use(text);
        this.editor.focus();
      },
      { disabled: true, "aria-label": `Use this one: completion ${index + 1}` },
    );
    const root = element(
      "section",
      { class: "card", "aria-label": `Completion ${index + 1}` },
      body,
      element("div", { class: "card-foot" }, note, use),
    );
    return { root, body, note, use };
  }

  /** Append text, as a step of undo, marked as generated. */
  #use(text) {
    const start = this.editor.text.length;
    const all = this.editor.followedBy(text);
    this.editor.replace(all, { generated: [...this.editor.generated, { start, end: all.length }] });
  }

  #changed() {
    this.editor.updateButtons();
    if (this.model) this.distribution.update();
  }

  #setBusy(isBusy) {
    if (isBusy && document.activeElement === this.generateButton) this.editor.focus();
    this.generateButton.disabled = isBusy;
    this.stopButton.disabled = !isBusy;
    this.editor.updateButtons(isBusy);
  }
}

const REASONS = { stop: "ended", length: "maximum length" };
