// Attention: where the heads of each layer look from a token, as heat under the tokens and as small matrices.

import { announce, clearError, debounce, element, percent, report, sayToken, showToken } from "./dom.js";
import { Latest } from "./api.js";
import { attention } from "./endpoints.js";

const DELAY = 300;
const LEVELS = 8;
const MEAN = "mean";
const EXAMPLE = "The cat sat on the mat because it was tired.";

export class AttentionView {
  static id = "attention";
  static label = "Attention";
  static supports = (model) => model.attends;

  constructor() {
    this.model = null;
    this.found = null;
    this.query = 0;
    this.latest = new Latest();
    this.update = debounce(() => this.run(), DELAY);
    this.area = element("textarea", {
      id: "attention-text",
      rows: 2,
      spellcheck: "false",
      oninput: () => this.update(),
      class: "plain-text",
    });
    this.area.value = EXAMPLE;
    const choose = () => this.#draw();
    this.layer = element("select", { id: "attention-layer", onchange: choose });
    this.head = element("select", { id: "attention-head", onchange: choose });
    this.tokens = element("div", {
      class: "attention-tokens",
      role: "listbox",
      "aria-label": "Tokens: choose the one that looks",
      "aria-describedby": "attention-help",
    });
    this.tokens.addEventListener("keydown", (event) => this.#move(event));
    this.strongest = element("p", { class: "muted attention-strongest" });
    this.maps = element("div", { class: "maps", role: "group", "aria-label": "Heads of all layers" });
    this.root = element(
      "div",
      { class: "view" },
      element("label", { class: "field", for: "attention-text" }, "Text"),
      this.area,
      element(
        "div",
        { class: "toolbar", role: "group", "aria-label": "Layer and head" },
        element("span", { class: "labelled" }, element("label", { for: "attention-layer" }, "Layer"), this.layer),
        element("span", { class: "labelled" }, element("label", { for: "attention-head" }, "Head"), this.head),
      ),
      element(
        "p",
        { class: "muted", id: "attention-help" },
        "Hover a token, or move between tokens by the arrow keys: the tokens that it attends to are coloured.",
      ),
      this.tokens,
      this.strongest,
      element(
        "section",
        { class: "panel", "aria-labelledby": "maps-title" },
        element("h2", { id: "maps-title" }, "All heads"),
        element(
          "p",
          { class: "muted" },
          "Rows are queries, columns are keys. Choose a head to show it above.",
        ),
        this.maps,
      ),
    );
  }

  show(model) {
    if (this.model !== model) this.found = null;
    this.model = model;
    if (!this.found) this.run();
  }

  hide() {
    this.latest.abort();
  }

  focus() {
    this.area.focus();
  }

  async run() {
    this.update.cancel();
    const text = this.area.value;
    if (text === "") return;
    try {
      const found = await this.latest.run((signal) =>
        attention({ model: this.model.id, text, to: this.model.languages[0], signal }),
      );
      clearError();
      this.found = found;
      this.query = found.queries.length - 1;
      this.#fillChoices();
      this.#drawTokens();
      this.#drawMaps();
      this.#draw();
    } catch (error) {
      report(error);
    }
  }

  stop() {
    this.latest.abort();
  }

  #fillChoices() {
    const { weights } = this.found;
    fillSelect(this.layer, weights.length, "Mean of all layers");
    fillSelect(this.head, weights[0].length, "Mean of all heads");
  }

