// Elements are made and changed here only. Nothing in this page parses markup: text is textContent, styles go through the CSSOM
// (a style attribute would be against the page's own policy).

const SVG = "http://www.w3.org/2000/svg";

/** el("button.icon", {type: "button", "aria-label": "Close", onclick}, "text", child, ...): strings are text, null is nothing. */
export function el(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return dress(document.createElement(tag), classes, properties, children);
}

function svg(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  return dress(document.createElementNS(SVG, tag), classes, properties, children);
}

function dress(node, classes, properties, children) {
  if (classes.length) node.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** Text, if it is another one: an unchanged node keeps a reader's selection. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** Children of `parent`, one an item, kept by key: what stays is changed in place. `make(item)` gives a node, `change(node, item)` fills it. */
export function keyed(parent, items, keyOf, make, change) {
  const known = parent.keyedNodes ?? new Map();
  const next = new Map();
  for (const item of items) {
    let key = keyOf(item);
    while (next.has(key)) key += "\u0000";
    next.set(key, known.get(key) ?? make(item));
    known.delete(key);
  }
  for (const node of known.values()) node.remove();
  let at = parent.firstChild;
  let index = 0;
  for (const node of next.values()) {
    change(node, items[index++]);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  parent.keyedNodes = next;
}

export function clear(node) {
  node.replaceChildren();
  delete node.keyedNodes;
}

/** A small drawing of 16 by 16, from paths that are strokes. */
export function icon(...paths) {
  const drawing = svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", fill: "none", stroke: "currentColor" });
  drawing.setAttribute("stroke-width", "1.5");
  drawing.setAttribute("stroke-linecap", "round");
  drawing.setAttribute("stroke-linejoin", "round");
  for (const path of paths) drawing.append(svg("path", { d: path }));
  return drawing;
}
