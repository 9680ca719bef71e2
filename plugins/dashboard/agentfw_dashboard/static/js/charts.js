// Charts by uPlot (vendor/), in the style sheet's colours, as wide as their place, with what the pointer is at in a box beside it.

import { el, setAttribute, setText } from "./dom.js";
import { clock } from "./format.js";
import { colour, onTheme } from "./theme.js";

const uPlot = globalThis.uPlot;
const FONT = "11px system-ui, sans-serif";

const POINTS = 120;
/** Steps of an axis of whole numbers. */
const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power));

/** Of columns [times, values, ...] so few points that a line can be read: means of as many seconds as it takes. */
export function thinned(columns, most = POINTS) {
  const length = columns[0].length;
  const step = Math.ceil(length / most);
  if (step <= 1) return columns;
  // Groups begin at the same seconds whatever has been added since: a line moves along and does not flicker.
  const groups = [];
  for (let at = 0; at < length; at += 1) {
    const group = Math.floor(columns[0][at] / step);
    if (groups.at(-1)?.group === group) groups.at(-1).end = at + 1;
    else groups.push({ group, begin: at, end: at + 1 });
  }
  if (groups.length > 1 && groups.at(-1).end - groups.at(-1).begin < step) groups.pop();
  return columns.map((column, which) =>
    groups.map(({ begin, end }) => {
      if (which === 0) return column[end - 1];
      let sum = 0;
      let known = 0;
      for (let at = begin; at < end; at += 1) {
        if (column[at] === null) continue; // not measured then: a gap in the line
        sum += column[at];
        known += 1;
      }
      return known ? sum / known : null;
    }),
  );
}

class Chart {
  /** `summary(data)`: what the chart says, for who cannot see it. */
  constructor(height, label, summary) {
    this.height = height;
    this.label = label;
    this.summary = summary;
    this.data = null;
    this.plot = null;
    this.tip = el("div.tip", { hidden: true, "aria-hidden": "true" });
    this.node = el("div.chart", { role: "img", "aria-label": label });
    this.node.style.height = `${height}px`;
    this.node.append(this.tip);
    this.watcher = new ResizeObserver(() => this.#resize());
    this.watcher.observe(this.node);
    this.forget = onTheme(() => this.#again());
  }

  close() {
    this.watcher.disconnect();
    this.forget();
    this.plot?.destroy();
    this.plot = null;
  }

  set(data) {
    this.data = data;
    setAttribute(this.node, "aria-label", `${this.label}: ${this.summary(data)}`);
    if (this.plot) this.plot.setData(data);
    else this.#again();
  }

  #resize() {
    const width = this.node.clientWidth;
    if (this.plot === null) this.#again();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  #again() {
    if (this.data === null || !this.node.clientWidth) return;
    this.plot?.destroy();
    const options = this.options();
    this.plot = new uPlot(
      {
        width: this.node.clientWidth,
        height: this.height,
        legend: { show: false },
        hooks: { setCursor: [(plot) => this.#point(plot)] },
        ...options,
        cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: 6 }, ...options.cursor },
      },
      this.data,
      this.node,
    );
  }

  #point(plot) {
    const { idx, left } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) {
      this.tip.hidden = true;
      return;
    }
    const lines = this.tell(idx);
    while (this.tip.children.length < lines.length) this.tip.append(el("div", {}, el("i"), el("span")));
    while (this.tip.children.length > lines.length) this.tip.lastChild.remove();
    lines.forEach(([shade, text], at) => {
      const [mark, words] = this.tip.children[at].children;
      mark.hidden = !shade;
      if (shade) mark.style.background = colour(shade);
      setText(words, text);
    });
    this.tip.hidden = false;
    const right = left > plot.over.clientWidth / 2;
    this.tip.classList.toggle("left", right);
    const at = plot.over.offsetLeft + left;
    this.tip.style.transform = `translateX(${right ? `calc(${at - 10}px - 100%)` : `${at + 10}px`})`;
  }
}

function axis(extra) {
  return {
    stroke: colour("muted"),
    font: FONT,
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { show: false },
    gap: 6,
    ...extra,
  };
}

/** Lines over time. `series`: [{label, colour, format, fill}]; `bare`: no axes; `whole`: there are no parts of one. Data: [times, values, ...]. */
export class Lines extends Chart {
  constructor({ label, height, series, bare = false, sync = "time", format = series[0].format, least = 1, whole = false }) {
    super(height, label, (data) =>
      series.map((each, at) => `${each.label} ${data[at + 1].length ? each.format(data[at + 1].at(-1)) : "none"}`).join(", "),
    );
    this.series = series;
    this.bare = bare;
    this.least = least;
    this.whole = whole;
    this.sync = sync;
    this.format = format;
  }

  tell(index) {
    return [["", clock(this.data[0][index])], ...this.series.map((each, at) => [each.colour, `${each.label} ${each.format(this.data[at + 1][index])}`])];
  }

  options() {
    return {
      padding: this.bare ? [3, 0, 3, 0] : [8, 26, 0, 0],
      cursor: { sync: { key: this.sync, setSeries: false } },
      scales: { y: { range: (_plot, _least, most) => [0, Math.max((most ?? 0) * 1.08, this.least)] } },
      axes: this.bare
        ? [{ show: false }, { show: false }]
        : [
            axis({ space: 90, size: 24, values: (_plot, ticks) => ticks.map((tick) => clock(tick).slice(-8)) , grid: { show: false } }),
            axis({ space: 32, size: 58, values: (_plot, ticks) => ticks.map(this.format), ...(this.whole ? { incrs: WHOLE } : {}) }),
          ],
      series: [
        {},
        ...this.series.map((each) => ({
          stroke: colour(each.colour),
          width: 1.5,
          fill: each.fill ? `color-mix(in srgb, ${colour(each.colour)} 14%, transparent)` : undefined,
          points: { show: false },
        })),
      ],
    };
  }
}

/** Bars of a histogram. Data: [begins, counts]. */
export class Bars extends Chart {
  constructor({ label, height, summary, tell, tick, shade = "blue" }) {
    super(height, label, summary);
    this.tell = (index) => tell(this.data[0][index], this.data[1][index] ?? 0, index);
    this.tick = tick;
    this.shade = shade;
  }

  options() {
    const step = this.data[0].length > 1 ? this.data[0][1] - this.data[0][0] : 1;
    return {
      padding: [6, 4, 0, 4],
      scales: {
        x: { time: false, range: () => [this.data[0][0] - step / 2, this.data[0].at(-1) + step / 2] },
        y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      cursor: { points: { show: false } },
      axes: [axis({ space: 44, size: 24, grid: { show: false }, values: (_plot, ticks) => ticks.map(this.tick) }), { show: false }],
      series: [
        {},
        {
          stroke: colour(this.shade),
          fill: colour(this.shade),
          width: 0,
          paths: uPlot.paths.bars({ size: [0.8, 40], radius: 0.15 }),
          points: { show: false },
        },
      ],
    };
  }
}
