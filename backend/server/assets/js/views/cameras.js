// The cameras of the configuration: their states, and still pictures on request.
import { call, get, request } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { ago, count, milliseconds, title } from "../format.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { busy, button, chip, empty, fillWith, heading, linkButton, modal, toast } from "../ui.js";

const HEADS = ["Camera", "State", "Frames", "Lag", "Last alert", { name: "Actions", hidden: true }];
const TONES = { running: "ok", failing: "bad", connecting: "busy", waiting: "busy" };
const STORES = { matches: "Stores matches", alerts: "Stores matches and unknown people", all: "Stores all faces" };
/** Milliseconds between two updates of the list. */
const UPDATE = 3000;

export function show(page, { signal }) {
  const list = h("div");
  const read = () => get("/streams", { collection: collections.current() }, signal);
  page.append(
    heading("Cameras", linkButton("Alerts", "#/alerts", { symbol: "alerts" })),
    h("p.lead", {}, "The configuration of the service lists the cameras. The service compares the faces that they record with the watchlists of the collection."),
    list);
  fillWith(list, signal, read, draw);

  function draw({ streams }) {
    if (streams.length === 0) return empty("cameras", "The configuration lists no cameras for this collection.");
    const { element, add, row } = table("Cameras by name", HEADS);
    const rows = streams.map((stream) => mark(row(cells(stream, signal, update)), stream));
    element.querySelector("tbody").append(...rows);
    const body = element.querySelector("tbody");
    /** Replaces the row of a camera, if it changed. The focus stays on the same control. */
    function update(stream) {
      const old = body.querySelector(`[data-id="${stream.id}"]`);
      if (!old || old.dataset.text === JSON.stringify(stream)) return;
      const focused = document.activeElement?.dataset.action;
      const hadFocus = old.contains(document.activeElement);
      const fresh = mark(row(cells(stream, signal, update)), stream);
      old.replaceWith(fresh);
      if (hadFocus) (fresh.querySelector(`[data-action="${focused}"]`) ?? fresh.querySelector("button")).focus();
    }
    watch(update);
    return h("div.panel", {}, element);
  }
  function watch(update) {
    setTimeout(async () => {
      if (signal.aborted) return;
      const answer = document.hidden ? null : await read().catch(() => null);
      if (signal.aborted) return;
      answer?.streams.forEach(update);
      watch(update);
    }, UPDATE);
  }
}

function mark(row, stream) {
  Object.assign(row.dataset, { id: stream.id, text: JSON.stringify(stream) });
  return row;
}

function cells(stream, signal, update) {
  const control = (label, action, run) => {
    const element = button(label, { "data-action": action, "aria-label": `${label}: ${stream.name}`, onclick: () => busy(element, run) });
    return element;
  };
  const change = (action, text) => async () => {
    const changed = await call("POST", `/streams/${stream.id}/${action}`, { signal });
    toast(text);
    update(changed);
  };
  return [
    h("span.rowtext", {}, h("span.strong", {}, stream.name), h("span.quiet.small", {}, stream.purpose),
      h("span.quiet.small", {}, `${STORES[stream.store] ?? title(stream.store)} for ${count(stream.retention_hours)} h`)),
    h("span.rowtext", {}, chip(title(stream.state), TONES[stream.state] ?? ""), stream.detail && h("span.quiet.small", {}, stream.detail),
      stream.holder && h("span.quiet.small", {}, stream.holder)),
    h("span.rowtext", {}, h("span", {}, `${count(stream.analysed)} analysed`),
      h("span.quiet.small", {}, `${count(stream.received)} received, ${count(stream.dropped)} dropped`),
      stream.width && h("span.quiet.small", {}, `${stream.width}×${stream.height}, ${stream.fps} per second`)),
    stream.lag_ms === null ? "–" : milliseconds(stream.lag_ms),
    stream.last_alert_at ? h("a", { href: href("/alerts") }, ago(stream.last_alert_at)) : "–",
    h("span.chips", {},
      stream.wanted
        ? control("Stop", "switch", change("stop", "The camera will not be watched."))
        : control("Start", "switch", change("start", "The camera will be watched.")),
      stream.state === "running" && control("Picture", "picture", () => picture(stream, signal)),
      linkButton("Stored faces", href("/videos", { stream: stream.name }), { "aria-label": `Stored faces: ${stream.name}` })),
  ];
}

/** Shows the next frame of a camera. The service records the request in the audit log. */
async function picture(stream, signal) {
  const response = await request("GET", `/streams/${stream.id}/still`, { signal });
  const address = URL.createObjectURL(await response.blob());
  try {
    await modal(stream.name, (close) => h("div", {},
      h("img.still", { src: address, alt: `The camera ${stream.name} now` }),
      h("p.quiet", {}, "This request is in the audit log. The picture is not stored."),
      h("div.actions.end", {}, button("Close", { onclick: () => close() }))));
  } finally {
    URL.revokeObjectURL(address);
  }
}
