// Light, dark, or as the system says; kept in the browser.

import { el, icon } from "./dom.js";

const ORDER = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let shown = null;

export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function chosen() {
  return document.documentElement.dataset.theme ?? "auto";
}

function icons(theme) {
  if (theme === "light") return icon("M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.2M8 13.8V15M1 8h1.2M13.8 8H15M3 3l.9.9M12.1 12.1l.9.9M3 13l.9-.9M12.1 3.9l.9-.9");
  if (theme === "dark") return icon("M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z");
  return icon("M2 3h12v8.5H2zM6 14.5h4");
}

function draw() {
  const theme = chosen();
  const button = document.getElementById("theme");
  button.replaceChildren(icons(theme), el("span.unseen", {}, `Theme: ${NAMES[theme]}`));
  button.title = `Theme: ${NAMES[theme]} (t)`;
  const now = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  if (now !== shown) {
    shown = now;
    for (const listener of listeners) listener();
  }
}

export function nextTheme() {
  const theme = ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length];
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  remember("theme", theme);
  draw();
}

export function startTheme() {
  document.getElementById("theme").addEventListener("click", nextTheme);
  dark.addEventListener("change", draw);
  draw();
}

/** A colour of the style sheet's, for what is drawn on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function remember(name, value) {
  try {
    localStorage.setItem(`agentfw.${name}`, value);
  } catch {
    // Storage may be off or full: then only until the page is left.
  }
}

export function remembered(name, otherwise = "") {
  try {
    return localStorage.getItem(`agentfw.${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}
