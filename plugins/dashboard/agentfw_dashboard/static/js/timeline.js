// An agent's life as a waterfall: a line a step, its bar at its time. The part of the time that is shown can be narrowed: by dragging
// over the ruler, by the buttons, or with + - and the arrows.

import { el, icon, keyed, setAttribute, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { harmless } from "./text.js";
import { colour, onTheme } from "./theme.js";

const KINDS = {
  queued: "Queued",
  dispatch: "Dispatch",
  first_syscall: "First syscall",
  resolve: "Resolve",
  connect: "Connect",
  request: "Request",
  first_token: "First token",
  response: "Response",
  model_call: "Model call",
  denied: "Denied",
  exit: "Exit",
};
const LANE = 28;
/** Which of the three lanes, and its colour. */
const LANES = {
  queued: [0, "grey"],
  dispatch: [0, "violet"],
  first_syscall: [0, "violet"],
  resolve: [1, "teal"],
  connect: [1, "teal"],
  request: [1, "blue"],
  response: [1, "blue"],
  model_call: [2, "pink"],
  first_token: [2, "amber"],
  denied: [0, "red"],
  exit: [0, "grey"],
};
const TICKS = [1, 2, 5];
const CLOCK = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];

/** A step of a ruler, at least so many seconds: 1, 2, 5 of a power of ten, or what clocks count in. */
function nice(least) {
  if (least > 10) return CLOCK.find((each) => each >= least) ?? Math.ceil(least / 86400) * 86400;
  const power = 10 ** Math.floor(Math.log10(least));
  return (TICKS.find((each) => each * power >= least) ?? 10) * power;
}

