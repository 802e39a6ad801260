// What several views say of people: those who were enrolled, and clusters of alike faces that nobody has named yet.
import { call, get } from "./api.js";
import * as collections from "./collections.js";
import { h, put } from "./dom.js";
import { plural } from "./format.js";
import { crop } from "./picture.js";
import { href } from "./router.js";
import { ask, busy, button, chip, empty, field, fillWith, modal, toast } from "./ui.js";

export const name = (subject) => subject.name ?? subject.external_id ?? "Unnamed";

/** A person or cluster of a list. `pick` makes it a box to tick instead of a link alone. */
export function card(subject, signal, pick) {
  const label = `${name(subject)}, ${plural(subject.face_count, "face")}`;
  const picture = subject.best_face_id ? crop(subject.best_face_id, "", signal) : h("span.noface", {});
  return h("li.person", {},
    h("a.tile", { href: href(`/people/${subject.id}`) }, picture,
      h("span.tiletext", {}, h("span.strong", {}, name(subject)), h("span.quiet", {}, plural(subject.face_count, "face")))),
    pick && h("label.pick", {}, h("input", { type: "checkbox", "aria-label": `Choose ${label}`, onchange: (event) => pick(subject, event.target.checked) })));
}

/** Who a face shows, where a search knows it. */
export const badge = (found) =>
  found.subject_id && h("p", {}, h("a", { href: href(`/people/${found.subject_id}`) }, chip(found.subject_name ?? "Somebody unnamed", "busy")));

export const merge = (into, others) => call("POST", `/subjects/${into.id}/merge`, { json: { subjects: others.map(({ id }) => id) } });

/** Makes a person of a name. */
export const create = (text, collection = collections.current()) => call("POST", "/subjects", { json: { name: text, collection } });

/** Asks for a name for somebody. */
export const rename = async (subject) => {
  const text = await ask(subject.origin === "cluster" ? "Who is this?" : "Rename", "Name", { value: subject.name ?? "", hint: subject.origin === "cluster" ? "A cluster that is named is a person from then on." : undefined });
  return text === null ? null : call("PATCH", `/subjects/${subject.id}`, { json: { name: text } });
};

/** Enrols stored faces. A poor face is refused with the reasons, and a face that shows somebody else with that; both can be insisted on. */
export async function enrol(subject, faceIds) {
  const attempt = (insist) => call("POST", `/subjects/${subject.id}/faces`, { json: { face_ids: faceIds, ...insist } });
  try {
    return await attempt({});
  } catch (problem) {
    const insist = { low_quality: { force: true }, conflict: { move: true } }[problem.code];
    if (!insist) throw problem;
    const sure = await modal("Enrol it all the same?", (close) => h("form", { onsubmit: (event) => (event.preventDefault(), close(true)) },
      h("p", {}, problem.message),
      insist.force && h("p", {}, "Poor faces are taken for each other: every one that is enrolled brings more false matches."),
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null), autofocus: true }), h("button.button.danger", { type: "submit" }, "Enrol"))));
    return sure ? attempt(insist) : null;
  }
}

/** The button of a stored face. */
export function enrolButton(face) {
  const control = button("Enrol", { symbol: "people", onclick: () => busy(control, async () => {
    const subject = await choose(face.collection);
    if (!subject) return;
    const answer = await enrol(subject, [face.id]);
    if (answer) toast(`The face shows ${name(answer.subject)} now.`);
  }) });
  return control;
}

/** Asks for a person: one of the collection's, or a new name. */
function choose(collection) {
  return modal("Who is this?", (close) => {
    const abort = new AbortController();
    const list = h("div.choices");
    const fresh = h("input", { autocomplete: "off", maxlength: 200, autofocus: true });
    fillWith(list, abort.signal, () => get("/subjects", { collection, origin: "enrolled", limit: 100 }), ({ subjects }) =>
      subjects.length === 0 ? empty("people", "Nobody is enrolled yet.") : h("ul.choices", {}, subjects.map((subject) => h("li", {}, button(name(subject), { onclick: () => close(subject) })))));
    return h("form", { onsubmit: async (event) => {
      event.preventDefault();
      const text = fresh.value.trim();
      if (text) await busy(event.submitter, async () => close(await create(text, collection)));
    } },
      h("div.line", {}, field("Somebody new", fresh), h("button.button.primary", { type: "submit" }, "Add")),
      list,
      h("div.actions.end", {}, button("Cancel", { onclick: () => close(null) })));
  });
}

const BEGUN = "facecrawl.clustering";

/** Looks for people among the faces of a collection; draws how far it is until it has ended, then calls `done`. */
export function clustering(slot, signal, done) {
  const path = `/collections/${encodeURIComponent(collections.current())}/cluster`;
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer));
  const show = (run, asked) => {
    if (signal.aborted) return;
    const over = ["completed", "failed"].includes(run.state);
    put(slot, over && !asked ? null : h("p", { role: "status" }, run.state === "failed" ? `Looking for people failed: ${run.error}`
      : over ? `${plural(run.faces, "new face")} looked at: ${plural(run.made, "new cluster")}, ${plural(run.assigned, "face")} given to somebody.`
      : `Looking for people: ${run.looked} of ${plural(run.faces, "new face")}…`));
    if (over && asked) done();
    if (!over) timer = setTimeout(async () => show(await get(path, {}, signal).catch(() => run), true), 1000);
  };
  // A run that this tab began is followed again after a reload.
  if (sessionStorage.getItem(BEGUN) === path) get(path, {}, signal).then((run) => show(run, false), () => sessionStorage.removeItem(BEGUN));
  return async () => {
    show(await call("POST", path, { json: {} }), true);
    sessionStorage.setItem(BEGUN, path);
  };
}
