// The list of people: enrolled persons, and clusters of similar faces that can be named or merged.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { endless } from "../endless.js";
import { plural } from "../format.js";
import { card, clustering, create, merge, name } from "../people.js";
import { go, setQuery } from "../router.js";
import { ask, busy, button, confirm, empty, heading, toast } from "../ui.js";

const PAGE = 60;
const KINDS = [["", "All"], ["enrolled", "Enrolled"], ["cluster", "Clusters"]];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const origin = h("select", { "aria-label": "Kind" }, KINDS.map(([value, text]) => h("option", { value, selected: value === (query.origin ?? "") }, text)));
  const search = h("input", { type: "search", "aria-label": "Name", placeholder: "Name", value: query.name ?? "" });
  const [run, chosenBar] = [h("div"), h("div.toolbar", { role: "status" })];
  const chosen = new Map();
  const params = (cursor) => ({ collection: collections.current(), origin: origin.value, name: search.value.trim(), limit: PAGE, cursor });
  const one = (subject) => card(subject, signal, (who, ticked) => {
    if (ticked) chosen.set(who.id, who);
    else chosen.delete(who.id);
    bar();
  });
  const [grid, end] = [h("ul.grid"), h("div.end")];
  const rows = endless(end, signal, {
    more: "More people",
    ask: (cursor) => get("/subjects", params(cursor), signal),
    add: ({ subjects }) => (grid.append(...subjects.map(one)), subjects.length),
    none: () => origin.value || search.value
      ? empty("people", "No person matches these filters.")
      : empty("people", "There are no people yet. Find people among the stored faces, or create a person."),
  });
  const load = () => {
    chosen.clear();
    bar();
    setQuery({ origin: origin.value, name: search.value.trim() });
    put(grid);
    return rows.begin();
  };
  const begin = clustering(run, signal, load);
  const find = button("Find people", { symbol: "refresh", onclick: () => busy(find, begin) });
  const add = button("New person", { kind: "primary", symbol: "plus", onclick: () => busy(add, async () => {
    const text = await ask("New person", "Name", { action: "Add", hint: "Then enrol faces in the view of the person or of a face." });
    if (text) go(`/people/${(await create(text)).id}`);
  }) });
  origin.addEventListener("change", load);
  search.addEventListener("change", load);
  page.append(heading("People", find, add), h("div.toolbar", {}, origin, search), run, chosenBar, grid, end);
  load();

  function bar() {
    if (chosen.size < 2) return put(chosenBar, chosen.size === 1 && h("p.quiet", {}, "Select at least one more person to merge them."));
    const control = button(`Merge ${chosen.size}`, { kind: "primary", symbol: "merge", onclick: () => busy(control, join) });
    put(chosenBar, control, button("Clear selection", { onclick: load }));
  }
  async function join() {
    // The person with a name is kept. If several have a name, the person with the most faces is
    // kept.
    const [into, ...others] = [...chosen.values()].sort((a, b) => Number(Boolean(b.name)) - Number(Boolean(a.name)) || b.face_count - a.face_count);
    const sure = await confirm("Merge these people?", `${plural(others.length, "other")} will become part of “${name(into)}”. This cannot be undone.`, "Merge", { danger: false });
    if (!sure) return;
    await merge(into, others);
    toast("The people were merged.");
    await load();
  }
}
