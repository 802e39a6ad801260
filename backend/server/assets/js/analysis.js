// Sends an image to the service and shows the faces found in it. The views Detect, Search and New
// erasure use it.
import { call, withPicture } from "./api.js";
import { h } from "./dom.js";
import { percent, score } from "./format.js";
import { marked } from "./overlay.js";
import { cut, decode } from "./picture.js";
import { verdict } from "./quality.js";

/** Sends an image. Resolves to the response and the decoded image. */
export async function analyse(blob, name, query, signal) {
  const [answer, bitmap] = await Promise.all([
    call("POST", "/faces/detect", { query, body: withPicture(blob, name), signal }),
    // The service reports what is wrong with an image, so decoding errors are ignored here.
    decode(blob).catch(() => null),
  ]);
  return { answer, bitmap };
}

/**
 * Returns the image with its faces, and the list of faces. Selecting a face in the image or in the
 * list marks it in both and calls `onChoose(index)`.
 */
export function facePicker({ answer, bitmap }, blob, signal, onChoose) {
  const address = URL.createObjectURL(blob);
  signal.addEventListener("abort", () => URL.revokeObjectURL(address), { once: true });
  const image = h("img", { src: address, alt: `The image, ${answer.image.width} by ${answer.image.height} pixels, with ${answer.faces.length} faces marked` });
  const { element, select } = marked(image, answer.image, answer.faces, (index) => choose(index));
  const items = answer.faces.map((face, index) => h("button.facerow", { type: "button", "aria-pressed": "false", onclick: () => choose(index) },
    cut(bitmap, face.bbox),
    h("span.rowtext", {},
      h("span.strong", {}, `Face ${index + 1}`),
      h("span.quiet", {}, `score ${score(face.det_score)}${face.quality ? `, quality ${percent(face.quality.overall)}` : ""}`),
      verdict(face.quality)),
  ));
  function choose(index) {
    items.forEach((item, at) => item.setAttribute("aria-pressed", String(at === index)));
    select(index);
    onChoose(index);
  }
  const list = h("ul.facelist", { "aria-label": "Faces, best score first" }, items.map((item) => h("li", {}, item)));
  return { stage: element, list, choose };
}