  /** Return the matrix of weights (queries, keys) that is chosen. */
  #chosenWeights() {
    const { weights } = this.found;
    const layers = this.layer.value === MEAN ? weights : [weights[Number(this.layer.value)]];
    const heads = layers.flatMap((layer) => (this.head.value === MEAN ? layer : [layer[Number(this.head.value)]]));
    return average(heads);
  }

  #drawTokens() {
    const { queries } = this.found;
    this.tokens.replaceChildren(
      ...queries.map((token, index) => {
        const look = () => this.#look(index);
        return element(
          "span",
          {
            class: "attention-token",
            role: "option",
            tabindex: index === this.query ? 0 : -1,
            "aria-selected": "false",
            "aria-label": sayToken(token),
            onmouseenter: look,
            onfocus: look,
            onclick: look,
          },
          showToken(token),
        );
      }),
    );
  }

  #look(index) {
    this.query = index;
    this.#draw();
  }

  #move(event) {
    const last = this.found.queries.length - 1;
    const next = { ArrowRight: this.query + 1, ArrowLeft: this.query - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.tokens.children[Math.min(Math.max(next, 0), last)].focus();
  }

  #draw() {
    if (!this.found) return;
    const { queries, keys } = this.found;
    const row = this.#chosenWeights()[this.query];
    const largest = Math.max(...row, 1e-9);
    [...this.tokens.children].forEach((token, index) => {
      const weight = index < row.length ? row[index] : 0;
      const level = weight > 0 ? Math.min(Math.floor((weight / largest) * LEVELS), LEVELS - 1) : 0;
      token.className = `attention-token heat-${level}${index === this.query ? " is-query" : ""}`;
      token.tabIndex = index === this.query ? 0 : -1;
      token.setAttribute("aria-selected", String(index === this.query));
      token.title = percent(weight);
    });
    const order = row
      .map((weight, index) => [weight, index])
      .sort((a, b) => b[0] - a[0])
      .slice(0, 4);
    const list = order
      .filter(([weight]) => weight > 0)
      .map(([weight, index]) => `${showToken(keys[index])} ${percent(weight)}`);
    this.strongest.textContent = `${showToken(queries[this.query])} attends to ${list.join(", ")}`;
    if (this.tokens.contains(document.activeElement))
      announce(
        `Attends to ${order.map(([weight, index]) => `${sayToken(keys[index])} ${percent(weight)}`).join(", ")}`,
      );
    for (const map of this.maps.querySelectorAll("button")) {
      const isChosen =
        [MEAN, map.dataset.layer].includes(this.layer.value) && [MEAN, map.dataset.head].includes(this.head.value);
      map.setAttribute("aria-pressed", String(isChosen));
    }
  }

  #drawMaps() {
    const { weights } = this.found;
    this.maps.replaceChildren(
      ...weights.map((heads, layer) =>
        element(
          "div",
          { class: "map-row" },
          element("span", { class: "map-label muted" }, `Layer ${layer + 1}`),
          ...heads.map((matrix, head) => this.#createMap(matrix, layer, head)),
        ),
      ),
    );
  }

  #createMap(matrix, layer, head) {
    const canvas = element("canvas", { width: matrix[0].length, height: matrix.length, "aria-hidden": "true" });
    paint(canvas, matrix);
    return element(
      "button",
      {
        type: "button",
        class: "map",
        "data-layer": layer,
        "data-head": head,
        "aria-pressed": "false",
        "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
        title: `Layer ${layer + 1}, head ${head + 1}`,
        onclick: () => {
          this.layer.value = layer;
          this.head.value = head;
          this.#draw();
        },
      },
      canvas,
    );
  }
}

function fillSelect(select, number, mean) {
  const before = select.value;
  const each = Array.from({ length: number }, (_, index) =>
    element("option", { value: String(index) }, String(index + 1)),
  );
  select.replaceChildren(element("option", { value: MEAN }, mean), ...each);
  select.value = [...select.options].some(({ value }) => value === before) ? before : MEAN;
}

function average(matrices) {
  return matrices[0].map((row, query) =>
    row.map((_, key) => matrices.reduce((sum, matrix) => sum + matrix[query][key], 0) / matrices.length),
  );
}

/** Draw a matrix: a pixel is a weight, relative to the largest of its row. */
function paint(canvas, matrix) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  matrix.forEach((row, query) => {
    const largest = Math.max(...row, 1e-9);
    row.forEach((weight, key) => {
      image.data.set([200, 90, 20, Math.round((255 * weight) / largest)], 4 * (query * canvas.width + key));
    });
  });
  context.putImageData(image, 0, 0);
}
