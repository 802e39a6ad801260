// A picture with its faces marked.
import { h, s } from "./dom.js";

/**
 * `image` is an element that shows `size` (width, height in pixels of the boxes). Faces are marked with their numbers; `select(index)` shows one
 * with its landmarks. The list beside the picture is what the keyboard reaches, so the marks are hidden from who listens.
 */
export function marked(image, size, faces, onSelect = () => {}) {
  // Numbers are as large as text on a picture that fills its place.
  const unit = Math.max(size.width, size.height) / 100;
  const marks = faces.map((face, index) => mark(face, index, unit, size, onSelect));
  const drawing = s("svg", { class: "marks", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, marks);
  const element = h("figure.marked", { vars: { ratio: `${size.width} / ${size.height}` } }, image, drawing);
  const select = (chosen) => {
    marks.forEach((one, index) => one.classList.toggle("chosen", index === chosen));
    // What is drawn last lies on top.
    if (marks[chosen]) drawing.append(marks[chosen]);
  };
  return { element, select };
}

function mark(face, index, unit, size, onSelect) {
  const { x, y, width, height } = face.bbox;
  const passed = face.quality?.passed ?? true;
  const label = String(index + 1);
  const [tall, wide] = [unit * 3.6, unit * (1.6 + 1.9 * label.length)];
  const left = Math.min(Math.max(0, x), size.width - wide);
  const top = y >= tall ? y - tall : Math.max(0, y);
  return s("g", { class: passed ? "mark" : "mark weak", "data-face": label, onclick: () => onSelect(index) },
    s("rect", { class: "box", x, y, width, height, rx: Math.min(width, height) * 0.04 }),
    (face.landmarks ?? []).map(([cx, cy]) => s("circle", { cx, cy, r: Math.max(unit * 0.25, Math.min(width, height) * 0.018) })),
    s("rect", { class: "tag", x: left, y: top, width: wide, height: tall, rx: unit * 0.5 }),
    s("text", { x: left + wide / 2, y: top + tall * 0.74, "font-size": unit * 2.8, "text-anchor": "middle" }, label),
  );
}
