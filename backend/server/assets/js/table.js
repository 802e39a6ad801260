// Tables. On a phone each row stands as a card, whose cells say what they are.
import { h } from "./dom.js";

/**
 * `heads` are the columns: a name, or `{ name, number, hidden }` (`number` sets the cells to the right; `hidden` names a column for those who listen
 * alone). A row is a list of cells; the first one names it. Answers the element, and `add` for more rows.
 */
export function table(label, heads, rows = []) {
  const columns = heads.map((head) => (typeof head === "string" ? { name: head } : head));
  const body = h("tbody");
  const cell = (content, at) => {
    const { name, number, hidden } = columns[at];
    const label = hidden || at === 0 || [undefined, null, false, ""].includes(content) ? null : name;
    const props = { "data-label": label, scope: at === 0 ? "row" : null };
    // On a phone the label and the content stand side by side, so the content is one thing.
    return h(`${at === 0 ? "th" : "td"}${number ? ".number" : ""}`, props, label ? h("div", {}, content) : content);
  };
  const row = (cells) => h("tr", {}, cells.map(cell));
  const add = (more) => body.append(...more.map(row));
  add(rows);
  const head = columns.map(({ name, number, hidden }) => h(`th${number ? ".number" : ""}`, { scope: "col" }, hidden ? h("span.hidden", {}, name) : name));
  return { element: h("table.cards", {}, h("caption.hidden", {}, label), h("thead", {}, h("tr", {}, head)), body), add, row };
}