export class Timeline {
  constructor() {
    this.steps = [];
    this.range = null;
    this.hidden = new Set();
    this.end = 1;
    this.legend = el("div.kinds", { role: "group", "aria-label": "Kinds of steps" });
    this.ruler = el("div.ruler", { "aria-hidden": "true" });
    this.ticks = el("div.ticks", { "aria-hidden": "true" });
    this.chosen = el("div.chosen", { hidden: true });
    this.lane = el("canvas.lane", { height: LANE, "aria-hidden": "true" });
    this.ruler.append(this.lane, this.ticks, this.chosen);
    this.rows = el("ol.steps");
    this.said = el("span.muted");
    this.announced = el("span.unseen", { role: "status" });
    const button = (label, path, action) => el("button.icon", { type: "button", "aria-label": label, title: label, onclick: action }, icon(path));
    this.tools = el(
      "div.tools",
      { role: "group", "aria-label": "What part of the time is shown" },
      this.said,
      this.announced,
      button("Earlier", "M10 3 5 8l5 5", () => this.#pan(-0.5)),
      button("Later", "M6 3l5 5-5 5", () => this.#pan(0.5)),
      button("Wider", "M3 8h10", () => this.#zoom(2)),
      button("Narrower", "M3 8h10M8 3v10", () => this.#zoom(0.5)),
      el("button.plain", { type: "button", onclick: () => this.#show(null) }, "All"),
    );
    this.none = el("p.empty", {}, "Nothing has happened yet");
    this.more = el("p.muted.more", { hidden: true });
    this.scroll = el("div.waterfall", { tabindex: 0, role: "group", "aria-label": "Steps" }, this.ruler, this.rows, this.none, this.more);
    this.scroll.addEventListener("keydown", (event) => this.#key(event));
    this.ruler.addEventListener("pointerdown", (event) => this.#drag(event));
    this.watcher = new ResizeObserver(() => this.steps.length && this.#draw());
    this.watcher.observe(this.scroll);
    this.forget = onTheme(() => this.#draw());
    this.node = el("section.card.timeline", { "aria-labelledby": "timeline-title" },
      el("header", {}, el("h2", { id: "timeline-title" }, "Timeline"), this.tools), this.legend, this.scroll);
  }

  /** `passed`: seconds from the submission until now or the end. */
  set(steps, passed, left) {
    this.steps = steps;
    this.end = Math.max(passed || 0, ...steps.map((step) => step.at + (step.seconds ?? 0)), 1e-3);
    this.none.hidden = steps.length > 0;
    this.more.hidden = !left;
    this.more.textContent = left ? `and ${count(left)} more steps that were not kept` : "";
    this.#kinds();
    this.#draw();
  }

  close() {
    this.watcher.disconnect();
    this.forget();
  }

  #kinds() {
    const counts = new Map();
    for (const step of this.steps) counts.set(step.kind, (counts.get(step.kind) ?? 0) + 1);
    const kinds = Object.keys(KINDS).filter((kind) => counts.has(kind));
    keyed(this.legend, kinds, (kind) => kind, (kind) => {
      const mark = el("i", { "aria-hidden": "true" });
      mark.classList.add("mark", `kind-${kind}`);
      const button = el("button.chip", { type: "button", "aria-pressed": "true" }, mark, KINDS[kind], el("span.count"));
      button.addEventListener("click", () => {
        if (this.hidden.has(kind)) this.hidden.delete(kind);
        else this.hidden.add(kind);
        this.#kinds();
        this.#draw();
      });
      return button;
    }, (button, kind) => {
      setText(button.lastChild, count(counts.get(kind)));
      setAttribute(button, "aria-pressed", String(!this.hidden.has(kind)));
    });
  }

  get #shown() {
    return this.range ?? [0, this.end * 1.01];
  }

  #draw() {
    const [from, to] = this.#shown;
    const span = to - from;
    setText(this.said, `${duration(from)} \u2013 ${duration(to)}`);
    const step = nice(span / 5);
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at <= to && ticks.length < 12; at += step) ticks.push(at);
    keyed(this.ticks, ticks, (at) => at.toPrecision(9), () => el("span"), (node, at) => {
      setText(node, at < step / 2 ? "0" : duration(at));
      node.style.left = `${(100 * (at - from)) / span}%`;
    });
    const visible = this.steps.filter((each) => !this.hidden.has(each.kind));
    this.#drawLane(visible, from, span);
    keyed(this.rows, visible, (each) => `${each.kind} ${each.at} ${each.text}`, (each) => this.#make(each), (row, each) => {
      const seconds = each.seconds ?? 0;
      const bar = row.bar;
      const begin = (100 * (each.at - from)) / span;
      const width = (100 * seconds) / span;
      const outside = begin > 100 || begin + width < 0;
      row.classList.toggle("outside", outside);
      bar.classList.toggle("moment", each.seconds === null); // a wait is one until it ends
      bar.style.left = `${Math.max(-1, Math.min(begin, 100))}%`;
      bar.style.width = each.seconds === null ? "" : `${Math.max(0, Math.min(begin + width, 101) - Math.max(-1, Math.min(begin, 100)))}%`;
      row.taken.classList.toggle("before", begin + width > 78);
      row.taken.style.left = begin + width > 78 ? "" : `${Math.max(0, begin + width)}%`;
      row.taken.style.right = begin + width > 78 ? `${100 - Math.max(0, Math.min(begin, 100))}%` : "";
      setText(row.taken, each.seconds === null ? duration(each.at) : duration(each.seconds));
    });
  }

  /** All steps on three short lanes above the ruler, so that a life of hours is seen at once. */
  #drawLane(steps, from, span) {
    const width = this.lane.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    if (this.lane.width !== Math.round(width * ratio)) {
      this.lane.width = Math.round(width * ratio);
      this.lane.height = Math.round(LANE * ratio);
    }
    const pen = this.lane.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, LANE);
    for (const step of steps) {
      const [lane, shade] = LANES[step.kind] ?? [0, "grey"];
      const left = ((step.at - from) / span) * width;
      const wide = Math.max(2, ((step.seconds ?? 0) / span) * width);
      pen.fillStyle = colour(shade);
      pen.globalAlpha = step.seconds === null ? 1 : 0.75;
      pen.fillRect(left, 3 + lane * 8, wide, 6);
    }
  }

  #make(step) {
    const kind = Object.hasOwn(KINDS, step.kind) ? step.kind : "other";
    const name = KINDS[step.kind] ?? harmless(step.kind, 30);
    const row = el("li.step");
    row.classList.toggle("failed", !step.ok);
    row.bar = el("i.bar");
    row.bar.classList.add(`kind-${kind}`);
    row.taken = el("span.taken");
    row.append(
      el("span.what", { title: harmless(step.text, 400) },
        el("b", {}, step.ok ? name : `${name} \u2717`), el("bdi.mono", {}, harmless(step.text, 120)), step.ok ? null : el("span.unseen", {}, " failed")),
      el("span.track", {}, row.bar, row.taken),
    );
    return row;
  }

  #show(range) {
    if (range) {
      const span = Math.max(range[1] - range[0], 1e-6);
      const from = Math.max(0, Math.min(range[0], this.end));
      this.range = span >= this.end * 1.01 ? null : [from, from + span];
    } else this.range = null;
    this.#draw();
    setText(this.announced, this.said.textContent);
  }

  #zoom(factor) {
    const [from, to] = this.#shown;
    const middle = (from + to) / 2;
    const half = ((to - from) * factor) / 2;
    this.#show([middle - half, middle + half]);
  }

  #pan(part) {
    const [from, to] = this.#shown;
    const by = Math.max(-from, (to - from) * part);
    if (this.range) this.#show([from + by, to + by]);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") this.#zoom(0.5);
    else if (event.key === "-") this.#zoom(2);
    else if (event.key === "0") this.#show(null);
    else if (event.key === "ArrowLeft") this.#pan(-0.5);
    else if (event.key === "ArrowRight") this.#pan(0.5);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #drag(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    const place = this.ruler.getBoundingClientRect();
    const at = (x) => Math.max(0, Math.min(1, (x - place.left) / place.width));
    const begin = at(event.clientX);
    let end = begin;
    this.ruler.setPointerCapture(event.pointerId);
    const move = (moved) => {
      end = at(moved.clientX);
      this.chosen.hidden = false;
      this.chosen.style.left = `${100 * Math.min(begin, end)}%`;
      this.chosen.style.width = `${100 * Math.abs(end - begin)}%`;
    };
    const stop = (stopped) => {
      this.ruler.removeEventListener("pointermove", move);
      this.chosen.hidden = true;
      if (stopped.type !== "pointerup" || Math.abs(end - begin) < 0.01) return;
      const [from, to] = this.#shown;
      const span = to - from;
      this.#show([from + span * Math.min(begin, end), from + span * Math.max(begin, end)]);
    };
    this.ruler.addEventListener("pointermove", move);
    this.ruler.addEventListener("pointerup", stop, { once: true });
    this.ruler.addEventListener("pointercancel", stop, { once: true });
  }
}
