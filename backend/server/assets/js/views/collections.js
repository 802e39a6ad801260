// The list of collections. Each collection separates the data of one purpose from all other data.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { plural, score, time } from "../format.js";
import { profile } from "../labels.js";
import { href, refresh } from "../router.js";
import { may, ownKey } from "../session.js";
import { table } from "../table.js";
import { button, chip, fillWith, heading, linkButton } from "../ui.js";

export function show(page, { signal }) {
  const list = h("div");
  const canMake = may("admin") && !ownKey()?.collection;
  page.append(
    heading("Collections", canMake && linkButton("New collection", "#/collections/new", { kind: "primary", symbol: "plus" })),
    h("p.lead", {}, "Each crawl, image, face, person and key belongs to one collection. A search covers one collection only."),
    list);
  fillWith(list, signal, () => get("/collections", {}, signal), (answer) => h("div.panel", {},
    table("Collections", ["Name", "Quality profile", { name: "Match threshold", number: true }, { name: "Retention", number: true }, { name: "Created", number: true }, { name: "Use", hidden: true }],
      answer.collections.map(row)).element));
}

function row(one) {
  const used = one.name === collections.current();
  return [
    h("a.strong", { href: href(`/collections/${one.name}`) }, one.name),
    profile(one.quality_profile),
    one.match_threshold === null ? h("span.quiet", {}, "model default") : score(one.match_threshold),
    one.retention_days === null ? h("span.quiet", {}, "unlimited") : plural(one.retention_days, "day"),
    h("span.when", {}, time(one.created_at)),
    used ? chip("In use", "ok") : button("Use", { "aria-label": `Use ${one.name}`, onclick: () => (collections.choose(one.name), refresh()) }),
  ];
}
