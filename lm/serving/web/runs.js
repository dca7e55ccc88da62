// Training curves of runs, compared, and live while a run is trained.

import { element, format, report } from "./dom.js";
import { listRuns, runMetrics } from "./endpoints.js";
import { Chart } from "./chart.js";

const INTERVAL = 2000; // milliseconds between updates while a run is trained
const IDLE_INTERVAL = 5000;
const COLOURS = 6;

export class RunsView {
  static id = "runs";
  static label = "Runs";
  static supports = () => true;

  constructor() {
    this.runs = [];
    this.curves = new Map(); // by run: {colour, isShown, last: step, points: by metric}
    this.timer = 0;
    this.controller = new AbortController();
    this.list = element("ul", { class: "run-list" });
    this.empty = element("p", { class: "muted", hidden: true });
    this.unlogged = element("p", { class: "muted", hidden: true }, "The chosen runs have logged nothing yet.");
    this.legend = element(
      "p",
      { class: "legend", hidden: true },
      element("span", { class: "key key-thin" }, "training loss"),
      element("span", { class: "key key-dots" }, "validation loss"),
    );
    const axes = { xLabel: "step" };
    this.charts = [
      {
        chart: new Chart({ title: "Loss", yLabel: "nats/token", ...axes }),
        metrics: [
          { key: "training", suffix: "training", isThin: true },
          { key: "validation", suffix: "validation", hasDots: true },
        ],
      },
      {
        chart: new Chart({ title: "Held-out bits/byte", yLabel: "bits/byte", ...axes }),
        metrics: [{ key: "bitsPerByte", suffix: "", hasDots: true }],
      },
      {
        chart: new Chart({ title: "Learning rate", yLabel: "learning rate", ...axes }),
        metrics: [{ key: "learningRate", suffix: "" }],
      },
    ];
    this.root = element(
      "div",
      { class: "view columns runs" },
      element(
        "div",
        { class: "column-side" },
        element("fieldset", { class: "panel" }, element("legend", {}, "Runs"), this.empty, this.list),
        this.legend,
      ),
      element("div", { class: "column-main charts" }, this.unlogged, ...this.charts.map(({ chart }) => chart.root)),
    );
  }

  show() {
    this.hide();
    this.controller = new AbortController();
    this.#update();
  }

  hide() {
    clearTimeout(this.timer);
    this.controller.abort();
  }

  focus() {
    this.list.querySelector("input")?.focus();
  }

  async #update() {
    const { signal } = this.controller;
    clearTimeout(this.timer);
    try {
      const { folder, runs } = await listRuns({ signal });
      this.runs = runs;
      this.empty.textContent = `No runs in ${folder} yet. They appear here as soon as lm train writes them.`;
      if (!this.curves.size) this.#choose(this.runs[0]);
      for (const run of this.runs.filter(({ isRunning }) => isRunning)) this.#choose(run, { unlessSeen: true });
      this.#drawList();
      await Promise.all(
        [...this.curves].filter(([, { isShown }]) => isShown).map(([name]) => this.#load(name, signal)),
      );
      this.#drawCharts();
    } catch (error) {
      report(error);
    }
    if (signal.aborted) return;
    const isLive = !document.hidden && this.runs.some(({ isRunning }) => isRunning);
    this.timer = setTimeout(() => this.#update(), isLive ? INTERVAL : IDLE_INTERVAL);
  }

  #choose(run, { unlessSeen = false } = {}) {
    if (!run) return;
    const known = this.curves.get(run.name);
    if (known) {
      if (!unlessSeen) known.isShown = true;
      return;
    }
    this.curves.set(run.name, { colour: this.curves.size % COLOURS, last: 0, points: {}, isShown: true });
  }

  /** Load what was logged since the last step that is known; that step again, for it may have been evaluated since. */
  async #load(name, signal) {
    const known = this.curves.get(name);
    const { curves, lastStep } = await runMetrics({ name, from: known.last, signal });
    if (signal.aborted) return;
    if (lastStep < known.last) {
      // resumed from an earlier checkpoint
      Object.assign(known, { last: 0, points: {} });
      await this.#load(name, signal);
      return;
    }
    for (const [metric, points] of Object.entries(curves)) {
      const before = (known.points[metric] ?? []).filter(([step]) => step < points[0][0]);
      known.points[metric] = [...before, ...points];
    }
    known.last = lastStep;
  }

  #drawList() {
    const drawn = JSON.stringify([this.runs, this.runs.map(({ name }) => this.curves.get(name)?.isShown)]);
    if (drawn === this.drawn) return; // a list that is replaced would lose a click
    this.drawn = drawn;
    this.empty.hidden = this.runs.length > 0;
    const focused = document.activeElement?.dataset?.run;
    this.list.replaceChildren(...this.runs.map((run) => this.#createItem(run)));
    if (focused) [...this.list.querySelectorAll("input")].find(({ dataset }) => dataset.run === focused)?.focus();
  }

  #createItem(run) {
    const curves = this.curves.get(run.name);
    const box = element("input", {
      type: "checkbox",
      checked: Boolean(curves?.isShown),
      "data-run": run.name,
      onchange: () => {
        if (box.checked) this.#choose(run);
        else this.curves.get(run.name).isShown = false;
        this.#drawList();
        this.#drawCharts();
        if (box.checked) this.#update();
      },
    });
    const swatch = element("span", {
      class: `run-swatch ${curves?.isShown ? `colour-${curves.colour}` : ""}`,
      "aria-hidden": "true",
    });
    const facts = [
      run.isRunning ? `training, step ${run.step.toLocaleString("en")}` : `${run.step.toLocaleString("en")} steps`,
      run.bitsPerByte === null ? null : `${format(run.bitsPerByte)} bits/byte`,
    ]
      .filter(Boolean)
      .join(", ");
    return element(
      "li",
      {},
      element(
        "label",
        { class: "check" },
        box,
        swatch,
        element(
          "span",
          { class: "run-name" },
          run.name,
          element("span", { class: `muted run-facts ${run.isRunning ? "is-live" : ""}` }, facts),
        ),
      ),
    );
  }

  #drawCharts() {
    const shown = this.runs.map(({ name }) => [name, this.curves.get(name)]).filter(([, curves]) => curves?.isShown);
    const hasPoints = shown.some(([, { points }]) => Object.keys(points).length > 0);
    this.unlogged.hidden = hasPoints || !shown.length;
    this.legend.hidden = !hasPoints;
    for (const { chart, metrics } of this.charts) {
      chart.set(
        shown.flatMap(([name, { colour, points }]) =>
          metrics.map(({ key, suffix, ...look }) => ({
            name: `${name} ${suffix}`.trim(),
            colour,
            points: points[key] ?? [],
            ...look,
          })),
        ),
      );
    }
  }
}
