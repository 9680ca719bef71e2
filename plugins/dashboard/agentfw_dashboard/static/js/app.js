// Puts it together: what the address says is shown.

import { Agent } from "./agent.js";
import { Agents } from "./agents.js";
import { drawConnection } from "./connection.js";
import { icon, setText } from "./dom.js";
import { compact } from "./format.js";
import { shortcut, startKeys } from "./keys.js";
import { Loaded } from "./loaded.js";
import { Overview } from "./overview.js";
import { go, hashOf, onRoute, parse } from "./route.js";
import { store } from "./store.js";
import { nextTheme, startTheme } from "./theme.js";

const VIEWS = { overview: Overview, agents: Agents, loaded: Loaded };
const TITLES = { overview: "Overview", agents: "Agents", loaded: "Loaded", agent: "Agent" };
const main = document.getElementById("main");
let view = null;
let name = "";
let lost = false;

function show() {
  const route = parse(location.hash);
  if (!Object.hasOwn(VIEWS, route.view)) {
    go(hashOf("overview"));
    return;
  }
  const first = view === null;
  view?.close();
  name = route.view === "agents" && route.id ? "agent" : route.view;
  view = new (name === "agent" ? Agent : VIEWS[name])(route);
  main.replaceChildren(view.node);
  if (name !== "agents") scrollTo(0, 0);
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === route.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[name]} \u00b7 agentfw`;
  view.shown?.();
  view.update();
  if (!first && name !== "agents") main.focus({ preventScroll: true });
}

function update() {
  drawConnection();
  const { kind } = store.connection;
  if (kind === "live" && lost) view?.again?.();
  lost = !["live", "stale", "connecting"].includes(kind);
  setText(document.getElementById("nav-agents"), store.haveTable ? compact(store.rows.size) : "");
  main.classList.toggle("waiting", store.overview === null && name === "overview");
  view?.update();
}

function measure() {
  const { style } = document.documentElement;
  const top = document.getElementById("top").offsetHeight;
  style.setProperty("--top", `${top}px`);
  style.setProperty("--above", `${top + document.getElementById("banner").offsetHeight}px`);
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
shortcut("p", "Agents", "Pause or resume the table", () => view.togglePause(), inTable);
const inAgent = () => name === "agent";
shortcut("]", "One agent", "Next agent", () => view.step(1), inAgent);
shortcut("[", "One agent", "Previous agent", () => view.step(-1), inAgent);
for (let digit = 1; digit <= 7; digit += 1) shortcut(String(digit), "One agent", "1 to 7: a tab", () => view.chooseAt(digit - 1), inAgent);
shortcut("Escape", "One agent", "Back to the table", () => go(view.back.getAttribute("href")), inAgent);
const sizes = new ResizeObserver(measure);
sizes.observe(document.getElementById("top"));
sizes.observe(document.getElementById("banner"));
store.listen(update);
onRoute(show);
store.start();
