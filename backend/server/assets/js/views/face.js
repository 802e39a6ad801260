// The view of one stored face: its image, all places where it was found, and similar faces.
import { call, deleteWithPreview, get } from "../api.js";
import { h } from "../dom.js";
import { externalLink, match } from "../faces.js";
import { plural, score, time } from "../format.js";
import { marked } from "../overlay.js";
import { enrolButton } from "../people.js";
import { crop, thumbnail } from "../picture.js";
import { measureTable, verdict } from "../quality.js";
import { go, href } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { busy, button, confirm, facts, fillWith, heading, linkButton, loading, panel, toast } from "../ui.js";

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, async () => {
    const face = await get(`/faces/${id}`, {}, signal);
    return [face, await get(`/images/${face.image_id}`, {}, signal)];
  }, ([face, image]) => draw(face, image, signal));
}

function draw(face, image, signal) {
  const index = image.faces.findIndex(({ id }) => id === face.id);
  const picture = pictureOf(image, `The whole image with ${plural(image.faces.length, "face")} marked`, signal);
  picture.select(index);
  const similar = h("div");
  const erase = button("Erase", { kind: "danger", symbol: "trash", onclick: () => busy(erase, () => remove(face)) });
  findSimilar(face, similar, signal);
  return [
    heading("Face", linkButton("Search this face", href("/search", { face: face.id }), { kind: "primary", symbol: "search" }), enrolButton(face), eraseLink({ face_id: face.id }), erase),
    h("div.split.even", {},
      h("div", {},
        panel("", h("div.portrait", {}, crop(face.id, "The face", signal), h("div", {}, verdict(face.quality), facts([
          ["Detector score", score(face.det_score)],
          ["Stored", time(face.created_at)],
          ["Collection", face.collection],
          ["Embedding", face.embedding_model],
          ["Id", h("code", {}, face.id)],
        ])))),
        face.quality && panel("Quality", measureTable(face.quality))),
      h("div", {}, panel("Position in the image", picture.element, h("p", {}, linkButton("Image", href(`/images/${image.id}`), { symbol: "faces" }))))),
    panel("Found at", sourcesTable(face)),
    panel("Similar faces", similar),
  ];
}

/** Returns the image with its faces marked. A click on a face opens its view. */
export function pictureOf(image, alt, signal) {
  if (image.format === "video_frame") {
    return { element: h("p.quiet", {}, "This is a frame of a video. Frames are not stored, only their faces."), select: () => {} };
  }
  return marked(thumbnail(image.id, alt, signal), image, image.faces, (at) => go(`/faces/${image.faces[at].id}`));
}

/** Returns the places where an image, or the image of a face, was found. */
export function sourcesTable({ sources: list, sources_total: total, sources_cut: cut }) {
  if (list.length === 0) return h("p.quiet", {}, "No source is recorded.");
  const places = table("Sources", ["Page", "Image", "Text", { name: "Found", number: true }, "Crawl"], list.map((source) => [
    source.page_url ? externalLink(source.page_url) : h("span.quiet", {}, "none"),
    externalLink(source.image_url),
    source.alt ?? "",
    time(source.found_at),
    source.crawl_id ? h("a", { href: href(`/crawls/${source.crawl_id}`) }, "Crawl") : "",
  ])).element;
  if (!cut) return places;
  return h("div", {}, places, h("p.hint", {}, `The first ${list.length} of ${total < 1000 ? total : "1,000 or more"} places. GET /images/{id}/sources lists all places.`));
}

const MOST_SIMILAR = 12;

const findSimilar = (face, slot, signal) => fillWith(slot, signal,
  () => call("POST", "/faces/search", { json: { face_id: face.id, limit: MOST_SIMILAR }, signal }),
  (answer) => answer.matches.length === 0
    ? h("p.quiet", {}, `No other face has a similarity of ${score(answer.threshold)} or more.`)
    : [
      h("ul.matches", {}, answer.matches.map((found) => match(found, signal))),
      answer.matches.length === MOST_SIMILAR && h("p.hint", {}, `Only the ${MOST_SIMILAR} most similar faces are shown. “Search this face” shows more.`),
    ], loading("Searching…"));

/** Returns a link to the form for an erasure that also suppresses the target. */
export const eraseLink = (target) => may("erase") && linkButton("Erase and suppress", href("/erasures/new", target), { symbol: "erasures" });

async function remove(face) {
  const sure = await confirm("Erase this face?", "This permanently deletes the face, its crop and its embedding. The image and its other faces are kept.", "Erase",
    { option: "Erase the whole image with all its faces" });
  if (!sure) return;
  await deleteWithPreview(sure.ticked ? `/images/${face.image_id}` : `/faces/${face.id}`);
  toast(sure.ticked ? "The image and its faces were erased." : "The face was erased.");
  go("/faces");
}
