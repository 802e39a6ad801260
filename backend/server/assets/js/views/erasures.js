// The list of erasures: what was permanently erased, and what is suppressed.
import { call, get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { endless } from "../endless.js";
import { count, score, time } from "../format.js";
import { erasureKind } from "../labels.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { busy, button, chip, confirm, empty, heading, linkButton, toast } from "../ui.js";

const HEADS = [{ name: "When" }, "What", { name: "Faces", number: true }, { name: "Images", number: true }, { name: "Videos", number: true }, { name: "Suppressions", number: true }, "Suppressed", { name: "Lift suppressions", hidden: true }];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const { element, add, row } = table("Erasures, newest first", HEADS);
  const [list, end] = [h("div.panel", { hidden: true }, element), h("div.end")];
  page.append(
    heading("Erasures", linkButton("New erasure", "#/erasures/new", { kind: "primary", symbol: "plus" })),
    h("p.lead", {}, "An erasure permanently deletes rows, image files and index entries. Suppressed content is not stored when a crawl or scan finds it again."),
    list, end);
  endless(end, signal, {
    more: "Older erasures",
    ask: (cursor) => get("/erasures", { collection: collections.current(), cursor }, signal),
    add: ({ erasures }) => {
      list.hidden &&= erasures.length === 0;
      add(erasures.map((one) => cells(one, row)));
      return erasures.length;
    },
    none: () => empty("erasures", "Nothing has been erased from this collection yet."),
  }).begin();
}

const cells = (one, row) => [
  h("span.when", {}, time(one.created_at)),
  h("span", {}, erasureKind(one.kind), one.threshold !== null && h("span.quiet", {}, ` from ${score(one.threshold)}`)),
  count(one.faces),
  count(one.images),
  count(one.videos),
  count(one.suppressions),
  h("span.chips", {}, one.lifted_at
    ? h("span.quiet", { title: time(one.lifted_at) }, "lifted")
    : [one.suppress && chip("Files and URL"), one.suppress_person && chip("Person", "busy"), !one.suppress && !one.suppress_person && h("span.quiet", {}, "nothing")]),
  one.suppressions > 0 && !one.lifted_at && may("admin") && lifting(one, row),
];

function lifting(one, row) {
  const control = button("Lift", { onclick: () => busy(control, async () => {
    const path = `/erasures/${one.id}/suppressions`;
    const preview = await call("DELETE", path, { query: { dry_run: true } });
    const sure = await confirm("Lift the suppressions of this erasure?", "Erased data is not restored. A crawl or scan that finds the content again will store it.", "Lift");
    if (!sure) return;
    const { erasure } = await call("DELETE", path, { query: { confirm: preview.confirm } });
    control.closest("tr").replaceWith(row(cells(erasure, row)));
    toast("The suppressions were lifted.");
  }) });
  return control;
}
