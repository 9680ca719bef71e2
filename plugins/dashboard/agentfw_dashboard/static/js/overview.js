// The pool at a glance: six numbers, then models and denials, then the last ten minutes.

import { Bars, Lines, thinned } from "./charts.js";
import { el, keyed, setAttribute, setText } from "./dom.js";
import { ago, bytes, clock, compact, count, duration, money, NONE, percent, rate } from "./format.js";
import { hashOf } from "./route.js";
import { store } from "./store.js";
import { harmless, nameOf } from "./text.js";

const BAR = 0.1;
/** Seconds, as views.WARMUP_BUCKET. */
const perSecond = (value) => `${rate(value)}/s`;
const bytesPerSecond = (value) => `${bytes(value)}/s`;

/** Which workers do not answer. */
const silent = (now) => (now.silent?.length ? ` (${now.silent.slice(0, 4).join(", ")} silent)` : "");

/** The time within which a share of all was warm, between the ends of its bar. The last bar has none. */
function within(bars, share) {
  const wanted = bars.reduce((sum, each) => sum + each, 0) * share;
  if (!wanted) return NONE;
  let below = 0;
  for (let index = 0; index < bars.length - 1; index += 1) {
    if (below + bars[index] >= wanted) return duration((index + (wanted - below) / bars[index]) * BAR);
    below += bars[index];
  }
  return beyond(bars);
}

function beyond(bars) {
  return `over ${((bars.length - 1) * BAR).toFixed(1)} s`;
}

class Card {
  /** A number with its unit and what stands behind it. `facts`: names of what is listed below. */
  constructor(id, title, hint, facts, chart) {
    this.big = el("strong", {}, NONE);
    this.small = el("span", {});
    this.facts = facts.map((name) => ({ name, value: el("dd", {}, NONE) }));
    this.chart = chart;
    this.node = el(
      "section.card.number",
      { "aria-labelledby": `${id}-title`, id },
      el("header", {}, el("h2", { id: `${id}-title` }, title), el("span.hint", {}, hint)),
      el("p.big", {}, this.big, this.small),
      chart?.node,
      el("dl.facts", {}, ...this.facts.map(({ name, value }) => el("div", {}, el("dt", {}, name), value))),
    );
  }

  set(big, small, ...facts) {
    setText(this.big, big);
    setText(this.small, small);
    facts.forEach((text, at) => setText(this.facts[at].value, text));
  }
}

function spark(label, series) {
  return new Lines({ label, height: 60, bare: true, series });
}

export class Overview {
  constructor() {
    this.charts = [];
    this.strip = el("dl.strip", { "aria-label": "Agents and workers" });
    this.cards = this.#cards();
    this.tiles = this.#tiles();
    this.live = this.#live();
    this.denials = el("tbody");
    const heads = ["When", "Agent", "Destination", "Rule", "Plugin", "Why", "Times"];
    this.denialTable = el(
      "table.list",
      {},
      el("thead", {}, el("tr", {}, ...heads.map((name, at) => el(at === 6 ? "th.numeric" : "th", { scope: "col" }, name)))),
      this.denials,
    );
    this.noDenials = el("p.empty", {}, "Nothing was denied");
    this.node = el(
      "div.view.overview",
      {},
      el("h1.unseen", {}, "Overview"),
      this.strip,
      el("div.cards", {}, ...Object.values(this.cards).map((card) => card.node)),
      el("div.tiles", {}, ...Object.values(this.tiles).map((tile) => tile.node)),
      el("div.cards.wide", {}, ...this.live.map(({ node }) => node)),
      el(
        "section.card",
        { "aria-labelledby": "denials-title", id: "denials" },
        el("header", {}, el("h2", { id: "denials-title" }, "Recent denials"), el("a.hint", { href: hashOf("agents", { query: { filter: "denials>0" } }) }, "Agents with denials")),
        el(
          "div.scroll",
          { tabindex: 0, role: "group", "aria-label": "Recent denials" },
          this.denialTable,
          this.noDenials,
        ),
      ),
    );
  }

