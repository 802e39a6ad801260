// Parts that several views use to show people: enrolled persons, and unnamed clusters of similar
// faces.
import { call, get } from "./api.js";
import * as collections from "./collections.js";
import { h, put } from "./dom.js";
import { plural } from "./format.js";
import { crop } from "./picture.js";
import { href } from "./router.js";
import { ask, busy, button, chip, empty, field, fillWith, modal, toast } from "./ui.js";

export const name = (subject) => subject.name ?? subject.external_id ?? "Unnamed";

/** Returns a card for a person or cluster. `pick` adds a checkbox to the link. */
export function card(subject, signal, pick) {
  const label = `${name(subject)}, ${plural(subject.face_count, "face")}`;
  const picture = subject.best_face_id ? crop(subject.best_face_id, "", signal) : h("span.noface", {});
  return h("li.person", {},
    h("a.tile", { href: href(`/people/${subject.id}`) }, picture,
      h("span.tiletext", {}, h("span.strong", {}, name(subject)), h("span.quiet", {}, plural(subject.face_count, "face")))),
    pick && h("label.pick", {}, h("input", { type: "checkbox", "aria-label": `Choose ${label}`, onchange: (event) => pick(subject, event.target.checked) })));
}

/** Returns the person to whom a search result belongs, if known. */
export const badge = (found) =>
  found.subject_id && h("p", {}, h("a", { href: href(`/people/${found.subject_id}`) }, chip(found.subject_name ?? "Unnamed person", "busy")));

export const merge = (into, others) => call("POST", `/subjects/${into.id}/merge`, { json: { subjects: others.map(({ id }) => id) } });

/** Creates a person with a name. */
export const create = (text, collection = collections.current()) => call("POST", "/subjects", { json: { name: text, collection } });

/** Asks for the name of a person or cluster and saves it. */
export const rename = async (subject) => {
  const text = await ask(subject.origin === "cluster" ? "Who is this?" : "Rename", "Name", { value: subject.name ?? "", hint: subject.origin === "cluster" ? "A named cluster becomes a person." : undefined });
  return text === null ? null : call("PATCH", `/subjects/${subject.id}`, { json: { name: text } });
};

/**
 * Enrols stored faces. The service rejects a face of low quality and a face of another person. In
 * both cases the user can confirm the enrolment.
 */
export async function enrol(subject, faceIds) {
  const attempt = (override) => call("POST", `/subjects/${subject.id}/faces`, { json: { face_ids: faceIds, ...override } });
  try {
    return await attempt({});
  } catch (problem) {
    const override = { low_quality: { force: true }, conflict: { move: true } }[problem.code];
    if (!override) throw problem;
    const sure = await modal("Enrol this face anyway?", (close) => h("form", { onsubmit: (event) => (event.preventDefault(), close(true)) },
      h("p", {}, problem.message),
      override.force && h("p", {}, "Faces of low quality often match other people. Each enrolled face of this kind increases the number of false matches."),
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null), autofocus: true }), h("button.button.danger", { type: "submit" }, "Enrol"))));
    return sure ? attempt(override) : null;
  }
}

/** Returns the button that enrols a stored face. */
export function enrolButton(face) {
  const control = button("Enrol", { symbol: "people", onclick: () => busy(control, async () => {
    const subject = await choose(face.collection);
    if (!subject) return;
    const answer = await enrol(subject, [face.id]);
    if (answer) toast(`The face was enrolled as ${name(answer.subject)}.`);
  }) });
  return control;
}

/** Asks for a person: one of the collection, or a new name. */
function choose(collection) {
  return modal("Who is this?", (close) => {
    const abort = new AbortController();
    const list = h("div.choices");
    const fresh = h("input", { autocomplete: "off", maxlength: 200, autofocus: true });
    fillWith(list, abort.signal, () => get("/subjects", { collection, origin: "enrolled", limit: 100 }), ({ subjects, next_cursor }) =>
      subjects.length === 0 ? empty("people", "Nobody is enrolled yet.") : [
        h("ul.choices", {}, subjects.map((subject) => h("li", {}, button(name(subject), { onclick: () => close(subject) })))),
        next_cursor && h("p.hint", {}, `Only the newest ${subjects.length} people are listed.`),
      ]);
    return h("form", { onsubmit: async (event) => {
      event.preventDefault();
      const text = fresh.value.trim();
      if (text) await busy(event.submitter, async () => close(await create(text, collection)));
    } },
      h("div.line", {}, field("New person", fresh), h("button.button.primary", { type: "submit" }, "Add")),
      list,
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null) })));
  });
}

const STARTED_KEY = "facecrawl.clustering";

/**
 * Returns a function that starts the clustering of a collection. The function shows the progress in
 * `slot` and calls `done` when the clustering ends.
 */
export function clustering(slot, signal, done) {
  const path = `/collections/${encodeURIComponent(collections.current())}/cluster`;
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer));
  const show = (run, asked) => {
    if (signal.aborted) return;
    const over = ["completed", "failed"].includes(run.state);
    put(slot, over && !asked ? null : h("p", { role: "status" }, run.state === "failed" ? `Finding people failed: ${run.error}`
      : over ? `${plural(run.faces, "new face")} processed: ${plural(run.made, "new cluster")}, ${plural(run.assigned, "face")} assigned to people.`
      : `Finding people: ${run.looked} of ${plural(run.faces, "new face")}…`));
    if (over && asked) done();
    if (!over) timer = setTimeout(async () => show(await get(path, {}, signal).catch(() => run), true), 1000);
  };
  // After a reload, the view continues to show the progress of a clustering that was started in
  // this tab.
  if (sessionStorage.getItem(STARTED_KEY) === path) get(path, {}, signal).then((run) => show(run, false), () => sessionStorage.removeItem(STARTED_KEY));
  return async () => {
    show(await call("POST", path, { json: {} }), true);
    sessionStorage.setItem(STARTED_KEY, path);
  };
}
