// The lists of one agent's story.

import { setText, el } from "./dom.js";
import { bytes, clock, count, duration, money, NONE } from "./format.js";
import { List } from "./list.js";
import { store } from "./store.js";
import { harmless } from "./text.js";

const text = (key, label, most = 200, mono = false) => ({
  key,
  label,
  get: (item) => String(item[key]),
  fill: (cell, item) => {
    if (!cell.firstChild) {
      cell.append(el(mono ? "bdi.mono" : "bdi"));
      cell.classList.add(most > 60 ? "long" : "nowrap");
    }
    setText(cell.firstChild, harmless(item[key], most));
  },
});

const number = (key, label, show = count, title = undefined) => ({
  key,
  label,
  title,
  numeric: true,
  get: (item) => item[key],
  fill: (cell, item) => {
    const said = show(item[key]);
    setText(cell, said);
    cell.classList.toggle("zero", said === "0" || said === "0 s" || said === "0 B" || said === NONE);
  },
});

const bad = (column) => ({
  ...column,
  fill: (cell, item) => {
    column.fill(cell, item);
    cell.classList.toggle("bad", Boolean(column.get(item)));
  },
});

const seconds = (key, label, title) => number(key, label, duration, title);
const currency = (value) => money(value, store.overview?.currency ?? "");

export function modelCalls() {
  return new List({
    label: "Model calls",
    empty: "No model was called",
    sort: "at",
    key: (each) => `${each.at} ${each.model.slice(0, 200)}`,
    columns: [
      seconds("at", "At", "Seconds since its submission"),
      text("provider", "Provider", 40),
      text("model", "Model", 100, true),
      text("operation", "Operation", 40),
      { ...number("status", "Status", String), fill: (cell, item) => {
        setText(cell, String(item.status));
        cell.classList.toggle("bad", item.status >= 400 || item.status === 0);
      } },
      seconds("seconds", "Took"),
      seconds("first_token", "First token"),
      number("input_tokens", "Tokens in"),
      number("output_tokens", "Tokens out"),
      { ...number("cost", "Cost", currency), fill: (cell, item) => setText(cell, `${item.estimated ? "~" : ""}${currency(item.cost)}`) },
      text("error", "Error", 160),
    ],
  });
}

export function destinations() {
  return new List({
    label: "Destinations",
    empty: "It went nowhere",
    sort: "bytes_down",
    key: (each) => each.destination.slice(0, 500),
    columns: [
      text("destination", "Destination", 160, true),
      number("connections", "Connections"),
      number("requests", "Requests"),
      bad(number("errors", "Errors")),
      bad(number("denials", "Denials")),
      number("bytes_down", "In", bytes),
      number("bytes_up", "Out", bytes),
    ],
  });
}

export function names() {
  return new List({
    label: "Names",
    empty: "It asked for no name",
    sort: "count",
    key: (each) => `${each.qtype} ${each.name.slice(0, 500)}`,
    columns: [
      text("name", "Name", 160, true),
      text("qtype", "Type", 20),
      text("answer", "Answer", 160, true),
      number("count", "Asked"),
      seconds("seconds", "Slowest"),
      bad(text("denied_rule", "Denied by", 120, true)),
    ],
  });
}

export function syscalls() {
  return new List({
    label: "System calls",
    empty: "None were counted",
    sort: "count",
    key: (each) => each.name,
    columns: [
      text("name", "Call", 60, true),
      number("count", "Count", count, "Counted in the guest, those answered there among them"),
      number("host_count", "In the host", count, "Those that left the guest, counted by the host"),
      seconds("host_seconds", "Host time", "In the host, all together"),
      { key: "each", label: "Each", title: "In the host, on average", numeric: true,
        get: (item) => (item.host_count ? item.host_seconds / item.host_count : null),
        fill: (cell, item) => setText(cell, item.host_count ? duration(item.host_seconds / item.host_count) : NONE) },
      bad(number("errors", "Failed", count, "Of those of the host")),
    ],
  });
}

export function files() {
  return new List({
    label: "Files",
    empty: "It opened no file",
    sort: "",
    key: (each) => `${each.mode} ${each.error} ${each.path.slice(0, 1000)} ${each.rule ?? ""}`,
    columns: [
      text("path", "Path", 300, true),
      text("mode", "Mode", 8),
      number("count", "Opened"),
      bad(text("error", "Error", 40)),
      bad(text("rule", "Rule", 200)),
    ],
  });
}

export function denials() {
  return new List({
    label: "Denials",
    empty: "It was denied nothing",
    sort: "time",
    key: (each) => `${each.destination.slice(0, 500)} ${each.rule.slice(0, 300)}`,
    columns: [
      { key: "time", label: "When", get: (each) => each.time, fill: (cell, each) => setText(cell, clock(each.time)), numeric: true },
      text("destination", "Destination", 160, true),
      text("rule", "Rule", 160, true),
      text("plugin", "Plugin", 60),
      text("reason", "Why", 300),
      number("count", "Times"),
    ],
  });
}
