// A text area with colours under its text: a layer behind it holds the same text, with marked ranges.

import { button, element } from "./dom.js";

const PAUSE = 800; // milliseconds after which typing is a new step of undo
const MOST_STEPS = 500;

/**
 * An editor. `oninput` is called when the text has changed, in whatever way; `onselect` when the caret has moved.
 * Marks are ranges `{start, end, class}` of UTF-16 offsets. Generated ranges move with the text around them.
 */
export class Editor {
  constructor({ label, placeholder = "", rows = 6, oninput = () => {}, onselect = () => {}, describedBy = null }) {
    this.layer = element("div", { class: "editor-layer", "aria-hidden": "true" });
    this.area = element("textarea", {
      "aria-label": label,
      "aria-describedby": describedBy,
      placeholder,
      rows,
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
    });
    this.root = element("div", { class: "editor" }, this.layer, this.area);
    this.undoButton = button("Undo", () => this.undo(), { keys: "Ctrl+Z", disabled: true });
    this.redoButton = button("Redo", () => this.redo(), { keys: "Ctrl+Shift+Z", disabled: true });
    this.oninput = oninput;
    this.marks = [];
    this.generated = [];
    this.steps = [{ text: "", caret: 0, generated: [] }];
    this.at = 0;
    this.lastTyped = 0;
    this.before = "";
    this.area.addEventListener("input", () => this.#typed());
    this.area.addEventListener("beforeinput", (event) => this.#beforeInput(event));
    this.area.addEventListener("keydown", (event) => this.#keyDown(event));
    for (const kind of ["keyup", "click", "focus"]) this.area.addEventListener(kind, () => onselect(this.caret));
    this.#draw();
  }

  get text() {
    return this.area.value;
  }

  get caret() {
    return this.area.selectionStart;
  }

  get canUndo() {
    return this.at > 0;
  }

  get canRedo() {
    return this.at < this.steps.length - 1;
  }

  /** Enable the buttons of undo and redo, unless the view is busy. */
  updateButtons(isBusy = false) {
    this.undoButton.disabled = isBusy || !this.canUndo;
    this.redoButton.disabled = isBusy || !this.canRedo;
  }

  /** Replace the whole text, as one step of undo. */
  replace(text, { generated = [], caret = text.length } = {}) {
    this.#set({ text, caret, generated });
    this.#record();
    this.oninput();
  }

  /** Begin a generation: text appended until `endGeneration` is one step of undo. */
  beginGeneration() {
    this.area.readOnly = true;
    this.start = this.text.length;
  }

  /** Return the text with more after it. A casing mark at its end goes: what follows has its capitals. */
  followedBy(text) {
    return text ? this.text.replace(/[\x0e\x0f]$/, "") + text : this.text;
  }

  append(text) {
    const follows = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < 60;
    const before = this.generated.filter((range) => range.end <= this.start);
    const all = this.followedBy(text);
    this.#set({ text: all, caret: all.length, generated: [...before, { start: this.start, end: all.length }] });
    if (follows) this.root.scrollTop = this.root.scrollHeight;
  }

  endGeneration() {
    this.area.readOnly = false;
    if (this.text.length > this.start) this.#record();
    this.oninput();
  }

  undo() {
    if (this.canUndo) this.#restore(this.at - 1);
  }

  redo() {
    if (this.canRedo) this.#restore(this.at + 1);
  }

  /** Draw marks under the text, until it changes. */
  mark(marks) {
    this.marks = marks;
    this.#draw();
  }

  focus() {
    this.area.focus({ preventScroll: true });
  }

  #restore(at) {
    if (this.area.readOnly) return;
    this.at = at;
    this.lastTyped = 0;
    this.#set(this.steps[at]);
    this.oninput();
  }

  #set({ text, caret, generated }) {
    if (text !== this.area.value) {
      this.marks = keepMarks(this.marks, this.area.value, text);
      this.area.value = text;
    }
    this.generated = generated;
    this.area.setSelectionRange(caret, caret);
    this.before = text;
    this.#draw();
  }

  #typed() {
    const text = this.text;
    this.generated = moveRanges(this.generated, this.before, text);
    this.marks = keepMarks(this.marks, this.before, text);
    this.before = text;
    this.#draw();
    const now = performance.now();
    if (now - this.lastTyped < PAUSE && !this.canRedo && this.at > 0) this.at -= 1;
    this.lastTyped = now;
    this.#record();
    this.oninput();
  }

  #record() {
    this.steps.length = this.at + 1;
    this.steps.push({ text: this.text, caret: this.caret, generated: this.generated });
    if (this.steps.length > MOST_STEPS) this.steps.shift();
    this.at = this.steps.length - 1;
  }

  #beforeInput(event) {
    if (event.inputType === "historyUndo" || event.inputType === "historyRedo") {
      event.preventDefault();
      if (event.inputType === "historyUndo") this.undo();
      else this.redo();
    }
  }

  #keyDown(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "z" || (key === "y" && !event.metaKey)) {
      event.preventDefault();
      if (key === "z" && !event.shiftKey) this.undo();
      else this.redo();
    }
  }

  #draw() {
    const text = this.text;
    const pieces = [];
    const ranges = this.marks.length ? this.marks : this.generated.map((range) => ({ ...range, class: "generated" }));
    let at = 0;
    for (const { start, end, class: name } of ranges) {
      if (start > at) pieces.push(text.slice(at, start));
      pieces.push(element("mark", { class: name }, text.slice(start, end)));
      at = end;
    }
    this.layer.replaceChildren(...pieces, `${text.slice(at)}\n`); // a last line end of its own has no height
  }
}

/** Return where two texts differ: the length of what they have in common at the start and at the end. */
function commonEnds(before, after) {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  return [start, end];
}

/** Return ranges of a text as they are after an edit; what was typed inside of one is not part of it. */
export function moveRanges(ranges, before, after) {
  const [start, end] = commonEnds(before, after);
  const cut = before.length - end; // of the old text, [start, cut) was replaced
  const shift = after.length - before.length;
  const moved = [];
  for (const range of ranges) {
    if (range.start < start) moved.push({ ...range, end: Math.min(range.end, start) });
    if (range.end > cut) moved.push({ ...range, start: Math.max(range.start, cut) + shift, end: range.end + shift });
  }
  return moved.filter((range) => range.end > range.start);
}

/** Return the marks that an edit leaves: those before it. */
function keepMarks(marks, before, after) {
  const [start] = commonEnds(before, after);
  return marks.filter((mark) => mark.end <= start);
}
