// One agent: who it is, how it stands, its timeline, and behind tabs all that is known of it.

import { life, sorted, statePill } from "./columns.js";
import { clear, el, keyed, setAttribute, setText } from "./dom.js";
import { bytes, clock, compact, counter, duration, money, NONE } from "./format.js";
import { last } from "./agents.js";
import { Output } from "./output.js";
import { go, hashOf, replace } from "./route.js";
import { ask, store } from "./store.js";
import * as tables from "./tables.js";
import { harmless, harmlessLines, nameOf } from "./text.js";
import { Timeline } from "./timeline.js";

const TABS = [
  ["output", "Output"],
  ["models", "Model calls"],
  ["network", "Network"],
  ["denials", "Denials"],
  ["syscalls", "System calls"],
  ["files", "Files"],
  ["exit", "Exit and counters"],
];
const LEAST = 1000;
/** Milliseconds between two questions for a story. */

export class Agent {
  constructor(route) {
    this.id = route.id;
    this.tab = TABS.some(([tab]) => tab === route.tab) ? route.tab : "output";
    this.story = null;
    this.asked = -Infinity;
    this.controller = new AbortController();
    this.panels = new Map();
    this.back = el("a.back", { href: hashOf("agents", { query: { filter: last.filter } }) }, "\u2190 Agents");
    this.title = el("h1", {}, el("bdi", {}, nameOf(store.rows.get(this.id)?.name ?? this.id)));
    this.state = el("span");
    this.meta = el("dl.meta", { "aria-label": "About it" });
    this.numbers = el("dl.strip", { "aria-label": "Numbers" });
    this.trouble = el("p.empty", { role: "status" }, "Loading");
    this.timeline = new Timeline();
    this.previous = el("button.icon", { type: "button", "aria-label": "Previous agent", title: "Previous agent ([)", onclick: () => this.step(-1) }, "\u2191");
    this.next = el("button.icon", { type: "button", "aria-label": "Next agent", title: "Next agent (])", onclick: () => this.step(1) }, "\u2193");
    this.tabs = TABS.map(([tab, label]) => {
      const number = el("span.count");
      const button = el("button", {
        type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": "panel", "aria-selected": "false",
        onclick: () => this.choose(tab), onkeydown: (event) => this.#tabKey(event, tab),
      }, label, number);
      return { tab, button, number };
    });
    this.panel = el("div.panel", { role: "tabpanel", id: "panel" });
    this.content = el("div.story", { hidden: true }, this.numbers, this.timeline.node,
      el("section.card", {}, el("div.tablist", { role: "tablist", "aria-label": "What is known of it" }, ...this.tabs.map((each) => each.button)), this.panel));
    this.node = el("div.view.agent", {},
      el("div.head", {}, this.back, el("div.title", {}, this.title, this.state, el("div.tools", {}, this.previous, this.next)), this.meta),
      this.trouble, this.content);
    this.choose(this.tab, false);
  }

  shown() {
    this.update();
  }

