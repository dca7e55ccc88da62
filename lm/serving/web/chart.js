// A line chart in SVG with axes, units and a readout that mouse and arrow keys move.

import { element, format, svg } from "./dom.js";

const HEIGHT = 240;
const MARGIN = { top: 10, right: 14, bottom: 42, left: 64 };

/** Series are `{name, colour, isThin, hasDots, points: [[x, y], …]}`, ordered by x; `colour` is a number of the palette. */
export class Chart {
  constructor({ title, xLabel, yLabel }) {
    this.labels = { title, xLabel, yLabel };
    this.series = [];
    this.width = 0;
    this.at = null;
    this.image = svg("svg", { class: "chart", height: HEIGHT, role: "img", tabindex: 0 });
    this.readout = element("p", { class: "readout muted", "aria-live": "off" });
    this.root = element(
      "figure",
      { class: "panel" },
      element("figcaption", {}, element("h2", {}, title)),
      this.image,
      this.readout,
    );
    this.image.addEventListener("pointermove", (event) => this.#hover(event));
    this.image.addEventListener("pointerleave", () => this.#show(null));
    this.image.addEventListener("blur", () => this.#show(null));
    this.image.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.abs(contentRect.width - this.width) > 1) {
        this.width = contentRect.width; // that of the figure without its padding
        this.#draw();
      }
    }).observe(this.root);
  }

  set(series) {
    this.series = series.filter(({ points }) => points.length);
    this.root.hidden = !this.series.length;
    this.#draw();
  }

  #draw() {
    if (!this.width || !this.series.length) return;
    const { title, xLabel, yLabel } = this.labels;
    const points = this.series.flatMap((each) => each.points);
    const right = this.width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const xs = chooseTicks(...extent(points.map(([x]) => x)), Math.max(3, Math.floor(this.width / 110)), true);
    const ys = chooseTicks(...extent(points.map(([, y]) => y)), 5);
    this.x = scale(xs.low, xs.high, MARGIN.left, right);
    this.y = scale(ys.low, ys.high, bottom, MARGIN.top);
    const parts = [];
    for (const value of ys.ticks) {
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: this.y(value), y2: this.y(value) }));
      parts.push(
        svg(
          "text",
          { class: "tick", x: MARGIN.left - 8, y: this.y(value) + 4, "text-anchor": "end" },
          label(value, ys.step),
        ),
      );
    }
    for (const value of xs.ticks) {
      parts.push(
        svg(
          "text",
          { class: "tick", x: this.x(value), y: bottom + 18, "text-anchor": "middle" },
          label(value, xs.step),
        ),
      );
    }
    parts.push(svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
    parts.push(
      svg(
        "text",
        { class: "axis-label", x: (MARGIN.left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
        xLabel,
      ),
    );
    parts.push(
      svg(
        "text",
        {
          class: "axis-label",
          x: 0,
          y: 0,
          "text-anchor": "middle",
          transform: `translate(14 ${(MARGIN.top + bottom) / 2}) rotate(-90)`,
        },
        yLabel,
      ),
    );
    for (const { points: all, colour, isThin, hasDots } of this.series) {
      const shown = reduce(all, right - MARGIN.left);
      const path = shown
        .map(([x, y], index) => `${index ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`)
        .join("");
      parts.push(svg("path", { class: `line colour-${colour} ${isThin ? "is-thin" : ""}`, d: path }));
      if (hasDots && all.length <= 200) {
        parts.push(
          ...all.map(([x, y]) =>
            svg("circle", { class: `dot colour-${colour}`, cx: this.x(x), cy: this.y(y), r: 2.5 }),
          ),
        );
      }
    }
    this.cursor = svg("g", { class: "cursor" });
    this.image.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.image.setAttribute("aria-label", `${title}, ${yLabel} by ${xLabel}. ${this.series.map(describe).join(". ")}`);
    this.image.replaceChildren(...parts, this.cursor);
    this.#show(this.at);
  }

  #hover(event) {
    const box = this.image.getBoundingClientRect();
    this.readout.setAttribute("aria-live", "off");
    this.#show(this.x?.invert(event.clientX - box.left) ?? null);
  }

  #move(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !this.x) return;
    event.preventDefault();
    const [low, high] = extent(this.series.flatMap(({ points }) => points.map(([x]) => x)));
    const at = this.at ?? (way > 0 ? low : high);
    this.readout.setAttribute("aria-live", "polite");
    this.#show(this.at === null ? at : at + (way * (high - low)) / 40);
  }

  /** Show the values at a step. */
  #show(at) {
    if (!this.x) return;
    const [low, high] = extent(this.series.flatMap(({ points }) => points.map(([x]) => x)));
    this.at = at === null ? null : Math.min(Math.max(at, low), high);
    this.cursor.replaceChildren();
    if (this.at === null) {
      this.readout.textContent = "\u00a0";
      return;
    }
    const found = this.series.map(({ name, colour, points }) => ({ name, colour, point: nearest(points, this.at) }));
    const closest = found.map(({ point }) => point[0]).sort((a, b) => Math.abs(a - this.at) - Math.abs(b - this.at))[0];
    const drawn = found.map(({ colour, point: [x, y] }) =>
      svg("circle", { class: `dot colour-${colour}`, cx: this.x(x), cy: this.y(y), r: 4 }),
    );
    this.cursor.append(
      svg("line", {
        class: "axis",
        x1: this.x(closest),
        x2: this.x(closest),
        y1: MARGIN.top,
        y2: HEIGHT - MARGIN.bottom,
      }),
      ...drawn,
    );
    this.readout.textContent =
      `${this.labels.xLabel} ${closest.toLocaleString("en")}: ` +
      found.map(({ name, point }) => `${name} ${format(point[1])}`).join(", ");
  }
}

function describe({ name, points }) {
  const [x, y] = points.at(-1);
  return `${name}: ${format(y)} at ${x}`;
}

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function scale(low, high, from, to) {
  const place = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  place.invert = (at) => low + ((at - from) / (to - from)) * (high - low);
  return place;
}

/** Choose round values for an axis; `tight` ends it at the data. */
function chooseTicks(low, high, number, tight = false) {
  if (low === high) {
    const around = Math.abs(low) / 2 || 1;
    if (tight) high = low + around;
    else [low, high] = [low - around, high + around];
  }
  const rough = (high - low) / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
  if (!tight) [low, high] = [Math.floor(low / step) * step, Math.ceil(high / step) * step];
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) ticks.push(value);
  return { low, high, step, ticks };
}

function label(value, step) {
  if (Math.abs(value) < step / 1e6) return "0";
  if (Math.abs(value) >= 1e-3)
    return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, Math.ceil(-Math.log10(step))) });
  return value.toExponential(1).replace(".0", "");
}

/** Average neighbouring points, so that a chart has at most one for each pixel. */
function reduce(points, pixels) {
  const size = Math.ceil(points.length / Math.max(pixels, 50));
  if (size <= 1) return points;
  const found = [];
  for (let at = 0; at < points.length; at += size) {
    const some = points.slice(at, at + size);
    found.push([0, 1].map((axis) => some.reduce((sum, point) => sum + point[axis], 0) / some.length));
  }
  return found;
}

function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? points[low - 1] : points[low];
}
