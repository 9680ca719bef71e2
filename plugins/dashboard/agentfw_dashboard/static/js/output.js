// The end of what an agent wrote. Colours that a terminal would show are left out, all else that a terminal would obey is shown as text.

import { el, setText } from "./dom.js";
import { bytes } from "./format.js";
import { ask } from "./store.js";
import { harmlessLines } from "./text.js";

const COLOURS = /\u001b\[[\d;:]*m/g;
/** SGR, ECMA-48 8.3.117. */
const EVERY = 1000;

export class Output {
  constructor(id) {
    this.id = id;
    this.last = "";
    this.tail = null;
    this.over = false;
    this.follow = true;
    this.text = el("pre.output", { tabindex: 0, role: "log", "aria-label": "Output", "aria-live": "off" });
    this.said = el("span.muted", { role: "status" });
    this.raw = el("input", { type: "checkbox", onchange: () => this.#draw() });
    this.wrap = el("input", { type: "checkbox", checked: true, onchange: () => this.text.classList.toggle("wrap", this.wrap.checked) });
    this.text.classList.add("wrap");
    this.down = el("button.plain", { type: "button", onclick: () => this.#follow(true), hidden: true }, "Follow");
    this.text.addEventListener("scroll", () => {
      const at = this.text.scrollHeight - this.text.clientHeight - this.text.scrollTop;
      this.#follow(at < 24, false);
    }, { passive: true });
    this.node = el("section", { "aria-label": "Output" },
      el("div.tools", {}, this.said, this.down, el("label", {}, this.raw, " Escapes"), el("label", {}, this.wrap, " Wrap")), this.text);
    this.watcher = new ResizeObserver(() => this.follow && this.#follow(true)); // it may come into sight after its text came
    this.watcher.observe(this.text);
    this.controller = new AbortController();
    this.#run();
  }

  close() {
    this.over = true;
    this.controller.abort();
    this.watcher.disconnect();
    clearTimeout(this.timer);
  }

  async #run() {
    let ended = false;
    try {
      this.tail = await ask("output", { id: this.id }, this.controller.signal);
      ended = this.tail.ended;
      this.#draw();
    } catch (error) {
      if (error.aborted) return;
      setText(this.said, error.message);
      this.text.hidden = this.tail === null;
      // There will be none: of a single command, it goes to the terminal; or one is logged out.
      ended = error.status === 404 || error.status === 401;
    }
    if (!this.over && !ended) this.timer = setTimeout(() => this.#run(), EVERY);
  }

  #follow(on, scroll = true) {
    this.follow = on;
    this.down.hidden = on;
    if (on && scroll) this.text.scrollTop = this.text.scrollHeight;
  }

  #draw() {
    if (this.tail === null) return;
    const { pieces, skipped, ended } = this.tail;
    const key = `${this.raw.checked} ${skipped} ${pieces.map((piece) => `${piece.stream}${piece.text}`).join("\u0000")}`;
    setText(this.said, [pieces.length ? "" : "No output", skipped ? `${bytes(skipped)} before this are not shown` : "", ended ? "Ended" : "Live"].filter(Boolean).join(" \u00b7 "));
    if (key === this.last) return;
    this.last = key;
    this.text.hidden = false;
    this.text.replaceChildren(...pieces.map((piece) => {
      const text = this.raw.checked ? piece.text : piece.text.replace(COLOURS, "");
      return el(piece.stream === 2 ? "span.stderr" : "span", {}, harmlessLines(text.replaceAll("\r\n", "\n"), 1_000_000));
    }));
    if (this.follow) this.text.scrollTop = this.text.scrollHeight;
  }
}

