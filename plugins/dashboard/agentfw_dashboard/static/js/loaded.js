// The configuration in force: plugins in calling order, and the policy in words.

import { el } from "./dom.js";
import { counter } from "./format.js";
import { ask } from "./store.js";
import { harmless, harmlessLines, nameOf } from "./text.js";

export class Loaded {
  constructor() {
    this.node = el("div.view.loaded", {}, el("h1.unseen", {}, "Loaded"), el("p.empty", { role: "status" }, "Loading"));
    this.controller = new AbortController();
  }

  shown() {
    this.#ask();
  }

  /** Again, if the pool came back: it may have another configuration. */
  again() {
    this.#ask();
  }

  update() {}

  async #ask() {
    try {
      this.#draw(await ask("loaded", {}, this.controller.signal));
    } catch (error) {
      if (error.aborted) return;
      this.node.lastChild.replaceWith(el("p.empty", { role: "status" }, error.message));
    }
  }

  #draw(loaded) {
    this.node.replaceChildren(
      el("h1.unseen", {}, "Loaded"),
      el("p.muted", {}, loaded.file ? "Configuration: " : "No configuration file: all is as it is built in.", loaded.file ? el("code", {}, harmless(loaded.file, 300)) : null),
      el("section.card", { "aria-labelledby": "policy-title" },
        el("header", {}, el("h2", { id: "policy-title" }, "Policy")),
        loaded.policy ? el("pre.output.wrap", { tabindex: 0, "aria-label": "Policy" }, harmlessLines(loaded.policy)) : el("p.empty", {}, this.#unsaid(loaded))),
      el("h2", {}, "Plugins, in calling order"),
      el("ol.plugins", {}, ...loaded.plugins.map((plugin, at) => this.#plugin(plugin, at + 1))),
    );
  }

  /** Plugins that decide need not say how. */
  #unsaid(loaded) {
    const deciding = loaded.plugins.filter((plugin) => plugin.hooks.includes("allow")).map((plugin) => nameOf(plugin.name, 60));
    return deciding.length ? `What agents may reach is decided by ${deciding.join(", ")}` : "No plugin restricts what agents may reach";
  }

  #plugin(plugin, place) {
    const all = Object.entries(plugin.counters).filter(([name]) => !name.includes(".bucket."));
    const counters = all.filter(([, value]) => value !== 0);
    const zeros = all.filter(([, value]) => value === 0).map(([name]) => harmless(name, 60));
    return el("li.card", {},
      el("header", {}, el("h3", {}, el("span.place", { "aria-hidden": "true" }, String(place)), el("bdi", {}, nameOf(plugin.name, 80))), el("span.muted", {}, harmless(plugin.version, 40))),
      plugin.hooks.length ? el("ul.hooks", { "aria-label": "Hooks" }, ...plugin.hooks.map((hook) => el("li.mono", {}, harmless(hook, 80)))) : null,
      counters.length ? el("dl.counters", {}, ...counters.map(([name, value]) => el("div", {}, el("dt", {}, harmless(name, 60)), el("dd", {}, counter(name, value))))) : null,
      zeros.length ? el("details", {}, el("summary", {}, `${zeros.length} at zero`), el("p.muted", {}, zeros.join(", "))) : null,
      plugin.table ? el("details", {}, el("summary", {}, "Table"), el("pre.output.wrap", { tabindex: 0, "aria-label": "Table" }, harmlessLines(plugin.table))) : null,
    );
  }

  close() {
    this.controller.abort();
  }
}
