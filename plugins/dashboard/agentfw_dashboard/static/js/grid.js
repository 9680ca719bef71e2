// A table of any length of which only the rows in sight are in the document. Rows keep their nodes while they are in sight, so that
// selections of text, focus and the scroll position survive changes. Keyboard as of a WAI-ARIA grid that is moved in by rows.

import { el, setAttribute } from "./dom.js";

const BEYOND = 8;
/** Rows above and below those in sight. */
let made = 0;

export class Grid {
  /**
   * `columns`: [{key, label, width, title, numeric, fill(cell, row)}]; `open(id)`: a row is chosen; `sorted({key, descending})`: another
   * order is wanted. `compact(cell, row)` fills the only cell that a row has on a narrow page.
   */
  constructor({ label, columns, height, compactHeight, compact, open, sorted }) {
    this.columns = columns;
    this.height = height;
    this.open = open;
    this.sorted = sorted;
    this.rows = [];
    this.active = null;
    this.sort = { key: "", descending: false };
    this.narrow = false;
    this.heights = { wide: height, narrow: compactHeight };
    this.compact = compact;
    this.name = `grid${++made}`;
    this.shown = new Map();
    this.headRow = el("div.grid-row", { role: "row", "aria-rowindex": 1 });
    this.head = el("div.grid-head", { role: "rowgroup" }, this.headRow);
    this.body = el("div.grid-body", { role: "rowgroup" });
    this.node = el("div.grid", { role: "grid", tabindex: 0, "aria-label": label, "aria-readonly": "true" }, this.head, this.body);
    this.node.addEventListener("scroll", () => this.draw(), { passive: true });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (event) => this.#click(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.node);
    this.setColumns(columns, false);
  }

  close() {
    this.watcher.disconnect();
  }

