// Elements of the page. Text is always set as text: nothing that a model or a file says is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element. Attributes that begin with `on` are listeners, `class` and `aria-…` are attributes, false and null
 * are left out, and children are elements or text.
 */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Create a button. `keys` is shown with its title. */
export function button(label, onclick, { keys = "", ...attributes } = {}) {
  const title = keys ? { title: `${label} (${keys})`, "aria-keyshortcuts": keys.replaceAll("Ctrl", "Control") } : {};
  return element("button", { type: "button", onclick, ...title, ...attributes }, label);
}

/** Say something to screen readers, once it is finished. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Show what went wrong in one line. An aborted request is no error. */
export function report(error) {
  if (error.name === "AbortError") return;
  const box = document.getElementById("error");
  if (!(error.fromServer || error instanceof TypeError)) console.error(error);
  box.replaceChildren(
    element("span", {}, error.message),
    element("button", { type: "button", class: "plain", "aria-label": "Dismiss error", onclick: clearError }, "×"),
  );
}

export function clearError() {
  document.getElementById("error").replaceChildren();
}

/** Return a function that calls another once it hasn't been called for some milliseconds. */
export function debounce(call, milliseconds) {
  let timer = 0;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Return the text of a token with spaces and line ends that are seen. */
export function showToken(text) {
  if (text === "") return "∅";
  const symbols = { "\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣", "\x0e": "⇪", "\x0f": "⇧" };
  return text.replace(/[\n\t\r \x0e\x0f]/g, (character) => symbols[character]);
}

const NAMES = { " ": "space", "\n": "line end", "\t": "tab", "": "empty", "\x0e": "capitals", "\x0f": "capital" };

/** Return the text of a token as a screen reader should say it. */
export function sayToken(text) {
  if (text in NAMES) return NAMES[text];
  return text.startsWith(" ") ? `space ${text.trim()}` : text;
}

/** Format a probability as a percentage of three digits. */
export function percent(fraction) {
  const value = 100 * fraction;
  if (value === 0) return "0%";
  if (value < 0.01) return "<0.01%";
  return `${value < 1 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0)}%`;
}

/** Format a number by three or four digits. */
export function format(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(2);
  return size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(3);
}

/** Format a count with its noun. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Offer text as a file. */
export function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