  #cards() {
    const warmup = new Bars({
      label: "VMs by seconds until warm",
      height: 104,
      summary: (data) => `${data[1].reduce((sum, each) => sum + each, 0)} VMs`,
      tick: (value) => `${Number(value.toFixed(1))} s`,
      tell: (begin, vms, index) => [["", index === 49 ? `${begin.toFixed(1)} s and more` : `${begin.toFixed(1)} \u2013 ${(begin + BAR).toFixed(1)} s`], ["blue", `${count(vms)} VMs`]],
    });
    const density = spark("Memory", [{ label: "Memory", colour: "teal", format: bytes, fill: true }]);
    const dns = spark("Questions", [{ label: "Questions", colour: "violet", format: perSecond, fill: true }]);
    const through = spark("Throughput", [
      { label: "Out", colour: "amber", format: bytesPerSecond, fill: true },
      { label: "In", colour: "blue", format: bytesPerSecond, fill: true },
    ]);
    const requests = spark("Requests", [{ label: "Requests", colour: "blue", format: perSecond, fill: true }]);
    this.sparks = { density, dns, through, requests };
    this.charts.push(warmup, density, dns, through, requests);
    return {
      warmup: new Card("warmup", "Warm-up", "100 ms bars", ["VMs", "95 % within", "Longest bar"], warmup),
      density: new Card("density", "Density", "physical memory, on the host", ["Memory", "VMs there", "A VM"], density),
      dns: new Card("dns", "DNS cache", "shared by all agents", ["Hits", "Misses", "Lookups"], dns),
      latency: new Latency(),
      tls: new Card("tls", "TLS sessions", "held for the fleet", ["Agents", "Sessions", "Requests"], requests),
      throughput: new Card("throughput", "Throughput", "now", ["In, all", "Out, all", "Now, out"], through),
    };
  }

  #tiles() {
    const tile = (id, title, label, shade, format, href = null) => {
      const chart = label ? spark(label, [{ label, colour: shade, format, fill: true }]) : null;
      if (chart) this.charts.push(chart);
      const big = el("strong", {}, NONE);
      const small = el("span.muted", {}, "");
      const head = el("h2", {}, href ? el("a", { href }, title) : title);
      return { big, small, chart, node: el("section.card.tile", { id }, head, el("p.big", {}, big), small, chart?.node) };
    };
    const tiles = {
      calls: tile("calls", "Model calls", "Model calls", "blue", perSecond, hashOf("agents", { query: { sort: "-model_calls" } })),
      tokens: tile("tokens", "Tokens", "Tokens", "violet", perSecond, hashOf("agents", { query: { sort: "-input_tokens" } })),
      cost: tile("cost", "Cost", null, "", null, hashOf("agents", { query: { sort: "-cost" } })),
      denied: tile("denied", "Denials", "Denials", "red", perSecond, hashOf("agents", { query: { sort: "-denials" } })),
    };
    this.costs = el("span.muted");
    tiles.cost.node.append(this.costs);
    return tiles;
  }

  #live() {
    const make = (title, series, names, format) => {
      const chart = new Lines({ label: title, height: 168, series, format, least: format === bytes ? 1000 : 1, whole: format === count });
      this.charts.push(chart);
      const legend = el("ul.legend", {}, ...series.map((each) => {
        const mark = el("i", { "aria-hidden": "true" });
        mark.classList.add(`shade-${each.colour}`);
        return el("li", {}, mark, each.label);
      }));
      return { chart, names, node: el("section.card", {}, el("header", {}, el("h2", {}, title), legend), chart.node) };
    };
    return [
      make("Agents", [
        { label: "Running", colour: "blue", format: count, fill: true },
      ], ["running"], count),
      make("Starts and ends", [
        { label: "Started", colour: "teal", format: perSecond },
        { label: "Ended", colour: "violet", format: perSecond },
      ], ["started", "ended"], rate),
      make("Model calls and requests", [
        { label: "Requests", colour: "teal", format: perSecond },
        { label: "Model calls", colour: "blue", format: perSecond },
      ], ["requests", "model_calls"], rate),
      make("Network", [
        { label: "In", colour: "blue", format: bytesPerSecond, fill: true },
        { label: "Out", colour: "amber", format: bytesPerSecond, fill: true },
      ], ["bytes_down", "bytes_up"], bytes),
    ];
  }

  update() {
    const now = store.overview;
    if (now === null) return;
    const history = now.history;
    const lines = (...names) => thinned([history.map((each) => each.time), ...names.map((name) => history.map((each) => (name === "memory" && each.memory === 0 ? null : each[name])))]);
    const last = history.at(-1);
    this.#strip(now);
    const vms = now.warmup.reduce((sum, each) => sum + each, 0);
    const longest = now.warmup.findLastIndex((each) => each > 0);
    const most = longest < 0 ? NONE : longest === now.warmup.length - 1 ? beyond(now.warmup) : `${(longest * BAR).toFixed(1)} s`;
    this.cards.warmup.set(within(now.warmup, 0.5), vms ? "median" : "no VM was warmed yet", count(vms), within(now.warmup, 0.95), most);
    this.cards.warmup.chart.set([now.warmup.map((_each, at) => Number((at * BAR).toFixed(1))), now.warmup]);
    const there = now.running + now.idle;
    this.cards.density.set(now.agents_per_gb === null ? NONE : compact(Math.round(now.agents_per_gb)), "agents a GiB", now.memory ? bytes(now.memory) : NONE, count(there), there && now.memory ? bytes(now.memory / there) : NONE);
    this.sparks.density.set(lines("memory"));
    const looked = now.dns_hit_rate !== null;
    this.cards.dns.set(percent(now.dns_hit_rate), "hits", compact(now.dns_hits), looked ? compact(now.dns_misses) : NONE, compact(now.dns_hits + now.dns_misses));
    this.sparks.dns.set(lines("questions"));
    this.cards.latency.set(now);
    this.cards.tls.set(now.agents_per_session === null ? NONE : rate(now.agents_per_session), "agents a session", compact(now.tls_agents), compact(now.tls_sessions), compact(now.requests));
    this.sparks.requests.set(lines("requests"));
    this.cards.throughput.set(last ? bytesPerSecond(last.bytes_down) : NONE, "in", bytes(now.bytes_down), bytes(now.bytes_up), last ? bytesPerSecond(last.bytes_up) : NONE);
    this.sparks.through.set(lines("bytes_up", "bytes_down"));
    this.#tile("calls", compact(now.model_calls), now.model_calls_failed ? `${compact(now.model_calls_failed)} failed` : "none failed", lines("model_calls"));
    this.#tile("tokens", compact(now.input_tokens + now.output_tokens), `${compact(now.input_tokens)} in, ${compact(now.output_tokens)} out`, lines("tokens"));
    this.#tile("cost", money(now.cost, now.currency), now.cost === null ? "no prices are known" : now.model_calls ? `${money(now.cost / now.model_calls, now.currency)} a call` : "", null);
    const agents = now.done + now.running;
    setText(this.costs, now.cost !== null && agents ? `${money(now.cost / agents, now.currency)} an agent` : "");
    this.#tile("denied", compact(now.denials), last && last.denials ? `${perSecond(last.denials)} now` : "none now", lines("denials"));
    for (const { chart, names } of this.live) chart.set(lines(...names));
    this.#denials(now);
  }

  #tile(name, big, small, data) {
    const tile = this.tiles[name];
    setText(tile.big, big);
    setText(tile.small, small);
    if (data) tile.chart.set(data);
  }

  #strip(now) {
    const items = [
      ["Running", count(now.running), "state:running", "run"],
      ["Queued", count(now.queued), "state:queued", "wait"],
      ["Done", compact(now.done), "state:done", ""],
      ["Failed", compact(now.failed), "status:failed", now.failed ? "bad" : ""],
      ["Idle VMs", count(now.idle), "", ""],
      ["Warming", count(now.warming), "", ""],
      ["Workers", now.workers_missing ? `${count(now.workers - now.workers_missing)} of ${count(now.workers)}${silent(now)}` : count(now.workers), "", now.workers_missing ? "bad" : ""],
      ["Up", duration(Math.max(1, now.time - now.started)), "", ""],
    ];
    keyed(this.strip, items, ([name]) => name, ([name, , filter]) => {
      const value = el("dd");
      return el("div", {}, el("dt", {}, filter ? el("a", { href: hashOf("agents", { query: { filter } }) }, name) : name), value);
    }, (node, [, value, , kind]) => {
      setText(node.lastChild, value);
      node.lastChild.className = kind;
    });
  }

  #denials(now) {
    this.noDenials.hidden = now.recent_denials.length > 0;
    this.denialTable.hidden = now.recent_denials.length === 0;
    const at = store.now();
    keyed(this.denials, now.recent_denials, (each) => [each.agent_id, each.agent, each.destination, each.rule, each.plugin, each.reason].map((text) => text.slice(0, 300)).join("\n"), (each) => {
      const name = nameOf(each.agent, 60);
      const cells = [
        el("td.nowrap", {}),
        el("td.long", {}, each.agent_id ? el("a.name", { href: hashOf("agents", { id: each.agent_id, tab: "denials" }) }, name) : name),
        el("td.mono.long", {}, el("bdi", {}, harmless(each.destination, 120))),
        el("td.mono.long", {}, harmless(each.rule, 120)),
        el("td.nowrap", {}, harmless(each.plugin, 40)),
        el("td.long", {}, harmless(each.reason, 200)),
        el("td.numeric", {}),
      ];
      return el("tr", {}, ...cells);
    }, (row, each) => {
      setText(row.firstChild, ago(each.time, at));
      setAttribute(row.firstChild, "title", clock(each.time));
      setText(row.lastChild, count(each.count));
    });
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

