// The view of one watchlist.
import { call, get } from "../api.js";
import { h } from "../dom.js";
import { duration, score, time } from "../format.js";
import { profile } from "../labels.js";
import { go, href } from "../router.js";
import { busy, button, confirm, facts, fillWith, heading, linkButton, panel, toast } from "../ui.js";
import { reports, stateChip, watches } from "./watchlists.js";

const SHOWN = 100;

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, () => get(`/watchlists/${id}`, {}, signal), (list) => draw(list));
}

function draw(list) {
  const erase = button("Delete", { symbol: "trash", kind: "danger", onclick: () => busy(erase, () => remove(list)) });
  const links = [
    ...list.subjects.map((id) => ["/people/", id, "Person"]),
    ...list.faces.map((id) => ["/faces/", id, "Face"]),
  ];
  return [
    heading(list.name, linkButton("Alerts", href("/alerts", { watchlist_id: list.id, collection: list.collection }), { symbol: "alerts" }), erase),
    panel("", facts([
      ["State", stateChip(list)],
      ["Purpose", list.purpose],
      ["Reports", reports(list)],
      ["Watches", watches(list)],
      ["Minimum similarity", score(list.threshold)],
      ["Quality profile", list.quality_profile === null ? "That of the stored face" : profile(list.quality_profile)],
      ["Webhook", list.webhook ?? "none"],
      ["Pause between alerts about a person", list.cooldown_seconds > 0 ? duration(list.cooldown_seconds) : "none"],
      ["Expires", list.expires_at ? time(list.expires_at) : "never"],
      ["Collection", list.collection],
      ["Created", time(list.created_at)],
    ])),
    panel("Watched people and faces",
      h("ul.sources", {}, links.slice(0, SHOWN).map(([path, id, kind]) => h("li", {}, h("a", { href: href(path + id) }, `${kind} ${id}`)))),
      links.length > SHOWN && h("p.hint", {}, `Only the first ${SHOWN} are shown.`)),
  ];
}

async function remove(list) {
  const sure = await confirm(`Delete “${list.name}”?`, "Its alerts are permanently deleted with it. The watched people and the reported faces are kept.", "Delete");
  if (!sure) return;
  await call("DELETE", `/watchlists/${list.id}`);
  toast("The watchlist was deleted.");
  go("/watchlists");
}
