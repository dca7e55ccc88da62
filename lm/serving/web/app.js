// The page: its views, the model that is chosen, the colours, and the keys.

import { announce, clearError, element, report } from "./dom.js";
import { listModels } from "./endpoints.js";
import { AttentionView } from "./attention.js";
import { ChatView } from "./chat.js";
import { CompleteView } from "./complete.js";
import { ScoreView } from "./score.js";
import { TranslateView } from "./translate.js";

const VIEWS = [CompleteView, ScoreView, AttentionView, TranslateView, ChatView];
const THEMES = { system: "◐", light: "☀", dark: "☾" };
const SHORTCUTS = [
  ["Ctrl+Enter", "Generate, translate or send"],
  ["Escape", "Stop"],
  ["Ctrl+Z, Ctrl+Shift+Z", "Undo, redo"],
  ["1 – 5", "Choose a view"],
  ["/", "Go to the text"],
  ["m", "Go to the choice of models"],
  ["d", "Change colours: system, light, dark"],
  ["?", "Show these shortcuts"],
];

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const chooser = document.getElementById("model");
const created = new Map();
let models = [];
let current = null;

/** Return the views that the models of this server have a use for. */
function availableViews() {
  return VIEWS.filter((view) => models.some(view.supports));
}

/** Show the view and the model that the address names: #VIEW or #VIEW/MODEL. */
function route() {
  const [id, named] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const views = availableViews();
  const view = views.find((each) => each.id === id) ?? views[0];
  if (!view) return;
  const usable = models.filter(view.supports);
  const wanted =
    [named, chooser.value].map((name) => usable.find((model) => model.id === name)).find(Boolean) ?? usable[0];
  chooser.replaceChildren(...usable.map((model) => element("option", { value: model.id }, model.id)));
  if (wanted) chooser.value = wanted.id;
  chooser.parentElement.hidden = !wanted;
  if (current && current.constructor !== view) current.hide();
  if (!created.has(view)) created.set(view, new view());
  clearError();
  if (current?.constructor !== view) {
    current = created.get(view);
    main.replaceChildren(current.root);
  }
  current.show(wanted);
  document.title = `${view.label} – lm`;
  for (const link of tabs.querySelectorAll("a")) {
    if (link.dataset.view === view.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function drawTabs() {
  tabs.replaceChildren(
    ...availableViews().map((view) => element("a", { href: `#${view.id}`, "data-view": view.id }, view.label)),
  );
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // storage is switched off
  }
}

function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const label = `Colours: ${theme}`;
  const control = document.getElementById("theme");
  control.textContent = THEMES[theme];
  control.setAttribute("aria-label", label);
  control.title = `${label} (d)`;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % names.length];
  setTheme(theme);
  remember("theme", theme);
  announce(`Colours: ${theme}`);
}

function isTyping(target) {
  return target.matches("input:not([type=checkbox], [type=range]), textarea, select, [contenteditable]");
}

function onKey(event) {
  if (document.querySelector("dialog[open]") || event.isComposing) return;
  const isCommand = event.ctrlKey || event.metaKey;
  if (event.key === "Enter" && isCommand) {
    event.preventDefault();
    current?.run?.();
  } else if (event.key === "Escape") {
    current?.stop?.();
  } else if (isCommand && !event.altKey && event.key.toLowerCase() === "z" && !isTyping(event.target)) {
    event.preventDefault();
    if (event.shiftKey) current?.redo?.();
    else current?.undo?.();
  } else if (!isCommand && !event.altKey && !isTyping(event.target) && recall("single-keys") !== "off") {
    if (onSingleKey(event.key)) event.preventDefault();
  }
}

function onSingleKey(key) {
  const links = tabs.querySelectorAll("a");
  if (key >= "1" && key <= "9" && links[key - 1]) {
    links[key - 1].click();
    links[key - 1].focus();
  } else if (key === "/") current?.focus();
  else if (key === "m") chooser.focus();
  else if (key === "d") nextTheme();
  else if (key === "?") showHelp();
  else return false;
  return true;
}

function showHelp() {
  document.getElementById("single-keys").checked = recall("single-keys") !== "off";
  document.getElementById("help").showModal();
}

function prepareHelp() {
  document
    .getElementById("shortcuts")
    .replaceChildren(
      ...SHORTCUTS.map(([keys, what]) =>
        element(
          "div",
          {},
          element("dt", {}, ...keys.split(", ").flatMap((key, index) => [index ? " " : "", element("kbd", {}, key)])),
          element("dd", {}, what),
        ),
      ),
    );
  document
    .getElementById("single-keys")
    .addEventListener("change", (event) => remember("single-keys", event.target.checked ? "on" : "off"));
  document.getElementById("help-button").addEventListener("click", showHelp);
}

async function start() {
  setTheme(["light", "dark"].includes(recall("theme")) ? recall("theme") : "system");
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash of the address names the view
    main.focus();
  });
  prepareHelp();
  document.addEventListener("keydown", onKey);
  chooser.addEventListener("change", () => {
    location.hash = `${current.constructor.id}/${encodeURIComponent(chooser.value)}`;
  });
  window.addEventListener("hashchange", route);
  try {
    models = await listModels();
    drawTabs();
    route();
  } catch (error) {
    report(error);
  }
}

start();