class Latency {
  /** Three spreads as a small table: there is no single number to them. */
  constructor() {
    this.rows = [
      ["dispatch", "Dispatch", "from the job to its first bytecode"],
      ["connect", "Connect", "until a connection was there"],
      ["first_call", "First call", "from dispatch to the first request"],
    ].map(([key, name, title]) => ({ key, name, title, cells: [0, 1, 2].map(() => el("td.numeric", {}, NONE)), count: el("td.numeric.muted", {}, NONE) }));
    this.node = el(
      "section.card.number",
      { "aria-labelledby": "latency-title", id: "latency" },
      el("header", {}, el("h2", { id: "latency-title" }, "Latency"), el("span.hint", {}, "since the pool's start")),
      el(
        "table.latency",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span.unseen", {}, "What")), ...["p50", "p95", "p99", "n"].map((name) => el(name === "n" ? "th.numeric.n" : "th.numeric", { scope: "col" }, name)))),
        el("tbody", {}, ...this.rows.map((row) => el("tr", {}, el("th", { scope: "row", title: row.title }, row.name), ...row.cells, row.count))),
      ),
      el("p.hint", {}, "Dispatch: a job\u2019s VM until its first bytecode. Connect: pooled connections count."),
    );
  }

  set(now) {
    for (const row of this.rows) {
      const spread = now[row.key];
      ["p50", "p95", "p99"].forEach((name, at) => setText(row.cells[at], duration(spread[name])));
      setText(row.count, compact(spread.count));
    }
  }
}
