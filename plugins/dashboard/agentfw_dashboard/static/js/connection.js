// How the connection stands: a word in the header, and a sentence below it if it is not well. What changes each second stands apart
// from the sentence, out of what screen readers read out.

import { el, setText } from "./dom.js";
import { age } from "./format.js";
import { store } from "./store.js";
import { harmless } from "./text.js";

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  paused: "Paused",
  trouble: "No answer",
  stale: "Stale",
  reconnecting: "Reconnecting",
  "logged-out": "Logged out",
  stopped: "Stopped",
};
const again = () => el("button.plain", { type: "button", onclick: () => store.retry() }, "Try now");

const banner = document.getElementById("banner");
const sentence = el("span");
const moment = el("span", { "aria-hidden": "true" });
const action = el("span");
banner.append(sentence, moment, action);
let drawn = "";

/** Kind of a sentence, the sentence, what changes, what can be done; null: all is well. */
function trouble() {
  const { kind, retryAt } = store.connection;
  const old = store.overview === null ? "" : `This is ${age(store.silentSeconds)} old. `;
  const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  if (kind === "logged-out") {
    const how = ["You are logged out. ", el("code", {}, "agentfw dashboard"), " on the pool\u2019s machine opens this page again."];
    return ["out", how, "", () => el("a", { href: "login" }, "Log in")];
  }
  if (kind === "stopped") return ["stopped", ["The pool was stopped. This is how it stood at last."], "", again];
  if (kind === "reconnecting") {
    const what = store.overview === null ? "The pool does not answer." : "No connection to the pool.";
    return ["lost", [what], old + (seconds ? `Next try in ${seconds} s.` : "Trying."), again];
  }
  if (kind === "stale") return ["stale", ["Nothing new comes; what is shown may be old."], old, again];
  if (store.trouble) return ["trouble", [harmless(store.trouble, 200)], "", null];
  return null;
}

export function drawConnection() {
  const { kind } = store.connection;
  const shown = kind === "live" ? (store.trouble ? "trouble" : store.paused ? "paused" : kind) : kind;
  document.getElementById("connection").dataset.kind = shown;
  setText(document.getElementById("connection-text"), WORDS[shown]);
  const state = document.getElementById("pool-state");
  const word = store.overview?.state ?? "";
  state.hidden = !word || word === "ready";
  setText(state, harmless(word, 30));
  document.body.classList.toggle("old", kind !== "live" && store.overview !== null);

  const said = trouble();
  banner.hidden = said === null;
  const [name, words, changing, made] = said ?? ["", [], "", null];
  setText(moment, changing);
  const text = name + words.map((each) => each.textContent ?? each).join("");
  if (text === drawn) return; // the button stays: it may have the focus
  drawn = text;
  banner.dataset.kind = name;
  sentence.replaceChildren(...words);
  action.replaceChildren(...(made ? [made()] : []));
}
