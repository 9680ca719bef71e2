// A short table that sorts by any column; rows are changed in place.

import { el, keyed, setAttribute } from "./dom.js";

export class List {
  /** `columns`: [{key, label, numeric, get(item), fill(cell, item)}]; `key(item)` names an item. */
  constructor({ label, columns, key, sort, descending = true, empty }) {
    this.columns = columns;
    this.key = key;
    this.sort = sort;
    this.descending = descending;
    this.items = [];
    this.body = el("tbody");
    this.heads = columns.map((column) => {
      const button = el("button", { type: "button", onclick: () => this.#by(column) }, el("span", {}, column.label));
      return { column, button, cell: el(column.numeric ? "th.numeric" : "th", { scope: "col", title: column.title }, button) };
    });
    this.empty = el("p.empty", {}, empty);
    this.more = el("p.muted.more", { hidden: true });
    this.table = el("table.list", {}, el("thead", {}, el("tr", {}, ...this.heads.map((head) => head.cell))), this.body);
    this.node = el("div.scroll", { tabindex: 0, role: "group", "aria-label": label }, this.table, this.empty, this.more);
  }

  #by(column) {
    this.descending = this.sort === column.key ? !this.descending : Boolean(column.numeric);
    this.sort = column.key;
    this.set(this.items, this.left);
  }

  /** `left`: how many more there were that were not kept. */
  set(items, left = 0) {
    this.items = items;
    this.left = left;
    for (const { column, cell, button } of this.heads) {
      const on = column.key === this.sort;
      setAttribute(cell, "aria-sort", on ? (this.descending ? "descending" : "ascending") : null);
      button.dataset.order = on ? (this.descending ? "down" : "up") : "";
    }
    const by = this.columns.find((column) => column.key === this.sort);
    const sign = this.descending ? -1 : 1;
    const order = by === undefined ? items : [...items].sort((a, b) => {
      const x = by.get(a);
      const y = by.get(b);
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return sign * (x < y ? -1 : 1);
    });
    keyed(this.body, order, this.key, () => el("tr", {}, ...this.columns.map((column) => el(column.numeric ? "td.numeric" : "td"))), (row, item) => {
      this.columns.forEach((column, at) => column.fill(row.children[at], item));
    });
    this.table.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
    this.more.hidden = !left;
    this.more.textContent = left ? `and ${left.toLocaleString("en")} more that were not kept` : "";
  }
}
