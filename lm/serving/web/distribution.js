// The distribution of the next token as bars: of the model, and of what is sampled from with the options.

import { count, debounce, element, percent, sayToken, showToken } from "./dom.js";
import { Latest } from "./api.js";
import { nextTokens } from "./endpoints.js";
import { withoutOption } from "./options.js";

const DELAY = 120;
const TOP = 12;

/** A panel with the next tokens. `read` returns `{model, prompt, options}`; `onchoose` is called with a token's text. */
export class Distribution {
  constructor({ read, onchoose }) {
    this.read = read;
    this.onchoose = onchoose;
    this.latest = new Latest();
    this.compared = null;
    this.update = debounce(() => this.#update(), DELAY);
    this.body = element("tbody");
    this.keyWithout = element("span", { class: "key key-without", hidden: true });
    this.summary = element("p", { class: "muted distribution-summary" });
    this.root = element(
      "section",
      { class: "panel", "aria-labelledby": "next-title" },
      element("h2", { id: "next-title" }, "Next token"),
      element(
        "p",
        { class: "legend" },
        element("span", { class: "key key-before" }, "model"),
        element("span", { class: "key key-after" }, "sampled from"),
        this.keyWithout,
      ),
      element(
        "table",
        { class: "distribution" },
        element("caption", { class: "visually-hidden" }, "The most likely next tokens. Choose one to append it."),
        createColumns(2),
        createHead("Token", "Bars", "Model", "With the options"),
        this.body,
      ),
      this.summary,
    );
  }

  /** Compare with what would be sampled from without an option, until another one is named. */
  compare(option) {
    if (this.compared === option) return;
    this.compared = option;
    this.update();
  }

  async #update() {
    const { model, prompt, options } = this.read();
    if (prompt === "") {
      this.latest.abort();
      this.#clear("Write something to see what can follow.");
      return;
    }
    try {
      const others = this.compared && withoutOption(options, this.compared.name);
      const found = await this.latest.run((signal) =>
        Promise.all(
          [options, others].map((each) => each && nextTokens({ model, prompt, options: each, top: TOP, signal })),
        ),
      );
      this.#draw(...found);
    } catch (error) {
      if (error.name !== "AbortError") this.#clear(error.message);
    }
  }

  #clear(reason) {
    this.body.replaceChildren();
    this.keyWithout.hidden = true;
    this.summary.textContent = reason;
  }

  #draw({ tokens, kept, size }, without) {
    const others = new Map(without?.tokens.map(({ id, after }) => [id, after]));
    const largest = Math.max(...tokens.map(({ id, before, after }) => Math.max(before, after, others.get(id) ?? 0)));
    const focused = [...this.body.querySelectorAll("button")].indexOf(document.activeElement);
    this.body.replaceChildren(...tokens.slice(0, TOP).map((token) => this.#row(token, others.get(token.id), largest)));
    if (focused >= 0) this.body.querySelectorAll("button")[focused]?.focus();
    this.keyWithout.hidden = !without;
    this.keyWithout.textContent = without ? `without ${this.compared.label}` : "";
    this.summary.textContent =
      `${kept.toLocaleString("en")} of ${count(size, "token")} can be sampled` +
      (without ? `; without ${this.compared.label} ${count(without.kept, "token")}` : "");
  }

  #row({ text, before, after }, without, largest) {
    const choose = element(
      "button",
      {
        type: "button",
        class: "token",
        "aria-label": `Append ${sayToken(text)}`,
        onclick: () => this.onchoose(text),
      },
      showToken(text),
    );
    const bars = element(
      "td",
      { class: "bars", "aria-hidden": "true" },
      bar("bar bar-before", before / largest),
      bar("bar bar-after", after / largest),
      without === undefined ? null : bar("bar-without", without / largest),
    );
    return element(
      "tr",
      { class: after > 0 ? "" : "is-dropped" },
      element("th", { scope: "row" }, choose),
      bars,
      element("td", { class: "number number-before" }, percent(before)),
      element("td", { class: "number" }, percent(after)),
    );
  }
}

/** Create the columns of a table of tokens: token, bars, and numbers. */
export function createColumns(numbers) {
  const columns = ["column-token", "column-bars", ...Array(numbers).fill("column-number")];
  return element("colgroup", {}, ...columns.map((name) => element("col", { class: name })));
}

/** Create the names of the columns, for screen readers only. */
export function createHead(...names) {
  const cells = names.map((name) => element("th", { scope: "col" }, name));
  return element("thead", { class: "visually-hidden" }, element("tr", {}, ...cells));
}

/** Create a bar, or a mark, at a fraction of its place. */
export function bar(name, fraction) {
  const drawn = element("span", { class: name });
  drawn.style.setProperty("--fraction", fraction);
  return drawn;
}
