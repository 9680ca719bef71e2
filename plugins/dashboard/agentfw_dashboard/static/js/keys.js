// Keyboard shortcuts: one list, from which the help is made too.

import { el } from "./dom.js";
import { remember, remembered } from "./theme.js";

const shortcuts = [];
let pending = "";
let pendingTimer = 0;
let enabled = remembered("shortcuts", "on") === "on";

/** `keys`: "?" or "g a" (one after the other). `when`: whether it means something now. */
export function shortcut(keys, group, what, action, when = () => true) {
  shortcuts.push({ keys, group, what, action, when });
}

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  if (!enabled && event.key !== "Escape" && event.key !== "?") return;
  const keys = pending ? `${pending} ${event.key}` : event.key;
  clearTimeout(pendingTimer);
  pending = "";
  const found = shortcuts.find((each) => each.keys === keys && each.when());
  if (found) {
    event.preventDefault();
    found.action();
  } else if (shortcuts.some((each) => each.keys.startsWith(`${event.key} `))) {
    pending = event.key;
    pendingTimer = setTimeout(() => (pending = ""), 1500);
  }
}

export function startKeys() {
  document.addEventListener("keydown", pressed);
  document.getElementById("help").addEventListener("click", showHelp);
  shortcut("?", "Everywhere", "This help", showHelp);
}

function showHelp() {
  const groups = new Map();
  for (const each of shortcuts) {
    const group = groups.get(each.group) ?? [];
    if (!group.some((other) => other.what === each.what)) group.push(each);
    groups.set(each.group, group);
  }
  const toggle = el("input", { type: "checkbox", id: "keys-on", checked: enabled });
  toggle.addEventListener("change", () => {
    enabled = toggle.checked;
    remember("shortcuts", enabled ? "on" : "off");
  });
  const dialog = el(
    "dialog.help",
    { "aria-labelledby": "help-title" },
    el(
      "header",
      {},
      el("h2", { id: "help-title" }, "Keyboard shortcuts"),
      el("button.icon", { type: "button", "aria-label": "Close", onclick: () => dialog.close() }, "\u00d7"),
    ),
    el(
      "div.help-groups",
      {},
      ...[...groups].map(([group, each]) =>
        el(
          "section",
          {},
          el("h3", {}, group),
          el(
            "dl",
            {},
            ...each.map((one) =>
              el("div", {}, el("dt", {}, ...one.keys.split(" ").map((key) => el("kbd", {}, nameOfKey(key)))), el("dd", {}, one.what)),
            ),
          ),
        ),
      ),
    ),
    el("footer", {}, el("label", {}, toggle, " Single-key shortcuts"), el("span.muted", {}, "Tab, arrows and Enter always work.")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

function nameOfKey(key) {
  const names = { Escape: "Esc", ArrowUp: "\u2191", ArrowDown: "\u2193", Enter: "Enter" };
  return names[key] ?? key;
}