  choose(tab, write = true) {
    this.tab = tab;
    for (const each of this.tabs) {
      const on = each.tab === tab;
      each.button.setAttribute("aria-selected", String(on));
      each.button.tabIndex = on ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${tab}`);
    if (tab !== "output") this.#dropOutput();
    if (!this.panels.has(tab)) this.panels.set(tab, this.#make(tab));
    this.panel.replaceChildren(...this.panels.get(tab).nodes);
    if (write) replace(hashOf("agents", { id: this.id, tab }));
    if (this.story) this.#fill();
  }

  chooseAt(index) {
    if (!TABS[index]) return;
    this.choose(TABS[index][0]);
    this.tabs[index].button.focus();
  }

  step(by) {
    const at = last.order.indexOf(this.id);
    const to = last.order[at + by];
    if (to === undefined || (at < 0 && by < 0)) return;
    last.active = to;
    go(hashOf("agents", { id: to, tab: this.tab === "output" ? "" : this.tab }));
  }

  #tabKey(event, tab) {
    const at = TABS.findIndex(([each]) => each === tab);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.chooseAt((to + TABS.length) % TABS.length);
  }

  #make(tab) {
    const of = (list, take, left) => ({ nodes: [list.node], fill: (story) => list.set(take(story), story.dropped[left] ?? 0) });
    if (tab === "output") {
      const output = (this.output = new Output(this.id));
      return { nodes: [output.node], fill: () => {} };
    }
    if (tab === "models") return of(tables.modelCalls(), (story) => story.model_calls, "model_calls");
    if (tab === "denials") return of(tables.denials(), (story) => story.denials, "denials");
    if (tab === "syscalls") return of(tables.syscalls(), (story) => story.syscalls, "syscalls");
    if (tab === "files") return of(tables.files(), (story) => story.files, "files");
    if (tab === "network") {
      const parts = [of(tables.destinations(), (story) => story.destinations, "destinations"), of(tables.names(), (story) => story.names, "names")];
      return {
        nodes: [el("h3", {}, "Destinations"), ...parts[0].nodes, el("h3", {}, "Names"), ...parts[1].nodes],
        fill: (story) => parts.forEach((part) => part.fill(story)),
      };
    }
    const report = el("pre.output.wrap", { tabindex: 0, "aria-label": "Exit report" });
    const how = el("dl.meta");
    const counters = el("dl.counters");
    const none = el("p.empty", {}, "No counters");
    return {
      nodes: [el("h3", {}, "Exit"), how, report, el("h3", {}, "Counters of its VM"), counters, none],
      fill: (story) => {
        const ended = story.row.state === "done";
        pairs(how, [
          ["Ended", ended ? clock(story.row.ended) : "not yet"],
          ["How", harmless(story.row.how, 80) || NONE],
          ["Kind", harmless(story.exit_kind, 40) || NONE],
          ["Code", story.exit_kind === "code" ? String(story.exit_code) : NONE],
          ["Signal", story.exit_signal ? String(story.exit_signal) : NONE],
        ]);
        report.hidden = !story.exit_text;
        setText(report, harmlessLines(story.exit_text));
        const entries = Object.entries(story.counters);
        none.hidden = entries.length > 0;
        pairs(counters, entries.map(([name, value]) => [harmless(name, 60), counter(name, value)]));
      },
    };
  }

  update() {
    const row = store.rows.get(this.id) ?? this.story?.row;
    if (row) this.#head(row);
    if (!last.order.length && store.haveTable) last.order = sorted([...store.rows.values()], last.sort).map((each) => each.id);
    const at = last.order.indexOf(this.id);
    this.previous.disabled = at <= 0;
    this.next.disabled = at < 0 || at >= last.order.length - 1;
    const changed = (store.changedAt.get(this.id) ?? 0) !== this.version;
    const running = row === undefined || row.state !== "done" || this.story?.row.state !== "done";
    const due = performance.now() - this.asked > (changed ? LEAST : 5 * LEAST);
    const may = !this.gone && store.connection.kind !== "logged-out";
    if (!this.busy && due && (this.story === null || changed || running) && may) this.#ask();
  }

  async #ask() {
    this.busy = true;
    this.asked = performance.now();
    this.version = store.changedAt.get(this.id) ?? 0;
    try {
      this.story = await ask("agent", { id: this.id }, this.controller.signal);
      this.trouble.hidden = true;
      this.content.hidden = false;
      this.#head(this.story.row);
      this.#fill();
    } catch (error) {
      if (error.aborted && this.closed) return;
      this.gone = error.status === 404;
      this.trouble.hidden = this.story !== null && !this.gone;
      setText(this.trouble, this.gone ? (this.story ? "The pool does not know this agent any more; this is the last that was known." : "The pool knows no such agent. It may have ended long ago.") : error.message);
    } finally {
      this.busy = false;
    }
  }

  #head(row) {
    setText(this.title.firstChild, nameOf(row.name));
    this.title.title = harmless(row.name, 400);
    statePill(this.state, row);
    const began = row.started === null ? NONE : clock(row.started);
    pairs(this.meta, [
      ["Job", harmless(row.id, 60), "mono"],
      ["Tenant", harmless(row.tenant, 60) || NONE],
      ["Template", harmless(row.template, 60) || NONE],
      ["Worker", row.worker === null ? NONE : String(row.worker)],
      ["Submitted", clock(row.submitted)],
      ["Started", began],
      ...Object.entries(row.labels).slice(0, 20).map(([name, value]) => [harmless(name, 40) || "(blank)", harmless(value, 60) || NONE, "label"]),
    ]);
    const currency = store.overview?.currency ?? "";
    pairs(this.numbers, [
      ["Ran", life(row)],
      ["CPU", duration(row.cpu_seconds)],
      ["Memory given", row.memory ? bytes(row.memory) : NONE],
      ["Exits", compact(row.exits)],
      ["DNS", compact(row.questions)],
      ["Requests", compact(row.requests)],
      ["Model calls", compact(row.model_calls)],
      ["Tokens", `${compact(row.input_tokens)} / ${compact(row.output_tokens)}`],
      ["Cost", money(row.cost, currency)],
      ["In / out", `${bytes(row.bytes_down)} / ${bytes(row.bytes_up)}`],
      ["Denials", compact(row.denials), row.denials ? "bad" : ""],
    ]);
  }

  #fill() {
    const story = this.story;
    const passed = (story.row.ended ?? store.now()) - story.row.submitted;
    this.timeline.set(story.timeline, passed, story.dropped.timeline ?? 0);
    this.panels.get(this.tab).fill(story);
    const numbers = {
      models: story.model_calls.length + (story.dropped.model_calls ?? 0),
      network: story.destinations.length + story.names.length,
      denials: story.denials.reduce((sum, each) => sum + each.count, 0),
      syscalls: story.syscalls.length,
      files: story.files.length + (story.dropped.files ?? 0),
    };
    for (const { tab, number } of this.tabs) setText(number, numbers[tab] === undefined ? "" : compact(numbers[tab]));
  }

  #dropOutput() {
    this.output?.close();
    this.output = undefined;
    this.panels.delete("output");
  }

  close() {
    this.closed = true;
    this.controller.abort();
    this.#dropOutput();
    this.timeline.close();
    clear(this.panel);
  }
}

/** Names and values of a <dl>, changed in place. */
function pairs(list, items) {
  keyed(list, items, ([name, , kind]) => `${kind === "label" ? "l" : ""}${name}`, ([name]) => el("div", {}, el("dt", {}, name), el("dd")), (node, [, value, kind]) => {
    setText(node.lastChild, value);
    setAttribute(node.lastChild, "class", kind === "label" ? null : kind || null);
    node.classList.toggle("label", kind === "label");
  });
}
