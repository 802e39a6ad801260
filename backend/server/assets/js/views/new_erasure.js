// A form that creates an erasure: it asks for the target, shows a preview of what would be erased,
// and then performs the erasure.
import { analyse, facePicker } from "../analysis.js";
import { call, withPicture } from "../api.js";
import * as collections from "../collections.js";
import { h, put } from "../dom.js";
import { choice } from "../form.js";
import { plural, score } from "../format.js";
import { pictureInput } from "../input.js";
import { erasureKind } from "../labels.js";
import { crop, thumbnail } from "../picture.js";
import { go, href } from "../router.js";
import { busy, button, confirm, empty, field, fillWith, heading, linkButton, loading, panel, problemBox, toast } from "../ui.js";

const ID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
/** The kinds of erasures, and the API field for each kind. */
const FIELDS = { likeness: null, face: "face_id", image: "image_id", video: "video_id", subject: "subject_id", url: "url" };
/** The kinds that identify a person, who can then be suppressed. */
const IDENTIFIES_A_PERSON = ["likeness", "face", "image", "subject"];

/** The kinds whose target determines the collection, regardless of the current collection. */
const HAS_OWN_COLLECTION = ["face", "image", "video"];

export function show(page, { query, signal }) {
  if (query.collection) collections.choose(query.collection);
  const named = Object.keys(FIELDS).find((kind) => query[FIELDS[kind]]) ?? "likeness";
  const kind = choice("kind", Object.keys(FIELDS).map((code) => [code, erasureKind(code)]), named);
  const [input, preview] = [h("div.side"), h("div.result.sticky")];
  const control = button("Show preview", { kind: "primary", symbol: "search", onclick: () => busy(control, showPreview) });
  const threshold = h("input", { type: "number", inputmode: "decimal", min: 0, max: 1, step: 0.01, placeholder: "collection default" });
  const suppress = check("Suppress the images, the videos and the URL", "The service stores their hashes, so that they are not stored if they are found again.", true);
  const person = check("Suppress the person in all images",
    "The service stores a one-way sketch of the face: 256 bits that have no meaning without the secret of the service. With the default model, the sketch also matches about 1 in 250 clear faces of other people, and 1 in 55 small faces in crowds. These faces are suppressed too.", false);
  const likeness = field("Minimum similarity", threshold, "Cosine similarity. A low value also erases other people, so check the preview.");
  /** The current target: `{ key, value }` for a JSON body, or an image. */
  let target = null;
  /** Whether other people may be erased too. This is confirmed for one preview only. */
  let force = false;
  const changed = () => {
    control.disabled = !target;
    force = false;
    put(preview, empty("erasures", target ? "Nothing has been erased yet. Show the preview first." : "First select what to erase."));
  };

  // The listeners of one kind are removed when another kind is selected.
  let chosen = new AbortController();
  const choose = () => {
    chosen.abort();
    chosen = new AbortController();
    target = null;
    changed();
    likeness.hidden = kind.value !== "likeness";
    const can = IDENTIFIES_A_PERSON.includes(kind.value);
    person.box.disabled = !can;
    if (!can) person.box.checked = false;
    if (kind.value === "likeness") put(input, pictures());
    else put(input, named === kind.value ? identified(query[FIELDS[kind.value]]) : identified(""));
  };
  function pictures() {
    const here = AbortSignal.any([signal, chosen.signal]);
    const probe = h("div.probe");
    const zone = pictureInput((blob, name) => {
      zone.classList.add("compact");
      target = null;
      changed();
      fillWith(probe, here, () => analyse(blob, name, { embeddings: false }, here), (found) => {
        if (found.answer.faces.length === 0) return empty("detect", "No face was found in this image.");
        const picker = facePicker(found, blob, here, (index) => {
          target = { blob, name, index };
          changed();
        });
        picker.choose(0);
        return [picker.stage, found.answer.faces.length > 1 && h("p.hint", {}, "Select a face."), picker.list];
      }, loading("Detecting faces…"));
    }, here);
    return [zone, probe];
  }
  function identified(value) {
    const isUrl = kind.value === "url";
    const seen = h("div.probeface");
    const entry = h("input", { value, required: true, autocomplete: "off", spellcheck: "false", type: isUrl ? "url" : "text", pattern: isUrl ? null : ID, placeholder: isUrl ? "https://example.org/team.html" : "0198f1c2-3a55-7c30-9d35-6a2f5d0f6a11" });
    const read = () => {
      target = entry.value && entry.checkValidity() ? { key: FIELDS[kind.value], value: entry.value.trim() } : null;
      changed();
      const picture = target && { face: crop, image: thumbnail }[kind.value];
      put(seen, picture && picture(target.value, "The selected face or image", signal));
    };
    entry.addEventListener("input", read);
    const element = [field(isUrl ? "URL" : "Id", entry, isUrl ? "The URL of an image, a video or a page. For a page, all images and videos that were found on it are erased." : "The id is shown in the view of the face, image, video or person."), seen];
    read();
    return element;
  }

  const options = () => ({ suppress: suppress.box.checked, suppress_person: person.box.checked });
  const send = (how) => {
    const common = { ...options(), ...how, collection: HAS_OWN_COLLECTION.includes(kind.value) ? undefined : collections.current() };
    if (target.blob) return call("POST", "/erasures", { query: { ...common, force: force || undefined, threshold: threshold.value, face_index: target.index }, body: withPicture(target.blob, target.name), signal });
    return call("POST", "/erasures", { json: { ...common, [target.key]: target.value }, signal });
  };
  const showPreview = async () => {
    // If strangers match at this threshold, the user is asked to confirm it.
    const refused = (problem) => (problem.reason === "strangers_match" ? { problem } : Promise.reject(problem));
    await fillWith(preview, signal, () => send({ dry_run: true }).catch(refused), (answer) => {
      if (!answer.problem) return affected(answer, signal, erase);
      const previewAnyway = button("Preview anyway", { kind: "danger", onclick: () => busy(previewAnyway, () => ((force = true), showPreview())) });
      return [problemBox(answer.problem), previewAnyway];
    }, loading("Loading the preview…"));
    // In a narrow window the preview is below the form.
    preview.scrollIntoView({ block: "nearest" });
  };
  const erase = async (answer) => {
    const sure = await confirm("Erase permanently?", `This erases ${sum(answer)}. It cannot be undone.`, "Erase");
    if (!sure) return;
    const done = await send({ confirm: answer.confirm });
    const kept = done.erasure.suppressions;
    toast(`Erased ${sum(done)}${kept > 0 ? `, created ${plural(kept, "suppression")}` : ""}.`);
    go("/erasures");
  };
  for (const option of [threshold, suppress.box, person.box]) option.addEventListener("change", changed);
  kind.addEventListener("change", choose);
  choose();
  page.append(
    heading("New erasure", linkButton("Back", "#/erasures")),
    h("div.split", {},
      h("div.side", {}, panel("", field("What to erase", kind), input, likeness), panel("Afterwards", suppress.element, person.element), h("div.actions", {}, control)),
      preview));
}

