// The address behind the "#": "/agents/ID/TAB?filter=..." is a link that can be sent to somebody.

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view: parts[0] || "overview", id: parts[1] ?? "", tab: parts[2] ?? "", query: new URLSearchParams(query) };
}

export function hashOf(view, { id = "", tab = "", query = {} } = {}) {
  const path = [view, id, tab].filter(Boolean).map(encodeURIComponent).join("/");
  const filled = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(filled).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

let follow = () => {};

/** `show` is called when the address has become another one. */
export function onRoute(show) {
  let shown = null;
  follow = () => {
    if (location.hash === shown) return;
    shown = location.hash;
    show();
    shown = location.hash; // a view may have made it more exact
  };
  addEventListener("hashchange", follow);
  follow();
}

/** Shown before this returns: the next key belongs to the new view. */
export function go(hash) {
  location.hash = hash;
  follow();
}

/** Changes the address without a step in the browser's history. */
export function replace(hash) {
  if (location.hash !== hash) history.replaceState(null, "", hash);
}
