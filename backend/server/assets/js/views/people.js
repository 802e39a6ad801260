// People: who is enrolled, and clusters of alike faces to be named or merged.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { plural } from "../format.js";
import { card, clustering, create, merge, name } from "../people.js";
import { go, note } from "../router.js";
import { ask, busy, button, confirm, empty, fillWith, heading, toast } from "../ui.js";

const PAGE = 60;
const KINDS = [["", "Everybody"], ["enrolled", "Enrolled"], ["cluster", "Clusters"]];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const origin = h("select", { "aria-label": "Which" }, KINDS.map(([value, text]) => h("option", { value, selected: value === (query.origin ?? "") }, text)));
  const search = h("input", { type: "search", "aria-label": "Name", placeholder: "Name", value: query.name ?? "" });
  const [list, run, chosenBar] = [h("div"), h("div"), h("div.toolbar", { role: "status" })];
  const chosen = new Map();
  const params = (cursor) => ({ collection: collections.current(), origin: origin.value, name: search.value.trim(), limit: PAGE, cursor });
  const load = () => {
    chosen.clear();
    bar();
    note({ origin: origin.value, name: search.value.trim() });
    return fillWith(list, signal, () => get("/subjects", params(), signal), draw);
  };
  const begin = clustering(run, signal, load);
  const look = button("Find people", { symbol: "refresh", onclick: () => busy(look, begin) });
  const add = button("New person", { kind: "primary", symbol: "plus", onclick: () => busy(add, async () => {
    const text = await ask("New person", "Name", { action: "Add", hint: "Faces are enrolled on the person's page, or from a face's page." });
    if (text) go(`/people/${(await create(text)).id}`);
  }) });
  origin.addEventListener("change", load);
  search.addEventListener("change", load);
  page.append(heading("People", look, add), h("div.toolbar", {}, origin, search), run, chosenBar, list);
  load();

  function draw(answer) {
    if (answer.subjects.length === 0) {
      return origin.value || search.value
        ? empty("people", "Nobody like that.")
        : empty("people", "Nobody is known yet. Find people among the stored faces, or enrol somebody.");
    }
    const grid = h("ul.grid", {}, answer.subjects.map(one));
    return [grid, more(answer.next_cursor, grid)];
  }
  const one = (subject) => card(subject, signal, (who, ticked) => {
    if (ticked) chosen.set(who.id, who);
    else chosen.delete(who.id);
    bar();
  });
  function more(cursor, grid) {
    if (!cursor) return null;
    const control = button("More people", { onclick: () => busy(control, async () => {
      const answer = await get("/subjects", params(cursor), signal);
      grid.append(...answer.subjects.map(one));
      control.parentElement.replaceWith(...[more(answer.next_cursor, grid)].filter(Boolean));
    }) });
    return h("p.center", {}, control);
  }
  function bar() {
    if (chosen.size < 2) return put(chosenBar, chosen.size === 1 && h("p.quiet", {}, "Choose another one to merge them."));
    const control = button(`Merge ${chosen.size}`, { kind: "primary", symbol: "merge", onclick: () => busy(control, join) });
    put(chosenBar, control, button("Choose none", { onclick: load }));
  }
  async function join() {
    // The name of somebody who has one stays; of several, that of the one with the most faces.
    const [into, ...others] = [...chosen.values()].sort((a, b) => Number(Boolean(b.name)) - Number(Boolean(a.name)) || b.face_count - a.face_count);
    const sure = await confirm("Are they one person?", `${plural(others.length, "other")} will become part of “${name(into)}”. This cannot be taken apart again at once.`, "Merge", { danger: false });
    if (!sure) return;
    await merge(into, others);
    toast("They are one person now.");
    await load();
  }
}
