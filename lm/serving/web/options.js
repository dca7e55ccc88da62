// The options of sampling as labelled controls.

import { element, button } from "./dom.js";

/** Defaults and limits are those of SamplingConfig in lm/config/inference.py; null: off. `range` is that of the slider,
 * and `off` where it is off, if not at its end. */
export const OPTIONS = [
  {
    group: "Distribution",
    options: [
      {
        name: "temperature",
        label: "Temperature",
        default: 0.8,
        minimum: 0,
        maximum: 1000,
        range: [0, 2, 0.05],
        help: "Below 1 prefers likely tokens, above 1 evens them out; 0 always takes the most likely one.",
      },
      {
        name: "top_k",
        label: "Top-k",
        default: null,
        minimum: 0,
        integer: true,
        help: "Sample from the k most likely tokens; 0 is off.",
      },
      {
        name: "top_p",
        label: "Top-p",
        default: null,
        minimum: 0,
        maximum: 1,
        range: [0, 1, 0.01],
        help: "Sample from the fewest tokens that have this probability together.",
      },
      {
        name: "min_p",
        label: "Min-p",
        default: null,
        minimum: 0,
        maximum: 1,
        range: [0, 1, 0.01],
        off: 0,
        help: "Drop tokens less likely than this fraction of the most likely one.",
      },
      {
        name: "typical_p",
        label: "Typical",
        default: null,
        minimum: 0,
        maximum: 1,
        range: [0, 1, 0.01],
        help: "Keep tokens whose surprisal is close to the expected one, up to this probability.",
      },
    ],
  },
  {
    group: "Repetition",
    options: [
      {
        name: "repetition_penalty",
        label: "Repetition penalty",
        default: 1,
        minimum: 0.01,
        maximum: 1000,
        range: [0.5, 2, 0.05],
        help: "Above 1 makes tokens of the prompt and the text less likely.",
      },
      {
        name: "presence_penalty",
        label: "Presence penalty",
        default: 0,
        minimum: -1000,
        maximum: 1000,
        range: [-2, 2, 0.1],
        help: "Subtracted once from the logits of generated tokens.",
      },
      {
        name: "frequency_penalty",
        label: "Frequency penalty",
        default: 0,
        minimum: -1000,
        maximum: 1000,
        range: [-2, 2, 0.1],
        help: "Subtracted for each time that a token was generated.",
      },
      {
        name: "no_repeat_ngram_size",
        label: "No repeated n-gram",
        default: null,
        minimum: 1,
        integer: true,
        help: "Never repeat a sequence of this many tokens.",
      },
      {
        name: "logit_bias",
        label: "Logit bias",
        default: [],
        lines: true,
        placeholder: "TOKEN=X, one a line",
        help: "Added to the logit of a token (ID or text); -inf bans it.",
      },
    ],
  },
  {
    group: "Length and seed",
    options: [
      {
        name: "max_tokens",
        label: "Maximum tokens",
        default: null,
        minimum: 1,
        integer: true,
        placeholder: "200, of a chat all",
        help: "Tokens to generate at most.",
      },
      {
        name: "min_tokens",
        label: "Minimum tokens",
        default: 0,
        minimum: 0,
        integer: true,
        help: "The text doesn't end before this many tokens.",
      },
      {
        name: "ignore_eos",
        label: "Ignore end of text",
        default: false,
        help: "Continue after end-of-text and end-of-turn tokens.",
      },
      {
        name: "stop",
        label: "Stop at",
        default: [],
        lines: true,
        placeholder: "one a line",
        help: "End before one of these texts.",
      },
      {
        name: "seed",
        label: "Seed",
        default: null,
        minimum: 0,
        integer: true,
        placeholder: "random",
        help: "The same seed gives the same text.",
      },
      {
        name: "token_healing",
        label: "Token healing",
        default: true,
        help: "Tokenise the last word of the prompt together with what follows it.",
      },
    ],
  },
];

const ALL = OPTIONS.flatMap(({ options }) => options);
const LATER = ["max_tokens", "stop", "seed"]; // have no effect on the distribution of the next token
let created = 0;

/** Return options without the effect of one of them on the next token; null if it has none. */
export function withoutOption(options, name) {
  if (LATER.includes(name)) return null;
  const neutral = name === "temperature" ? 1 : ALL.find((option) => option.name === name).default;
  const { [name]: value, ...others } = options;
  if (value === undefined || value === neutral) return null;
  return neutral === null || Array.isArray(neutral) ? others : { ...others, [name]: neutral };
}

