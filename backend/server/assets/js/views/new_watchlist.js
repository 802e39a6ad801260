// A form that creates a watchlist. A link from a person or a face chooses it in advance.
import { call, get } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { choice, form } from "../form.js";
import { plural } from "../format.js";
import { profiles } from "../labels.js";
import { name } from "../people.js";
import { go } from "../router.js";
import { field, fillWith, heading, linkButton, panel } from "../ui.js";

const DAY = 86_400_000;
const ENDS = [["30", "In 30 days"], ["7", "In a week"], ["90", "In 90 days"], ["365", "In a year"], ["", "Never"]];
const PAUSES = [["300", "5 minutes"], ["0", "None"], ["60", "A minute"], ["3600", "An hour"], ["86400", "A day"]];
const KINDS = [["match", "The watched people"], ["unknown", "Nobody on the list"]];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const people = h("div");
  fillWith(people, signal, () => get("/subjects", { collection: collections.current(), origin: "enrolled", limit: 200 }, signal), (answer) => choices(answer, query.subject));
  const send = async (data) => {
    const { id } = await call("POST", "/watchlists", { json: body(data, query), signal });
    go(`/watchlists/${id}`);
  };
  page.append(heading("New watchlist"), form(send,
    panel("",
      field("Name", h("input", { name: "name", required: true, maxlength: 200, autocomplete: "off" })),
      field("Purpose", h("input", { name: "purpose", required: true, maxlength: 500, autocomplete: "off" }), "Why these people are watched. The audit log records it."),
      h("div.columns", {},
        field("Report faces of", choice("notify", KINDS)),
        field("Quality profile", choice("quality_profile", [["", "That of the stored face"], ...profiles()])),
        field("Minimum similarity", h("input", { type: "number", name: "threshold", min: -1, max: 1, step: 0.01, placeholder: "default" })),
        field("Pause between alerts about a person", choice("cooldown_seconds", PAUSES, "300")),
        field("Expires", choice("days", ENDS, "30"))),
      field("Webhook", h("input", { type: "url", name: "webhook", maxlength: 2000, autocomplete: "off", placeholder: "https://example.org/alerts" }), "Each alert is sent to this address. Without one, alerts appear only here and in the API.")),
    h("fieldset.panel", {}, h("legend.h2", {}, "Watched people"), people,
      query.face && h("p.hint", {}, "The face from which you came is watched too.")),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Create watchlist"), linkButton("Back", "#/watchlists"))));
}

/** Returns a checkbox for each enrolled person. */
function choices({ subjects, next_cursor }, chosen) {
  if (subjects.length === 0 && !chosen) return h("p.quiet", {}, "Nobody is enrolled in this collection yet.");
  const missing = chosen && !subjects.some(({ id }) => id === chosen) ? [{ id: chosen, name: "The person from whom you came" }] : [];
  return [
    h("div.scopes", {}, [...missing, ...subjects].map((subject) => h("label.check", {},
      h("input", { type: "checkbox", name: "subjects", value: subject.id, checked: subject.id === chosen }), name(subject)))),
    next_cursor && h("p.hint", {}, `Only the newest ${plural(subjects.length, "person", "people")} are listed. To watch others, begin in the view of the person.`),
  ];
}

const body = (data, query) => ({
  name: data.get("name"),
  purpose: data.get("purpose"),
  collection: collections.current(),
  notify: data.get("notify"),
  subjects: data.getAll("subjects"),
  faces: query.face ? [query.face] : [],
  quality_profile: data.get("quality_profile") || null,
  threshold: data.get("threshold") ? Number(data.get("threshold")) : null,
  cooldown_seconds: Number(data.get("cooldown_seconds")),
  expires_at: data.get("days") ? new Date(Date.now() + data.get("days") * DAY).toISOString() : null,
  webhook: data.get("webhook") || null,
});
