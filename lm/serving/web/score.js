// Surprisal under text as it is typed; the alternatives of a token, to replace it and continue from there.

import {
  announce,
  button,
  clearError,
  count,
  debounce,
  element,
  format,
  percent,
  report,
  sayToken,
  showToken,
} from "./dom.js";
import { Latest } from "./api.js";
import { complete, score } from "./endpoints.js";
import { bar, createColumns, createHead } from "./distribution.js";
import { Editor } from "./editor.js";

const DELAY = 250;
const LEVELS = 8; // colours, of 1.5 bits each
const ALTERNATIVES = 12;
const CONTINUED = 40; // tokens generated after an alternative

export class ScoreView {
  static id = "score";
  static label = "Score";
  static supports = (model) => model.scores;

  constructor() {
    this.model = null;
    this.tokens = [];
    this.scoring = new Latest();
    this.generation = new Latest();
    this.update = debounce(() => this.#score(), DELAY);
    this.editor = new Editor({
      label: "Text to score",
      placeholder: "Type or paste text: the more surprising a token is, the stronger its colour.",
      rows: 8,
      describedBy: "score-help",
      oninput: () => this.#changed(),
      onselect: (caret) => this.#select(caret),
    });
    this.totals = element("dl", { class: "totals", "aria-label": "Totals" });
    this.details = element(
      "section",
      { class: "panel token-details", "aria-labelledby": "token-details-title" },
      element("h2", { id: "token-details-title" }, "Token"),
      element("p", { class: "muted" }, "Click a token, or move the caret to it, to see what the model expected there."),
    );
    this.continues = element("input", { type: "checkbox", id: "score-continue", checked: true });
    this.stopButton = button("Stop", () => this.stop(), { keys: "Escape", disabled: true });
    const swatches = Array.from({ length: LEVELS }, (_, level) =>
      element("span", { class: `swatch surprisal-${level}` }),
    );
    this.root = element(
      "div",
      { class: "view columns" },
      element(
        "div",
        { class: "column-main" },
        this.editor.root,
        element(
          "p",
          { id: "score-help", class: "visually-hidden" },
          "Each token is coloured by its surprisal. Move the caret to a token to list its alternatives.",
        ),
        element(
          "div",
          { class: "toolbar", role: "group", "aria-label": "Text" },
          this.stopButton,
          this.editor.undoButton,
          this.editor.redoButton,
          element("label", { class: "check" }, this.continues, " Continue after choosing an alternative"),
        ),
        element(
          "div",
          { class: "scale", role: "img", "aria-label": "Colours: from expected, 0 bits, to surprising, 12 bits" },
          "expected",
          element("span", { class: "swatches" }, ...swatches),
          "surprising (12 bits)",
        ),
        this.totals,
      ),
      element("div", { class: "column-side" }, this.details),
    );
    this.#drawTotals(null);
  }

  show(model) {
    this.model = model;
    this.#changed();
  }

  hide() {
    this.stop();
    this.scoring.abort();
  }

  focus() {
    this.editor.focus();
  }

  run() {
    this.update.cancel();
    return this.#score();
  }

  stop() {
    this.generation.abort();
  }

  undo() {
    this.editor.undo();
  }

  redo() {
    this.editor.redo();
  }

  #changed() {
    this.editor.updateButtons();
    if (this.model) this.update();
  }

