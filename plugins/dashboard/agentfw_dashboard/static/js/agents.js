// All agents: filtered, sorted, and kept up to date in place.

import { byKey, COLUMNS, FIELDS, life, searchText, sorted, standing, statePill } from "./columns.js";
import { el, icon, setAttribute, setText } from "./dom.js";
import { compile } from "./filter.js";
import { compact, count, money } from "./format.js";
import { Grid } from "./grid.js";
import { go, hashOf, replace } from "./route.js";
import { store } from "./store.js";
import { harmless, nameOf } from "./text.js";
import { remember, remembered } from "./theme.js";

const NARROW = matchMedia("(max-width: 700px)");
const CHIPS = [
  ["All", ""],
  ["Running", "state:running"],
  ["Queued", "state:queued"],
  ["Done", "state:done"],
  ["Failed", "status:failed"],
  ["Denied", "denials>0"],
];
const TESTS = {
  "": () => true,
  "state:running": (row) => row.state === "running",
  "state:queued": (row) => row.state === "queued",
  "state:done": (row) => row.state === "done",
  "status:failed": (row) => standing(row) === "failed",
  "denials>0": (row) => row.denials > 0,
};
const EXAMPLES = [
  ["swe-bench", "the words in its name, job, tenant, labels or what it did last"],
  ["denials>0", "a number; also = != < >= <="],
  ["memory>50MB ran>2m cpu<500ms", "sizes and times have units; all must hold"],
  ["state:running tenant:evals", "a text holds this; = and != take it whole"],
  ["label.run=7", "one label; label:run=7 looks in all"],
  ["-tenant:batch", "not this"],
  ["status:failed", "ended with another status than 0"],
];

/** What was in sight last: where a person comes back to, and what is before and behind an agent. */
export const last = { filter: "", sort: { key: "submitted", descending: true }, order: [], top: 0, active: null };

