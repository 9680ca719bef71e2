// The columns of the table of agents, and the fields of its filter: the same things under the same names.

import { el, setAttribute, setText } from "./dom.js";
import { age, ago, bytes, clock, compact, count, duration, money } from "./format.js";
import { store } from "./store.js";
import { harmless, nameOf } from "./text.js";

const ALWAYS = ["name", "state", "tenant", "age", "model_calls", "input_tokens", "output_tokens", "cost", "denials", "cpu", "memory", "down", "last"];
/** Shown unless somebody chose others. */

/** Seconds that an agent has run; null while it has not begun. */
export function ran(row, now = store.now()) {
  if (row.started === null) return null;
  return Math.max(0, (row.ended ?? now) - row.started);
}

/** How long it has run, in words: of one that has ended exactly, else in whole seconds. */
export function life(row) {
  return row.ended === null ? age(ran(row)) : duration(ran(row));
}

const GIVEN = "Memory that its VM was given. It costs the host less: what the VM did not write is shared.";

/** How it stands, as a word that colours it. */
export function standing(row) {
  if (row.state !== "done") return row.state;
  return row.how === "code 0" || row.how === "" ? "done" : "failed";
}

export function statePill(cell, row) {
  const kind = standing(row);
  if (!cell.firstChild) cell.append(el("span.state", {}, el("i.dot", { "aria-hidden": "true" }), el("span")));
  const pill = cell.firstChild;
  const known = ["queued", "starting", "running", "done", "failed"].includes(kind) ? kind : "other";
  setAttribute(pill, "data-state", known);
  setText(pill.lastChild, kind === "failed" ? harmless(row.how, 24) : harmless(row.state, 24));
}

function column(key, label, width, kind, get, show, extra = {}) {
  const numeric = kind !== "text" && kind !== "map";
  return {
    key,
    label,
    width,
    kind,
    get,
    numeric,
    always: ALWAYS.includes(key),
    fill: (cell, row) => {
      const text = show(row);
      setText(cell, text);
      if (numeric) cell.classList.toggle("zero", text === "0" || text === "\u2013");
    },
    ...extra,
  };
}

export const COLUMNS = [
  column("name", "Agent", 176, "text", (row) => row.name, () => "", {
    fill: (cell, row) => {
      if (cell.of === row.name) return;
      cell.of = row.name;
      if (!cell.firstChild) cell.append(el("bdi"));
      setText(cell.firstChild, nameOf(row.name));
      cell.title = harmless(row.name, 400);
    },
  }),
  column("state", "State", 94, "text", (row) => row.state, () => "", { fill: statePill, title: "State, and how it ended" }),
  column("id", "Job", 150, "text", (row) => row.id, (row) => harmless(row.id, 40)),
  column("tenant", "Tenant", 84, "text", (row) => row.tenant, (row) => harmless(row.tenant, 40)),
  column("template", "Template", 100, "text", (row) => row.template, (row) => harmless(row.template, 40)),
  column("labels", "Labels", 190, "map", (row) => row.labels, (row) => labelsText(row), { title: "Labels" }),
  column("worker", "Worker", 78, "number", (row) => row.worker, (row) => count(row.worker)),
  column("submitted", "Submitted", 96, "seconds", (row) => row.submitted, (row) => clock(row.submitted)),
  column("age", "Ran", 98, "seconds", (row) => ran(row), (row) => life(row), { title: "Time that it has run" }),
  column("model_calls", "Calls", 64, "number", (row) => row.model_calls, (row) => compact(row.model_calls), { title: "Model calls" }),
  column("input_tokens", "Tokens in", 86, "number", (row) => row.input_tokens, (row) => compact(row.input_tokens)),
  column("output_tokens", "Tokens out", 92, "number", (row) => row.output_tokens, (row) => compact(row.output_tokens)),
  column("cost", "Cost", 96, "number", (row) => row.cost, (row) => money(row.cost, store.overview?.currency ?? "")),
  column("denials", "Denials", 78, "number", (row) => row.denials, (row) => compact(row.denials), {
    fill: (cell, row) => {
      setText(cell, compact(row.denials));
      cell.classList.toggle("zero", row.denials === 0);
      cell.classList.toggle("bad", row.denials > 0);
    },
  }),
  column("requests", "Requests", 94, "number", (row) => row.requests, (row) => compact(row.requests)),
  column("questions", "DNS", 72, "number", (row) => row.questions, (row) => compact(row.questions), { title: "DNS questions" }),
  column("connections", "Connections", 112, "number", (row) => row.connections, (row) => compact(row.connections)),
  column("cpu", "CPU", 98, "seconds", (row) => row.cpu_seconds, (row) => duration(row.cpu_seconds), { title: "CPU time" }),
  column("memory", "Memory", 84, "bytes", (row) => row.memory, (row) => (row.memory ? bytes(row.memory) : "\u2013"), { title: GIVEN }),
  column("exits", "Exits", 80, "number", (row) => row.exits, (row) => compact(row.exits), { title: "Exits of its VM to the host" }),
  column("down", "In", 80, "bytes", (row) => row.bytes_down, (row) => bytes(row.bytes_down), { title: "Bytes received" }),
  column("up", "Out", 80, "bytes", (row) => row.bytes_up, (row) => bytes(row.bytes_up), { title: "Bytes sent" }),
  column("last", "Last", 112, "text", (row) => row.last, (row) => harmless(row.last, 80), { title: "What it did last" }),
  column("last_at", "When", 96, "seconds", (row) => row.last_at, (row) => ago(row.last_at, store.now()), { title: "When it did something last" }),
];

