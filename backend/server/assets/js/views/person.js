// The view of one person or cluster: its name and faces, merging, and enrolment from an image.
import { call, deleteWithPreview, get, withPicture } from "../api.js";
import { h } from "../dom.js";
import { tile } from "../faces.js";
import { plural, time } from "../format.js";
import { pictureInput } from "../input.js";
import { name, rename } from "../people.js";
import { go, href, refresh } from "../router.js";
import { may } from "../session.js";
import { busy, button, chip, confirm, empty, facts, fillWith, heading, linkButton, loading, panel, problemBox, toast } from "../ui.js";
import { eraseLink } from "./face.js";

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, () => get(`/subjects/${id}`, {}, signal), (subject) => draw(subject, signal));
}

function draw(subject, signal) {
  const cluster = subject.origin === "cluster";
  const act = (label, symbol, kind, run) => {
    const control = button(label, { symbol, kind, onclick: () => busy(control, run) });
    return control;
  };
  const naming = act(cluster ? "Name" : "Rename", "check", cluster ? "primary" : "", async () => (await rename(subject)) && refresh());
  const erase = act("Delete", "trash", "danger", () => remove(subject));
  const faces = h("div");
  fillWith(faces, signal, () => get(`/subjects/${subject.id}/faces`, { limit: 200 }, signal), (answer) => gallery(subject, answer, signal));
  return [
    heading(name(subject), naming, subject.best_face_id && linkButton("Search this person", href("/search", { face: subject.best_face_id }), { symbol: "search" }), may("watch") && linkButton("Watch", href("/watchlists/new", { subject: subject.id, collection: subject.collection }), { symbol: "watchlists" }), eraseLink({ subject_id: subject.id, collection: subject.collection }), erase),
    h("div.split", {},
      h("div.side", {},
        panel("", facts([
          ["Kind", chip(cluster ? "Cluster" : "Enrolled", cluster ? "" : "ok")],
          ["Faces", plural(subject.face_count, "face")],
          subject.external_id && ["External id", subject.external_id],
          ["Collection", subject.collection],
          ["Created", time(subject.created_at)],
          ...Object.entries(subject.metadata ?? {}).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]),
        ])),
        enrolment(subject, signal)),
      panel("Faces", faces)),
  ];
}

/**
 * Enrols the best face of an image. The service applies strict quality rules, because all other
 * faces are compared with enrolled faces.
 */
function enrolment(subject, signal) {
  const result = h("div");
  const send = (query) => (blob, file) => fillWith(result, signal,
    () => call("POST", `/subjects/${subject.id}/faces`, { query, body: withPicture(blob, file), signal }).catch((problem) => ({ problem, blob, file })),
    (answer) => {
      if (!answer.problem) return void (toast("The face was enrolled."), refresh());
      const enrolAnyway = answer.problem.code === "low_quality" && button("Enrol anyway", { kind: "danger", onclick: () => send({ force: true })(answer.blob, answer.file) });
      return [problemBox(answer.problem), enrolAnyway];
    }, loading("Enrolling…"));
  return panel("Enrol an image", pictureInput(send({}), signal), result);
}

function gallery(subject, answer, signal) {
  if (answer.faces.length === 0) return empty("faces", "This person has no faces yet.");
  return [
    h("ul.grid", {}, answer.faces.map((face) => {
      const unlink = button("Not this person", { onclick: () => busy(unlink, async () => {
        // Deleting images that were uploaded for enrolment requires the scope `erase`.
        const query = { enrolled_images: may("erase") ? "delete" : "keep" };
        await deleteWithPreview(`/subjects/${subject.id}/faces/${face.id}`, query);
        item.remove();
        toast("The face was removed from this person.");
      }) });
      const item = h("li.person", {}, tile(face, signal), unlink);
      return item;
    })),
    answer.next_cursor && h("p.hint", {}, `Only the newest ${answer.faces.length} faces are shown.`),
  ];
}

async function remove(subject) {
  const sure = await confirm(`Delete ${name(subject)}?`, "Faces from other sources are kept without a person. Images that were uploaded only to enrol this person are permanently deleted.", "Delete",
    { option: "Keep the enrolled images" });
  if (!sure) return;
  await deleteWithPreview(`/subjects/${subject.id}`, { enrolled_images: sure.ticked ? "keep" : "delete" });
  toast("The person was deleted.");
  go("/people");
}