  async #score() {
    const text = this.editor.text;
    if (text === "") {
      this.scoring.abort();
      this.tokens = [];
      this.#drawTotals(null);
      return;
    }
    try {
      const found = await this.scoring.run((signal) =>
        score({ model: this.model.id, text, top: ALTERNATIVES, signal }),
      );
      if (text !== this.editor.text) return;
      clearError();
      this.tokens = found.tokens;
      this.editor.mark(createMarks(found.tokens));
      this.#drawTotals(found.totals);
      this.#select(this.editor.caret);
    } catch (error) {
      report(error);
    }
  }

  #drawTotals(totals) {
    const rows = totals
      ? [
          ["Tokens", totals.tokens.toLocaleString("en")],
          ["Bytes", totals.bytes.toLocaleString("en")],
          ["Surprisal", `${format(totals.bits)} bits (${format(totals.nats)} nats)`],
          ["Bits/byte", format(totals.bitsPerByte ?? NaN)],
          ["Perplexity", `${format(totals.perplexity ?? NaN)} per token`],
        ]
      : [["Bits/byte", "–"]];
    this.totals.replaceChildren(
      ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
    );
  }

  /** Show the token at the caret: the one that it stands in or before, or the last. */
  #select(caret) {
    if (this.generation.isBusy) return;
    const token = this.tokens.find(({ start, end }) => start <= caret && caret < end) ?? this.tokens.at(-1);
    if (!token || this.editor.text.slice(token.start, token.end) !== token.shown) return;
    const head = element(
      "h2",
      { id: "token-details-title" },
      "Token ",
      element("span", { class: "token" }, showToken(token.text)),
    );
    this.editor.mark(createMarks(this.tokens, token));
    if (token.bits === null) {
      this.details.replaceChildren(
        head,
        element("p", { class: "muted" }, "The first token has no context, and is not scored."),
      );
      return;
    }
    const rank = token.rank === null ? "" : `, rank ${token.rank.toLocaleString("en")}`;
    const facts = `${format(token.bits)} bits (${format(token.nats)} nats), probability ${percent(2 ** -token.bits)}${rank}`;
    const largest = Math.max(...token.alternatives.map(({ probability }) => probability), 1e-9);
    this.details.replaceChildren(
      head,
      element("p", {}, facts),
      element(
        "table",
        { class: "distribution alternatives" },
        element("caption", {}, "What the model expected. Choosing one replaces the rest of the text."),
        createColumns(1),
        createHead("Token", "Bar", "Probability"),
        element("tbody", {}, ...token.alternatives.map((each) => this.#row(token, each, largest))),
      ),
    );
  }

  #row(token, { text, probability }, largest) {
    const isActual = text === token.text;
    const choose = element(
      "button",
      {
        type: "button",
        class: "token",
        "aria-label": `Continue with ${sayToken(text)}`,
        onclick: () => this.#choose(token, text),
      },
      showToken(text),
    );
    return element(
      "tr",
      { class: isActual ? "is-actual" : "" },
      element("th", { scope: "row" }, choose),
      element("td", { class: "bars", "aria-hidden": "true" }, bar("bar bar-after", probability / largest)),
      element("td", { class: "number" }, percent(probability)),
    );
  }

  async #choose(token, text) {
    this.stop();
    const kept = this.editor.text.slice(0, token.start);
    this.editor.replace(kept + text, { generated: [{ start: kept.length, end: kept.length + text.length }] });
    this.editor.focus();
    if (!this.continues.checked) return;
    clearError();
    this.editor.beginGeneration();
    this.stopButton.disabled = false;
    let ended = "Stopped";
    try {
      await this.generation.run(async (signal) => {
        const options = { max_tokens: CONTINUED, token_healing: false };
        const body = { model: this.model.id, prompt: this.editor.text, n: 1, options, signal };
        for await (const { text: piece, tokens } of complete(body)) {
          if (piece) this.editor.append(piece);
          if (tokens) ended = `Continued by ${count(tokens, "token")}`;
        }
      });
    } catch (error) {
      report(error);
    } finally {
      if (!this.generation.isBusy) {
        this.editor.endGeneration();
        this.stopButton.disabled = true;
        announce(ended);
      }
    }
  }
}

/** Return the marks of tokens; tokens that share a character are one mark. */
function createMarks(tokens, chosen = null) {
  return tokens
    .filter(({ start, end, bits }) => end > start && bits !== null)
    .map((token) => ({
      start: token.start,
      end: token.end,
      class: `surprisal-${Math.min(Math.floor(token.bits / 1.5), LEVELS - 1)}${token === chosen ? " is-chosen" : ""}`,
    }));
}