export const byKey = new Map(COLUMNS.map((each) => [each.key, each]));

function labelsText(row) {
  const text = Object.entries(row.labels).slice(0, 8).map(([name, value]) => `${name}=${value}`).join(" ");
  return harmless(text, 80);
}

/** For the filter: the columns, other names of theirs, and what is not a column. */
export const FIELDS = {
  ...Object.fromEntries(COLUMNS.map((each) => [each.key, { kind: each.kind, get: each.get }])),
  label: { kind: "map", get: (row) => row.labels },
  how: { kind: "text", get: (row) => row.how },
  calls: { kind: "number", get: (row) => row.model_calls },
  tokens: { kind: "number", get: (row) => row.input_tokens + row.output_tokens },
  dns: { kind: "number", get: (row) => row.questions },
  mem: { kind: "bytes", get: (row) => row.memory },
  ran: { kind: "seconds", get: (row) => ran(row) },
  seen: { kind: "seconds", get: (row) => (row.last_at === null ? null : Math.max(0, store.now() - row.last_at)) },
  status: { kind: "text", get: standing },
};
FIELDS.submitted = { kind: "seconds", get: (row) => Math.max(0, store.now() - row.submitted) };
FIELDS.last_at = FIELDS.seen;
Object.setPrototypeOf(FIELDS, null);

const LONGEST = 2000;
const searched = new WeakMap();

/** What words of a filter are looked for in, lower case. Cut: a name may be a megabyte. */
export function searchText(row) {
  let text = searched.get(row);
  if (text === undefined) {
    const labels = Object.entries(row.labels).map(([name, value]) => `${name}=${value}`);
    text = [row.name, row.id, row.tenant, row.template, row.state, row.how, row.last, ...labels].map((each) => String(each).slice(0, LONGEST)).join("\n").toLowerCase();
    searched.set(row, text);
  }
  return text;
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const sortKeys = new WeakMap();

function textKey(row, each) {
  let keys = sortKeys.get(row);
  if (keys === undefined) sortKeys.set(row, (keys = {}));
  return (keys[each.key] ??= each.kind === "map" ? labelsText(row) : String(each.get(row)).slice(0, 300));
}

/** Rows in an order: what has no value comes last whichever way; the same is in order of submission, so that nothing jumps about. */
export function sorted(rows, { key, descending }) {
  const each = byKey.get(key) ?? byKey.get("submitted");
  const sign = descending ? -1 : 1;
  const tie = (a, b) => b.submitted - a.submitted || (a.id < b.id ? -1 : 1);
  if (!each.numeric) return rows.sort((a, b) => sign * collator.compare(textKey(a, each), textKey(b, each)) || tie(a, b));
  const values = new Map(rows.map((row) => [row.id, each.get(row)]));
  return rows.sort((a, b) => {
    const x = values.get(a.id);
    const y = values.get(b.id);
    if (x === y) return tie(a, b);
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return sign * (x - y);
  });
}