/** Returns a checkbox with an explanation. */
function check(label, text, checked) {
  const box = h("input", { type: "checkbox", checked });
  return { box, element: h("div.field", {}, h("label.check", {}, box, label), h("p.hint", {}, text)) };
}

const sum = ({ faces, images, subjects, videos }) => `${plural(faces, "face")}${subjects > 0 ? `, ${plural(subjects, "person", "people")}` : ""}${videos > 0 ? `, ${plural(videos, "video")}` : ""} and ${plural(images, "whole image")}`;

/** Returns the faces that would be erased, and the button that erases them. */
function affected(answer, signal, erase) {
  const nothing = answer.faces === 0 && answer.images === 0 && answer.subjects === 0 && answer.videos === 0;
  const control = button(nothing ? "Suppress anyway" : "Erase permanently", { kind: "danger", symbol: "trash", onclick: () => busy(control, () => erase(answer)) });
  return h("div", {},
    h("section.panel", {},
      h("div.heading", {}, h("h2", { role: "status" }, nothing ? "No stored data would be erased" : `${sum(answer)} would be erased`), control),
      answer.not_compared > 0 && h("p", {}, `${plural(answer.not_compared, "face")} of a different embedding model cannot be compared and would not be erased.`),
      answer.faces > answer.affected.length && h("p.hint", {}, `Only the ${answer.affected.length} most similar faces are shown.`),
      h("ul.grid.small", {}, answer.affected.map(({ face_id, similarity }) => h("li", {},
        h("a.tile", { href: href(`/faces/${face_id}`), target: "_blank", "aria-label": "Face, in a new tab" }, crop(face_id, "", signal),
          similarity !== null && h("span.tiletext", {}, `Similarity ${score(similarity)}`)))))));
}