/**
 * The controls of some options. `onchange` is called when one has changed, and `onfocus` with the `{name, label}` of the
 * one that has the focus.
 */
export class SamplingOptions {
  constructor({ names = ALL.map(({ name }) => name), values = {}, onchange = () => {}, onfocus = () => {} } = {}) {
    this.controls = new Map();
    this.prefix = `options-${(created += 1)}`;
    this.onchange = onchange;
    this.onfocus = onfocus;
    const groups = OPTIONS.map(({ group, options }, index) => {
      const shown = options.filter(({ name }) => names.includes(name));
      if (!shown.length) return null;
      const rows = shown.map((option) =>
        this.#createRow({ ...option, initial: values[option.name] ?? option.default }),
      );
      return element("details", { class: "options", open: index === 0 }, element("summary", {}, group), ...rows);
    });
    this.root = element(
      "section",
      { class: "panel options-panel", "aria-label": "Sampling options" },
      element(
        "div",
        { class: "panel-head" },
        element("h2", {}, "Options"),
        button("Reset", () => this.reset()),
      ),
      ...groups.filter(Boolean),
    );
  }

  /** Return the values that are not off, by name. */
  get values() {
    const values = {};
    for (const [name, { read }] of this.controls) {
      const value = read();
      if (value !== null && !(Array.isArray(value) && !value.length)) values[name] = value;
    }
    return values;
  }

  reset() {
    for (const { write, option } of this.controls.values()) write(option.initial);
    this.onchange();
  }

  #createRow(option) {
    const id = `${this.prefix}-${option.name}`;
    const isSwitch = typeof option.default === "boolean";
    const changed = () => {
      this.#mark(option, row);
      this.onfocus(option);
      this.onchange();
    };
    const control = isSwitch
      ? createSwitch(id, changed)
      : option.lines
        ? createLines(id, option, changed)
        : createNumber(id, option, changed);
    const help = element("p", { class: "option-help", id: `${id}-help` }, option.help);
    const label = element("label", { for: id }, option.label);
    const row = element(
      "div",
      { class: "option", onfocusin: () => this.onfocus(option) },
      label,
      ...control.parts,
      help,
    );
    const write = (value) => {
      control.write(value);
      this.#mark(option, row);
    };
    this.controls.set(option.name, { option, read: control.read, write });
    write(option.initial);
    return row;
  }

  #mark(option, row) {
    const value = this.controls.get(option.name)?.read() ?? option.initial;
    row.classList.toggle("is-changed", JSON.stringify(value) !== JSON.stringify(option.initial));
  }
}

function createSwitch(id, changed) {
  const box = element("input", { type: "checkbox", id, "aria-describedby": `${id}-help`, onchange: changed });
  return { parts: [box], read: () => box.checked, write: (value) => (box.checked = value) };
}

function createLines(id, option, changed) {
  const area = element("textarea", {
    id,
    rows: 2,
    placeholder: option.placeholder,
    spellcheck: "false",
    "aria-describedby": `${id}-help`,
    oninput: changed,
  });
  const read = () =>
    area.value
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => line.replaceAll("\\n", "\n"));
  return { parts: [area], read, write: (value) => (area.value = value.join("\n")) };
}

/** A field for a number, with a slider for the mouse; the keyboard has the arrow keys of the field. */
function createNumber(id, option, changed) {
  const [low, high, step] = option.range ?? [];
  const off = option.off ?? high;
  const field = element("input", {
    type: "number",
    id,
    min: option.minimum,
    max: option.maximum,
    step: option.integer ? 1 : "any",
    placeholder: option.placeholder ?? (option.default === null ? "off" : ""),
    "aria-describedby": `${id}-help`,
    oninput: () => {
      if (slider) slider.value = field.value === "" ? off : field.value;
      changed();
    },
  });
  if (option.range) {
    field.addEventListener("keydown", (event) => {
      const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const at = field.value === "" ? off : Number(field.value);
      const next = Math.min(Math.max(at + way * step, option.minimum), option.maximum);
      write(Number(next.toFixed(4)));
      changed();
    });
  }
  const slider =
    option.range &&
    element("input", {
      type: "range",
      min: low,
      max: high,
      step,
      tabindex: -1,
      "aria-hidden": "true",
      oninput: () => {
        field.value = slider.value;
        changed();
      },
    });
  const read = () => (field.value === "" ? option.default : Number(field.value)); // the server explains its limits
  const write = (value) => {
    field.value = value ?? "";
    if (slider) slider.value = value ?? off;
  };
  return { parts: slider ? [slider, field] : [field], read, write };
}
