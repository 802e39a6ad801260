// The watchlists of a collection: who is watched, and why.
import { get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { endless } from "../endless.js";
import { plural, time } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { chip, empty, heading, linkButton } from "../ui.js";

const HEADS = ["Watchlist", "Purpose", "Watches", "Reports", "State"];

/** Returns what a watchlist reports. */
export const reports = ({ notify }) => (notify === "unknown" ? "Faces of nobody on the list" : "Faces of the watched people");

/** Returns whom a watchlist watches. */
export const watches = (list) => [list.subject_count > 0 && plural(list.subject_count, "person", "people"), list.face_count > 0 && plural(list.face_count, "face")].filter(Boolean).join(", ") || "nobody";

export const stateChip = (list) => (list.active ? chip("Active", "ok") : chip("Ended", "warn"));

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const { element, add } = table("Watchlists, newest first", HEADS);
  const [list, end] = [h("div.panel", { hidden: true }, element), h("div.end")];
  page.append(
    heading("Watchlists", linkButton("Alerts", "#/alerts", { symbol: "alerts" }), linkButton("New watchlist", "#/watchlists/new", { kind: "primary", symbol: "plus" })),
    h("p.lead", {}, "Each new face of the collection is compared with the watched people. A match creates an alert."),
    list, end);
  endless(end, signal, {
    more: "Older watchlists",
    ask: (cursor) => get("/watchlists", { collection: collections.current(), cursor }, signal),
    add: ({ watchlists }) => {
      list.hidden &&= watchlists.length === 0;
      add(watchlists.map(cells));
      return watchlists.length;
    },
    none: () => empty("watchlists", "There are no watchlists."),
  }).begin();
}

const cells = (list) => [
  h("a", { href: href(`/watchlists/${list.id}`) }, list.name),
  list.purpose,
  watches(list),
  reports(list),
  h("span.rowtext", {}, stateChip(list), list.expires_at && h("span.quiet.small.when", {}, `${list.active ? "until" : "since"} ${time(list.expires_at)}`)),
];