  setColumns(columns, narrow) {
    this.columns = columns;
    this.narrow = narrow;
    this.height = narrow ? this.heights.narrow : this.heights.wide;
    this.node.classList.toggle("narrow", narrow);
    const shown = narrow ? [{ key: "name", label: "Agent", width: 0 }] : columns;
    this.node.style.setProperty("--columns", narrow ? "1fr" : shown.map((column) => (column.numeric ? `${column.width}px` : `minmax(${column.width}px, ${column.width}fr)`)).join(" "));
    this.node.style.setProperty("--row", `${this.height}px`);
    this.node.style.setProperty("--width", narrow ? "100%" : `${shown.reduce((sum, column) => sum + column.width, 0)}px`);
    this.node.setAttribute("aria-colcount", String(shown.length));
    this.headers = shown.map((column, index) => {
      const button = el("button", { type: "button", tabindex: index ? -1 : 0, title: column.title ?? column.label }, el("span", {}, column.label));
      button.addEventListener("click", () => this.#sortBy(column));
      button.addEventListener("keydown", (event) => this.#headKey(event, index));
      const cell = el("div.grid-cell", { role: "columnheader", "aria-colindex": index + 1 }, button);
      cell.classList.toggle("numeric", Boolean(column.numeric));
      return { cell, button, column };
    });
    this.headRow.replaceChildren(...this.headers.map((header) => header.cell));
    this.#drawSort();
    for (const node of this.shown.values()) node.row.remove();
    this.shown.clear();
    this.draw();
  }

  setSort(sort) {
    this.sort = sort;
    this.#drawSort();
  }

  /** In the order to be shown; each has an `id`. */
  setRows(rows) {
    this.rows = rows;
    this.node.setAttribute("aria-rowcount", String(rows.length + 1));
    this.body.style.height = `${rows.length * this.height}px`;
    if (this.active !== null && !rows.some((row) => row.id === this.active)) this.active = null;
    this.draw();
  }

  draw() {
    const space = this.node.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.height) - BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.node.scrollTop + space) / this.height) + BEYOND);
    const left = new Map(this.shown);
    for (let index = first; index < last; index += 1) left.delete(this.rows[index].id);
    const free = [...left.entries()];
    for (let index = first; index < last; index += 1) {
      const row = this.rows[index];
      let node = this.shown.get(row.id);
      if (node === undefined) {
        const reused = free.pop();
        if (reused !== undefined) {
          left.delete(reused[0]);
          this.shown.delete(reused[0]);
          node = reused[1];
        } else node = this.#make();
        this.shown.set(row.id, node);
      }
      this.#fill(node, row, index);
    }
    for (const [id, node] of left) {
      node.row.remove();
      this.shown.delete(id);
    }
    const active = this.active === null ? undefined : this.shown.get(this.active);
    setAttribute(this.node, "aria-activedescendant", active?.row.id ?? null);
  }

  #make() {
    const columns = this.narrow ? [null] : this.columns;
    const cells = columns.map((column, index) => {
      const cell = el("div.grid-cell", { role: "gridcell", "aria-colindex": index + 1 });
      if (column?.numeric) cell.classList.add("numeric");
      if (column) cell.classList.add(`c-${column.key}`);
      return cell;
    });
    const row = el("div.grid-row", { role: "row", id: `${this.name}-${++made}` }, ...cells);
    this.body.append(row);
    return { row, cells, index: -1, of: null };
  }

  #fill(node, row, index) {
    if (node.index !== index) {
      node.index = index;
      node.row.style.transform = `translateY(${index * this.height}px)`;
      node.row.setAttribute("aria-rowindex", String(index + 2));
      node.row.classList.toggle("odd", index % 2 === 1);
    }
    setAttribute(node.row, "aria-selected", row.id === this.active ? "true" : "false");
    node.row.agentId = row.id;
    if (this.narrow) this.compact(node.cells[0], row);
    else this.columns.forEach((column, at) => column.fill(node.cells[at], row));
  }

  #drawSort() {
    for (const { cell, button, column } of this.headers) {
      const on = column.key === this.sort.key;
      setAttribute(cell, "aria-sort", on ? (this.sort.descending ? "descending" : "ascending") : null);
      button.dataset.order = on ? (this.sort.descending ? "down" : "up") : "";
    }
  }

  #sortBy(column) {
    const again = this.sort.key === column.key;
    this.sorted({ key: column.key, descending: again ? !this.sort.descending : Boolean(column.numeric) });
  }

  #headKey(event, index) {
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: this.headers.length - 1 }[event.key];
    if (to !== undefined && this.headers[to]) {
      event.preventDefault();
      event.stopPropagation();
      for (const [at, header] of this.headers.entries()) header.button.tabIndex = at === to ? 0 : -1;
      this.headers[to].button.focus();
      this.headers[to].cell.scrollIntoView({ inline: "nearest", block: "nearest" });
    } else if (event.key === "ArrowDown") {
      event.preventDefault();
      event.stopPropagation();
      this.node.focus();
      this.move(this.active === null ? 0 : this.indexOf(this.active));
    } else if (event.key === "Enter" || event.key === " ") event.stopPropagation();
  }

  indexOf(id) {
    return this.rows.findIndex((row) => row.id === id);
  }

  /** To a row, by its place; it comes into sight. */
  move(index) {
    if (!this.rows.length) return;
    const to = Math.max(0, Math.min(this.rows.length - 1, index));
    this.active = this.rows[to].id;
    const top = to * this.height;
    const space = this.node.clientHeight - this.head.offsetHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top + this.height > this.node.scrollTop + space) this.node.scrollTop = top + this.height - space;
    this.draw();
  }

  step(by) {
    this.move(this.active === null ? (by > 0 ? 0 : this.rows.length - 1) : this.indexOf(this.active) + by);
  }

  #key(event) {
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.height) - 2);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page }[event.key];
    if (by !== undefined) {
      if (event.key === "ArrowUp" && this.active !== null && this.indexOf(this.active) === 0 && !this.narrow) this.headers[0].button.focus();
      else this.step(by);
    } else if (event.key === "Home") this.move(0);
    else if (event.key === "End") this.move(this.rows.length - 1);
    else if (event.key === "Enter" && this.active !== null) this.open(this.active);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #click(event) {
    const row = event.target.closest(".grid-row");
    if (!row || !this.body.contains(row) || String(getSelection())) return;
    this.active = row.agentId;
    this.draw();
    this.open(row.agentId);
  }
}

