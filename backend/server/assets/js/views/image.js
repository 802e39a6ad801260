// The view of one stored image: its faces and where it was found.
import { deleteWithPreview, get } from "../api.js";
import { h } from "../dom.js";
import { tile } from "../faces.js";
import { bytes, plural, time } from "../format.js";
import { go } from "../router.js";
import { busy, button, confirm, facts, fillWith, heading, panel, toast } from "../ui.js";
import { eraseLink, pictureOf, sourcesTable } from "./face.js";

export function show(page, { params: { id }, signal }) {
  fillWith(page, signal, () => get(`/images/${id}`, {}, signal), (image) => draw(image, signal));
}

function draw(image, signal) {
  const found = plural(image.faces.length, "face");
  const picture = pictureOf(image, `The image with ${found} marked`, signal);
  const erase = button("Erase", { kind: "danger", symbol: "trash", onclick: () => busy(erase, () => remove(image)) });
  return [
    heading("Image", eraseLink({ image_id: image.id }), erase),
    h("div.split.even", {},
      panel("", picture.element),
      panel("", facts([
        ["File", `${image.width} × ${image.height} ${image.format}, ${bytes(image.bytes)}`],
        ["Stored", time(image.created_at)],
        ["Collection", image.collection],
        image.rotation !== 0 && ["Upright after", `${image.rotation}° clockwise`],
        ["SHA-256", h("code", {}, image.sha256)],
        image.phash && ["Perceptual hash", h("code", {}, image.phash)],
      ]), h("p.hint", {}, "The original file is not stored, at most a reduced copy."))),
    panel(found, h("div.grid.small", {}, image.faces.map((face) => tile(face, signal)))),
    panel("Found at", sourcesTable(image)),
  ];
}

async function remove(image) {
  const sure = await confirm("Erase this image?", `This permanently deletes the image with ${plural(image.faces.length, "face")}, their crops and embeddings.`, "Erase");
  if (!sure) return;
  await deleteWithPreview(`/images/${image.id}`);
  toast("The image and its faces were erased.");
  go("/faces");
}
