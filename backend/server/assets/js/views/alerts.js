// The list of alerts, newest first. New alerts appear while the view is open.
import { call, get, url } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { endless } from "../endless.js";
import { follow } from "../events.js";
import { score, time, title } from "../format.js";
import { crop } from "../picture.js";
import { href, setQuery } from "../router.js";
import { table } from "../table.js";
import { ask, busy, button, chip, empty, heading, linkButton, problemBox, toast } from "../ui.js";

const HEADS = ["New face", "When", "Watchlist", "Resembles", "Delivery", "State", { name: "Actions", hidden: true }];
const STATES = [["", "All"], ["new", "New"], ["acknowledged", "Acknowledged"]];
const TONES = { delivered: "ok", pending: "busy", failed: "bad" };

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const state = h("select", { "aria-label": "State" }, STATES.map(([value, text]) => h("option", { value, selected: value === (query.state ?? "") }, text)));
  const { element, add, row } = table("Alerts, newest first", HEADS);
  const body = element.querySelector("tbody");
  const [live, list, end] = [h("div", { role: "status" }), h("div.panel", { hidden: true }, element), h("div.end")];
  const shown = new Set();
  const draw = (alert) => {
    shown.add(alert.id);
    return cells(alert, signal, row);
  };
  let isLive = false;
  const rows = endless(end, signal, {
    more: "Older alerts",
    ask: (cursor) => get("/alerts", { collection: collections.current(), state: state.value, watchlist_id: query.watchlist_id, cursor }, signal),
    add: ({ alerts }) => {
      list.hidden &&= alerts.length === 0;
      add(alerts.map(draw));
      if (!isLive) {
        isLive = true;
        addNew(alerts[0]?.sequence ?? 0);
      }
      return alerts.length;
    },
    none: () => empty("alerts", "There are no alerts.", linkButton("Watchlists", "#/watchlists", { symbol: "watchlists" })),
  });
  const begin = () => {
    setQuery({ state: state.value, watchlist_id: query.watchlist_id });
    put(body);
    list.hidden = true;
    rows.begin();
  };
  state.addEventListener("change", begin);
  page.append(
    heading("Alerts", linkButton("Watchlists", "#/watchlists", { symbol: "watchlists" })),
    h("div.toolbar", {}, state,
      query.watchlist_id && linkButton("Alerts of one watchlist", href("/alerts"), { symbol: "close", "aria-label": "Alerts of one watchlist. Show all" })),
    live, list, end);
  begin();

  /** Adds the alerts that follow the newest one of the list. */
  function addNew(after) {
    const wanted = (alert) => !shown.has(alert.id) && state.value !== "acknowledged" && (!query.watchlist_id || alert.watchlist_id === query.watchlist_id);
    follow(url("/alerts/events", { collection: collections.current(), after }), signal, (event, alert) => {
      if (event !== "alert" || !wanted(alert)) return;
      if (list.hidden) put(end);
      list.hidden = false;
      body.prepend(row(draw(alert)));
    }).catch((problem) => signal.aborted || put(live, problemBox(problem)));
  }
}

function cells(alert, signal, row) {
  const change = (json, text) => async () => {
    const changed = await call("PATCH", `/alerts/${alert.id}`, { json, signal });
    toast(text);
    return changed;
  };
  const act = (label, run) => {
    const control = button(label, { "aria-label": `${label}: alert ${alert.sequence}`, onclick: () => busy(control, async () => {
      const changed = await run();
      if (changed) control.closest("tr").replaceWith(row(cells(changed, signal, row)));
    }) });
    return control;
  };
  const note = async () => {
    const text = await ask("Note", "Note", { value: alert.note ?? "", required: false, hint: "An empty note is removed." });
    return text === null ? null : change({ note: text || null }, "The note was saved.")();
  };
  return [
    h("a.thumb", { href: href(`/faces/${alert.face_id}`), "aria-label": `New face of alert ${alert.sequence}` }, crop(alert.face_id, "", signal)),
    h("span.rowtext", {}, h("span.when", {}, time(alert.stored_at)), alert.stream && h("a.quiet.small", { href: href("/cameras") }, alert.stream)),
    h("a", { href: href(`/watchlists/${alert.watchlist_id}`) }, alert.watchlist),
    alert.notify === "unknown"
      ? h("span", {}, "Nobody on the list")
      : h("span", {}, h("a", { href: href(alert.subject_id ? `/people/${alert.subject_id}` : `/faces/${alert.watched_face_id}`) }, alert.subject_id ? "A watched person" : "A watched face"), h("span.quiet", {}, ` ${score(alert.similarity)}`)),
    h("span.rowtext", {}, alert.delivery === "none" ? h("span.quiet", {}, "no webhook") : chip(title(alert.delivery), TONES[alert.delivery] ?? ""), alert.error && h("span.quiet.small", {}, alert.error)),
    h("span.rowtext", {}, alert.state === "new" ? chip("New", "warn") : chip("Acknowledged", "ok"), alert.note && h("span.quiet.small", {}, alert.note)),
    h("span.chips", {},
      alert.state === "new" && act("Acknowledge", change({ state: "acknowledged" }, "The alert was acknowledged.")),
      act("Note", note),
      alert.delivery === "failed" && act("Send again", async () => {
        const changed = await call("POST", `/alerts/${alert.id}/redeliver`, { signal });
        toast("The alert will be sent again.");
        return changed;
      })),
  ];
}
