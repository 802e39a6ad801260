// Displays stored images, which may require a key, and faces that are cut out of an image of the
// user.
import { request } from "./api.js";
import { h } from "./dom.js";
import { square } from "./geometry.js";

/**
 * Returns an image element for a stored image. An `img` element cannot send a key, so the bytes
 * are fetched and shown from a blob. They are fetched when the element comes near the window and
 * released when the user leaves the view.
 */
export function stored(path, alt, signal, className = "") {
  const image = h("img", { alt, class: className, draggable: "false" });
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    load(image, path, signal);
  }, { rootMargin: "400px" });
  watcher.observe(image);
  signal.addEventListener("abort", () => watcher.disconnect(), { once: true });
  return image;
}

async function load(image, path, signal) {
  try {
    const response = await request("GET", path, { signal });
    const address = URL.createObjectURL(await response.blob());
    const release = () => URL.revokeObjectURL(address);
    if (signal.aborted) return release();
    signal.addEventListener("abort", release, { once: true });
    image.src = address;
  } catch (problem) {
    if (problem.name === "AbortError") return;
    image.classList.add("missing");
    image.alt = problem.status === 404 ? "No image is stored" : `The image could not be loaded: ${problem.message}`;
  }
}

export const crop = (id, alt, signal, className) => stored(`/faces/${id}/crop`, alt, signal, className);
export const thumbnail = (id, alt, signal, className) => stored(`/images/${id}/thumbnail`, alt, signal, className);

/** Decodes the bytes of a file, in the orientation in which a browser shows the image. */
export const decode = (blob) => createImageBitmap(blob, { imageOrientation: "from-image" });

/**
 * Returns a face of a decoded image as a small canvas. The text beside the canvas contains the same
 * information, so the canvas is hidden from screen readers.
 */
export function cut(bitmap, bbox, side = 96) {
  const canvas = h("canvas.cut", { width: side, height: side, "aria-hidden": "true" });
  if (!bitmap) return canvas;
  const from = square(bbox, bitmap);
  canvas.getContext("2d").drawImage(bitmap, from.x, from.y, from.side, from.side, 0, 0, side, side);
  return canvas;
}
