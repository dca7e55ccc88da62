// Translation with the n best hypotheses, and the words that each word was aligned with.

import { announce, button, clearError, count, element, format, report } from "./dom.js";
import { Latest } from "./api.js";
import { translate } from "./endpoints.js";

export class TranslateView {
  static id = "translate";
  static label = "Translate";
  static supports = (model) => model.translates;

  constructor() {
    this.model = null;
    this.latest = new Latest();
    this.area = element("textarea", {
      id: "translate-source",
      rows: 3,
      class: "plain-text",
      placeholder: "A sentence to translate",
    });
    this.number = element("input", { type: "number", id: "translate-n", min: 1, max: 10, value: 3 });
    this.beam = element("input", { type: "number", id: "translate-beam", min: 1, max: 32, value: 5 });
    this.language = element("select", { id: "translate-to" });
    this.languageField = element(
      "span",
      { class: "labelled" },
      element("label", { for: "translate-to" }, "To"),
      this.language,
    );
    this.translateButton = button("Translate", () => this.run(), { class: "primary", keys: "Ctrl+Enter" });
    this.stopButton = button("Stop", () => this.stop(), { keys: "Escape", disabled: true });
    this.results = element("div", { class: "translations" });
    this.root = element(
      "div",
      { class: "view" },
      element("label", { class: "field", for: "translate-source" }, "Source"),
      this.area,
      element(
        "div",
        { class: "toolbar", role: "group", "aria-label": "Translation" },
        this.translateButton,
        this.stopButton,
        element("span", { class: "labelled" }, element("label", { for: "translate-n" }, "Translations"), this.number),
        element("span", { class: "labelled" }, element("label", { for: "translate-beam" }, "Beam size"), this.beam),
        this.languageField,
      ),
      this.results,
    );
  }

  show(model) {
    if (this.model !== model) this.results.replaceChildren();
    this.model = model;
    this.language.replaceChildren(...model.languages.map((name) => element("option", { value: name }, name)));
    this.languageField.hidden = !model.languages.length;
  }

  hide() {
    this.stop();
  }

  focus() {
    this.area.focus();
  }

  async run() {
    const text = this.area.value.trim();
    if (text === "") return;
    clearError();
    this.stopButton.disabled = false;
    try {
      const found = await this.latest.run((signal) =>
        translate({
          model: this.model.id,
          text,
          number: Number(this.number.value) || 1,
          beam: Number(this.beam.value) || 1,
          to: this.language.value || undefined,
          signal,
        }),
      );
      this.results.replaceChildren(...found.map((sentence) => createSentence(sentence)));
      announce(count(found.flatMap(({ hypotheses }) => hypotheses).length, "translation"));
    } catch (error) {
      report(error);
    } finally {
      this.stopButton.disabled = !this.latest.isBusy;
    }
  }

  stop() {
    this.latest.abort();
  }
}

function createSentence({ hypotheses }) {
  return element("section", { class: "sentence" }, ...hypotheses.map((each, index) => createHypothesis(each, index)));
}

/** Create a translation above its source; a word, hovered or focused, marks the words that it was aligned with. */
function createHypothesis({ text, score, alignment }, index) {
  const label = index === 0 ? "Best translation" : `Translation ${index + 1}`;
  const scored = score === null ? "" : `score ${format(score)}`;
  const head = element(
    "div",
    { class: "card-head" },
    element("h2", {}, label),
    element("span", { class: "muted" }, scored),
  );
  if (!alignment)
    return element("article", { class: "card hypothesis" }, head, element("p", { class: "card-text", lang: "" }, text));
  const sources = alignment.source.map(createWord);
  const targets = alignment.target.map(createWord);
  connect(sources, targets, alignment.links);
  return element(
    "article",
    { class: "card hypothesis" },
    head,
    text.trim() === ""
      ? element("p", { class: "muted" }, "(empty)")
      : element("p", { class: "words target", role: "group", "aria-label": text }, ...spaced(targets)),
    element("p", { class: "words source muted", role: "group", "aria-label": "Source" }, ...spaced(sources)),
  );
}

function createWord(word) {
  return element("button", { type: "button", class: "word" }, word);
}

function spaced(words) {
  return words.flatMap((word) => [word, " "]);
}

function connect(sources, targets, links) {
  const pairs = links.map(([source, target]) => [sources[source], targets[target]]);
  const all = [...sources, ...targets];
  for (const word of all) {
    const aligned = pairs.filter((pair) => pair.includes(word)).map((pair) => (pair[0] === word ? pair[1] : pair[0]));
    const on = () => {
      for (const each of all) {
        each.classList.toggle("is-hovered", each === word);
        each.classList.toggle("is-aligned", aligned.includes(each));
      }
    };
    const off = () => all.forEach((each) => each.classList.remove("is-hovered", "is-aligned"));
    word.setAttribute(
      "aria-label",
      aligned.length
        ? `${word.textContent}: aligned with ${aligned.map((each) => each.textContent).join(" ")}`
        : word.textContent,
    );
    for (const kind of ["mouseenter", "focus"]) word.addEventListener(kind, on);
    for (const kind of ["mouseleave", "blur"]) word.addEventListener(kind, off);
  }
}
