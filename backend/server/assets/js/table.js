// Tables. On a phone, each row is shown as a card, and each cell shows the name of its column.
import { h } from "./dom.js";

/**
 * `heads` lists the columns. Each is a name, or `{ name, number, hidden }`. `number` aligns the
 * cells to the right. `hidden` shows the name of the column to screen readers only. A row is a list
 * of cells, and the first cell is the header of the row. Returns the element, `add` for more rows,
 * and `row`, which creates a row.
 */
export function table(label, heads, rows = []) {
  const columns = heads.map((head) => (typeof head === "string" ? { name: head } : head));
  const body = h("tbody");
  const cell = (content, at) => {
    const { name, number, hidden } = columns[at];
    const label = hidden || at === 0 || [undefined, null, false, ""].includes(content) ? null : name;
    const props = { "data-label": label, scope: at === 0 ? "row" : null };
    // On a phone the label and the content are side by side, so the content must be one element.
    return h(`${at === 0 ? "th" : "td"}${number ? ".number" : ""}`, props, label ? h("div", {}, content) : content);
  };
  const row = (cells) => h("tr", {}, cells.map(cell));
  const add = (more) => body.append(...more.map(row));
  add(rows);
  const head = columns.map(({ name, number, hidden }) => h(`th${number ? ".number" : ""}`, { scope: "col" }, hidden ? h("span.hidden", {}, name) : name));
  return { element: h("table.cards", {}, h("caption.hidden", {}, label), h("thead", {}, h("tr", {}, head)), body), add, row };
}