export class Agents {
  constructor(route) {
    last.filter = route.query.get("filter") ?? "";
    const sort = route.query.get("sort");
    if (sort) {
      const key = sort.replace(/^-/, "");
      if (byKey.has(key)) last.sort = { key, descending: sort.startsWith("-") };
    }
    this.drawn = { version: -1, filter: null, sort: "" };
    this.input = el("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter: words, state:running, denials>0, label.run=7",
      "aria-label": "Filter",
      "aria-describedby": "filter-error",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 500,
      value: last.filter,
      oninput: () => this.#filter(this.input.value),
      onkeydown: (event) => this.#inputKey(event),
    });
    this.error = el("p.error", { id: "filter-error", role: "status" });
    this.counted = el("span.muted.counted");
    this.announced = el("span.unseen", { role: "status" });
    this.chips = CHIPS.map(([name, filter]) => {
      const number = el("span.count");
      const button = el("button.chip", { type: "button", "aria-pressed": "false", onclick: () => this.#filter(filter, true) }, name, number);
      return { filter, button, number };
    });
    this.pause = el("button.plain", { type: "button", "aria-pressed": "false", onclick: () => this.togglePause(), title: "Pause the table (p)" }, "Pause");
    this.order = el("select", { "aria-label": "Sort by", onchange: () => this.#sort({ key: this.order.value, descending: Boolean(byKey.get(this.order.value)?.numeric) }) },
      ...COLUMNS.map((each) => el("option", { value: each.key }, each.label)));
    this.direction = el("button.icon", { type: "button", onclick: () => this.#sort({ ...last.sort, descending: !last.sort.descending }) });
    this.grid = new Grid({
      label: "Agents",
      columns: this.#columns(),
      height: 36,
      compactHeight: 66,
      compact: fillCompact,
      open: (id) => go(hashOf("agents", { id })),
      sorted: (sort) => this.#sort(sort),
    });
    this.empty = el("p.empty", { hidden: true });
    this.node = el(
      "div.view.agents",
      {},
      el("h1.unseen", {}, "Agents"),
      el(
        "div.toolbar",
        {},
        el("div.search", {}, icon("M7 12.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM11 11l3.5 3.5"), this.input, el("kbd", { "aria-hidden": "true" }, "/")),
        this.#menu("Help", "How to filter", this.#examples()),
        el("div.phone-sort", {}, this.order, this.direction),
        el("div.wide-only", {}, this.#menu("Columns", "Columns to show", this.#chooser())),
        this.pause,
      ),
      el("div.chips", { role: "group", "aria-label": "Common filters" }, ...this.chips.map((chip) => chip.button), this.counted),
      this.announced,
      this.error,
      this.grid.node,
      this.empty,
    );
    this.onNarrow = () => this.grid.setColumns(this.#columns(), NARROW.matches);
    NARROW.addEventListener("change", this.onNarrow);
    this.grid.setColumns(this.#columns(), NARROW.matches);
    this.#sort(last.sort);
  }

  /** After it is in the document. */
  shown() {
    this.grid.active = last.active;
    this.update();
    this.grid.node.scrollTop = last.top;
    this.grid.draw();
    if (last.active !== null) this.grid.node.focus({ preventScroll: true });
  }

  #columns() {
    const chosen = remembered("columns").split(",").filter((key) => byKey.has(key));
    const keys = new Set(chosen.length ? chosen : COLUMNS.filter((each) => each.always).map((each) => each.key));
    keys.add("name");
    return COLUMNS.filter((each) => keys.has(each.key));
  }

  #chooser() {
    const chosen = new Set(this.#columns().map((each) => each.key));
    return el("fieldset.chooser", {}, el("legend.unseen", {}, "Columns"), ...COLUMNS.slice(1).map((each) => {
      const box = el("input", { type: "checkbox", checked: chosen.has(each.key) });
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(each.key);
        else chosen.delete(each.key);
        remember("columns", [...chosen].join(","));
        this.grid.setColumns(this.#columns(), NARROW.matches);
      });
      return el("label", {}, box, each.title ?? each.label);
    }));
  }

  #examples() {
    return el("dl.examples", {}, ...EXAMPLES.map(([filter, what]) =>
      el("div", {}, el("dt", {}, el("button.code", { type: "button", onclick: () => this.#filter(filter, true) }, filter)), el("dd", {}, what))),
      el("p.muted", {}, `Fields: ${Object.keys(FIELDS).sort().join(", ")}`));
  }

  #menu(name, label, content) {
    const id = `menu-${name.toLowerCase()}`;
    const panel = el("div.menu", { id, popover: "auto", role: "dialog", "aria-label": label }, content);
    const button = el("button.plain", { type: "button", popovertarget: id, "aria-haspopup": "dialog" }, name);
    panel.addEventListener("toggle", (event) => {
      if (event.newState !== "open") return;
      const place = button.getBoundingClientRect();
      panel.style.top = `${place.bottom + 6}px`;
      panel.style.left = `${Math.max(8, Math.min(place.left, innerWidth - panel.offsetWidth - 8))}px`;
      panel.querySelector("button, input")?.focus();
    });
    return el("div.menu-place", {}, button, panel);
  }

  #inputKey(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      if (this.input.value) this.#filter("", true);
      else this.grid.node.focus();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.grid.node.focus();
      if (this.grid.active === null) this.grid.move(0);
    }
  }

  #filter(text, write = false) {
    if (write) this.input.value = text;
    last.filter = text;
    this.#address();
    this.grid.node.scrollTop = 0;
    this.update();
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => setText(this.announced, this.counted.textContent), 700); // when typing has ended
  }

  #sort(sort) {
    last.sort = sort;
    this.grid.setSort(sort);
    this.order.value = sort.key;
    this.direction.replaceChildren(icon(sort.descending ? "M8 3v10M4 9l4 4 4-4" : "M8 13V3M4 7l4-4 4 4"), el("span.unseen", {}, sort.descending ? "Descending" : "Ascending"));
    this.#address();
    this.update();
  }

  #address() {
    const plain = last.sort.key === "submitted" && last.sort.descending;
    replace(hashOf("agents", { query: { filter: last.filter, sort: plain ? "" : `${last.sort.descending ? "-" : ""}${last.sort.key}` } }));
  }

  togglePause() {
    store.pause(!store.paused);
    this.pause.setAttribute("aria-pressed", String(store.paused));
    setText(this.pause, store.paused ? "Resume" : "Pause");
    if (!store.paused) this.update();
  }

  focusFilter() {
    this.input.focus();
    this.input.select();
  }

  step(by) {
    this.grid.node.focus({ preventScroll: true });
    this.grid.step(by);
  }

  openActive() {
    if (this.grid.active !== null) this.grid.open(this.grid.active);
  }

  update() {
    const sort = `${last.sort.key} ${last.sort.descending}`;
    const same = this.drawn.version === store.version && this.drawn.filter === last.filter && this.drawn.sort === sort;
    if (store.paused && this.drawn.filter === last.filter && this.drawn.sort === sort) return;
    if (same) {
      this.grid.draw(); // times go on
      return;
    }
    this.drawn = { version: store.version, filter: last.filter, sort };
    const all = [...store.rows.values()];
    const { test, error } = compile(last.filter, FIELDS, searchText);
    setText(this.error, error);
    setAttribute(this.input, "aria-invalid", error ? "true" : null);
    const rows = sorted(all.filter(test), last.sort);
    last.order = rows.map((row) => row.id);
    this.grid.setRows(rows);
    for (const chip of this.chips) {
      setText(chip.number, compact(all.filter(TESTS[chip.filter]).length));
      chip.button.setAttribute("aria-pressed", String(chip.filter === last.filter.trim()));
    }
    setText(this.counted, rows.length === all.length ? `${count(all.length)} agents` : `${count(rows.length)} of ${count(all.length)} agents`);
    const none = rows.length === 0;
    this.empty.hidden = !none;
    this.grid.node.hidden = none;
    if (none) setText(this.empty, store.haveTable ? (all.length ? "No agent is like this" : "No agents yet. `agentfw submit` starts one.") : "Loading");
  }

  close() {
    last.top = this.grid.node.scrollTop;
    last.active = this.grid.active;
    clearTimeout(this.announcing);
    NARROW.removeEventListener("change", this.onNarrow);
    this.grid.close();
    if (store.paused) store.pause(false);
  }
}

/** A row on a phone: two lines in one cell. */
function fillCompact(cell, row) {
  if (!cell.firstChild) {
    cell.append(el("div.line", {}, el("bdi.name"), el("span")), el("div.line.muted", {}, el("span"), el("span.numbers")));
  }
  const [first, second] = cell.children;
  setText(first.firstChild, nameOf(row.name, 80));
  statePill(first.lastChild, row);
  setText(second.firstChild, harmless(row.last || row.tenant, 60));
  const facts = [life(row)];
  if (row.model_calls) facts.push(`${compact(row.model_calls)} calls`);
  if (row.cost) facts.push(money(row.cost, store.overview?.currency ?? ""));
  if (row.denials) facts.push(`${compact(row.denials)} denied`);
  setText(second.lastChild, facts.join(" \u00b7 "));
}
