// What the pool says, kept by a stream of events that comes back by itself. Views listen; each is told at most once a frame.

const DATA = "data/";
const EVENTS = "events";
const STALE = 7_000;
/** Milliseconds without an event after which what is shown is called old. */
const DEAD = 45_000;
/** And after which the stream is opened anew: no end comes of one whose other end was switched off. A busy pool may take 30 s. */
const LONGEST_PAUSE = 15_000;
const HISTORY = 600;

class Store {
  overview = null;
  rows = new Map();
  changedAt = new Map();
  /** Of the table: rises with each change, so that views know whether to sort again. */
  version = 0;
  haveTable = false;
  connection = { kind: "connecting", retryAt: 0 };
  trouble = "";
  paused = false;

  #listeners = new Set();
  #source = null;
  #opened = 0;
  #lastEvent = 0;
  #failures = 0;
  #timer = 0;
  #scheduled = false;

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The pool's clock now: its last word, and what has passed since. */
  now() {
    if (this.overview === null) return Date.now() / 1000;
    const passed = this.connection.kind === "live" ? (performance.now() - this.#heard) / 1000 : 0;
    return this.overview.time + Math.min(passed, 5);
  }
  #heard = 0;

  start() {
    this.#open();
    setInterval(() => this.#watch(), 1000);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.connection.kind === "reconnecting") this.retry();
    });
    addEventListener("online", () => this.connection.kind === "reconnecting" && this.retry());
  }

  retry() {
    clearTimeout(this.#timer);
    this.#open();
  }

  pause(paused) {
    this.paused = paused;
    this.changed(true);
  }

  /** Listeners hear of it with the next frame; while paused only of what is not data. */
  changed(always = false) {
    if (this.paused && !always) return;
    if (this.#scheduled) return;
    this.#scheduled = true;
    const tell = () => {
      if (!this.#scheduled) return;
      this.#scheduled = false;
      for (const listener of [...this.#listeners]) listener();
    };
    requestAnimationFrame(tell);
  }

  #open() {
    this.#source?.close();
    const source = new EventSource(EVENTS);
    this.#source = source;
    this.#opened = Date.now();
    source.addEventListener("overview", (event) => this.#heardOf(source, event, (data) => this.#takeOverview(data)));
    source.addEventListener("agents", (event) => this.#heardOf(source, event, (data) => this.#takeTable(data)));
    source.addEventListener("trouble", (event) =>
      this.#heardOf(source, event, (data) => {
        this.trouble = typeof data.message === "string" && data.message ? data.message : "The pool does not answer";
      }),
    );
    source.onerror = () => this.#lost(source);
  }

  #heardOf(source, event, take) {
    if (source !== this.#source) return;
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return;
    }
    this.#lastEvent = Date.now();
    this.#failures = 0;
    if (event.type !== "trouble") this.trouble = "";
    take(data);
    if (this.connection.kind !== "live") this.#become("live");
    this.changed();
  }

  #takeOverview(next) {
    const before = this.overview;
    if (before !== null && before.started === next.started) {
      // What comes goes on from what is known, and has some of that once more: the server's clock may have been set back, too.
      const first = next.history.length ? next.history[0].time : Infinity;
      next.history = [...before.history.filter((sample) => sample.time < first), ...next.history].slice(-HISTORY);
    }
    this.#heard = performance.now();
    this.overview = next;
  }

  #takeTable(table) {
    if (table.whole) {
      this.rows = new Map();
      this.changedAt = new Map();
    }
    this.version += 1;
    for (const row of table.rows) {
      this.rows.set(row.id, row);
      this.changedAt.set(row.id, this.version);
    }
    for (const id of table.gone) {
      this.rows.delete(id);
      this.changedAt.delete(id);
    }
    this.haveTable = true;
  }

  async #lost(source) {
    if (source !== this.#source) return;
    source.close();
    this.#source = null;
    let status = 0;
    try {
      const answer = await fetch(`${DATA}overview`, { cache: "no-store", signal: AbortSignal.timeout(LONGEST_PAUSE) });
      status = answer.status;
    } catch {
      // No server, or one that says nothing: status 0.
    }
    if (this.#source !== null) return;
    if (status === 401 || status === 403) {
      this.#become("logged-out");
      return;
    }
    const stopping = this.overview !== null && /stop|drain/.test(this.overview.state);
    const pause = Math.min(LONGEST_PAUSE, 500 * 2 ** Math.min(this.#failures, 6)) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    const kind = status === 0 && stopping ? "stopped" : "reconnecting";
    this.#become(kind, Date.now() + pause);
    this.#timer = setTimeout(() => this.#open(), pause);
  }

  #become(kind, retryAt = 0) {
    this.connection = { kind, retryAt };
    this.changed(true);
  }

  #watch() {
    if (this.connection.kind === "live" && Date.now() - this.#lastEvent > STALE) this.#become("stale");
    if (this.#source !== null && Date.now() - Math.max(this.#opened, this.#lastEvent) > DEAD) this.#lost(this.#source);
    if (this.connection.kind !== "live") this.changed(true);
  }

  get silentSeconds() {
    return this.#lastEvent ? (Date.now() - this.#lastEvent) / 1000 : 0;
  }
}

export const store = new Store();

/** JSON of /data/NAME; an Error with `status` (0: no server). */
export async function ask(name, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  let answer;
  try {
    answer = await fetch(`${DATA}${name}${query ? `?${query}` : ""}`, { cache: "no-store", signal });
  } catch (error) {
    throw Object.assign(new Error("The server does not answer"), { status: 0, aborted: error.name === "AbortError" });
  }
  if (!answer.ok) {
    let text = `Status ${answer.status}`;
    try {
      text = (await answer.json()).error.message || text;
    } catch {
      // Not JSON.
    }
    throw Object.assign(new Error(text), { status: answer.status, aborted: false });
  }
  return answer.json();
}
