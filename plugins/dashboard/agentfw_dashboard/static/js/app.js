// Puts it together: what the address says is shown, and how the connection stands.

import { Agent } from "./agent.js";
import { Agents } from "./agents.js";
import { el, icon, setText } from "./dom.js";
import { age, compact } from "./format.js";
import { shortcut, startKeys } from "./keys.js";
import { Loaded } from "./loaded.js";
import { Overview } from "./overview.js";
import { go, hashOf, onRoute, parse } from "./route.js";
import { store } from "./store.js";
import { harmless } from "./text.js";
import { nextTheme, startTheme } from "./theme.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let view = null;
let name = "";
let lost = false;

function show() {
  const route = parse(location.hash);
  if (!["overview", "agents", "loaded"].includes(route.view)) {
    go(hashOf("overview"));
    return;
  }
  const first = view === null;
  const agent = route.view === "agents" && route.id;
  const next = agent ? `agent ${route.id}` : route.view;
  view?.close();
  name = next.split(" ")[0];
  if (agent) view = new Agent(route);
  else view = { overview: Overview, agents: Agents, loaded: Loaded }[route.view];
  if (typeof view === "function") view = new view(route);
  main.replaceChildren(view.node);
  if (name !== "agents") scrollTo(0, 0);
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === route.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${{ overview: "Overview", agents: "Agents", loaded: "Loaded", agent: "Agent" }[name]} \u00b7 agentfw`;
  view.shown?.();
  view.update();
  if (!first && name !== "agents") main.focus({ preventScroll: true });
}

const WORDS = {
  connecting: "Connecting",
  live: "Live",
  stale: "Stale",
  reconnecting: "Reconnecting",
  "logged-out": "Logged out",
  stopped: "Stopped",
};

function connection() {
  const { kind, retryAt } = store.connection;
  const pill = document.getElementById("connection");
  const shown = store.trouble && kind === "live" ? "trouble" : store.paused && kind === "live" ? "paused" : kind;
  pill.dataset.kind = shown;
  setText(document.getElementById("connection-text"), shown === "trouble" ? "No answer" : shown === "paused" ? "Paused" : WORDS[kind]);
  const state = document.getElementById("pool-state");
  const word = store.overview?.state ?? "";
  state.hidden = !word || word === "ready";
  setText(state, harmless(word, 30));
  document.body.classList.toggle("old", kind !== "live" && store.overview !== null);
  const seconds = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  const again = el("button.plain", { type: "button", onclick: () => store.retry() }, "Try now");
  let said = null;
  if (kind === "logged-out") {
    said = ["out", ["You are logged out. ", el("code", {}, "agentfw dashboard"), " on the pool\u2019s machine opens this page again. "], el("a", { href: "login" }, "Log in")];
  } else if (kind === "stopped") said = ["stopped", ["The pool was stopped. This is how it stood at last. "], again];
  else if (kind === "reconnecting") {
    const what = store.overview === null ? "The pool does not answer. " : `No connection; this is ${age(store.silentSeconds)} old. `;
    said = ["lost", [what, seconds ? `Next try in ${seconds} s. ` : "Trying. "], again];
  } else if (kind === "stale") said = ["stale", [`Nothing new for ${age(store.silentSeconds)}; what is shown may be old. `], again];
  else if (store.trouble) said = ["trouble", [harmless(store.trouble, 200)], null];
  if (said === null) {
    banner.hidden = true;
    banner.replaceChildren();
    delete banner.dataset.kind;
  } else if (banner.dataset.kind === said[0] && banner.querySelector("span")) {
    banner.hidden = false;
    const span = banner.querySelector("span");
    const before = span.textContent;
    const fresh = el("span", {}, ...said[1]);
    if (fresh.textContent !== before) span.replaceWith(fresh); // the button stays: it may have the focus
  } else {
    banner.dataset.kind = said[0];
    banner.hidden = false;
    banner.replaceChildren(el("span", {}, ...said[1]), ...(said[2] ? [said[2]] : []));
  }
  if (kind === "live" && lost) view?.again?.();
  lost = kind !== "live" && kind !== "stale" && kind !== "connecting";
}

function update() {
  connection();
  setText(document.getElementById("nav-agents"), store.haveTable ? compact(store.rows.size) : "");
  if (store.overview === null && name === "overview") {
    main.classList.add("waiting");
  } else main.classList.remove("waiting");
  view?.update();
}

function measure() {
  document.documentElement.style.setProperty("--top", `${document.getElementById("top").offsetHeight}px`);
}

/** Ends the session; what is at the page's address then is the form to log in. */
async function logOut() {
  try {
    await fetch("logout", { method: "POST", redirect: "manual" });
  } finally {
    location.replace(location.pathname);
  }
}

const out = document.getElementById("logout");
out.append(icon("M6.5 2.5h-3v11h3M10 5l3 3-3 3M13 8H6.5"));
out.addEventListener("click", logOut);
startTheme();
startKeys();
shortcut("g o", "Everywhere", "Overview", () => go(hashOf("overview")));
shortcut("g a", "Everywhere", "Agents", () => go(hashOf("agents")));
shortcut("g l", "Everywhere", "Loaded", () => go(hashOf("loaded")));
shortcut("t", "Everywhere", "Light, dark or as the system", nextTheme);
shortcut("/", "Agents", "Filter", () => {
  if (name === "agents") view.focusFilter();
  else {
    go(hashOf("agents"));
    view.focusFilter();
  }
});
const inTable = () => name === "agents";
shortcut("j", "Agents", "Next", () => view.step(1), inTable);
shortcut("k", "Agents", "Previous", () => view.step(-1), inTable);
shortcut("Enter", "Agents", "Open", () => view.openActive(), () => inTable() && document.activeElement === document.body);
shortcut("p", "Agents", "Hold the table still, or go on", () => view.togglePause(), inTable);
const inAgent = () => name === "agent";
shortcut("]", "One agent", "The agent behind", () => view.step(1), inAgent);
shortcut("[", "One agent", "The agent before", () => view.step(-1), inAgent);
for (let digit = 1; digit <= 7; digit += 1) shortcut(String(digit), "One agent", digit === 1 ? "1 to 7: a tab" : "1 to 7: a tab", () => view.chooseAt(digit - 1), inAgent);
shortcut("Escape", "One agent", "Back to the table", () => go(view.back.getAttribute("href")), inAgent);
new ResizeObserver(measure).observe(document.getElementById("top"));
store.listen(update);
onRoute(show);
store.start();
