// Draws an image with marks on its faces.
import { h, s } from "./dom.js";

/** Height of the label and of the digits of a face's number, in screen pixels. */
const [TALL, LETTER] = [19, 13];

/**
 * `image` is the element that shows the image. `size` is the width and height of the image in the
 * pixel units of the boxes. Each face gets a numbered mark. `select(index)` shows one face with its
 * landmarks. The list beside the image is accessible with the keyboard, so the marks are hidden
 * from screen readers.
 */
export function marked(image, size, faces, onSelect = () => {}) {
  const marks = faces.map((face, index) => mark(face, index, onSelect));
  const drawing = s("svg", { class: "marks", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, marks.map(({ element }) => element));
  const element = h("figure.marked", { vars: { ratio: `${size.width} / ${size.height}` } }, image, drawing);
  // The numbers have the same size on every screen, whatever the size of the image.
  new ResizeObserver(() => {
    const unit = size.width / Math.max(1, element.clientWidth);
    for (const { lay } of marks) lay(unit, size);
  }).observe(element);
  const select = (chosen) => {
    marks.forEach((one, index) => one.element.classList.toggle("chosen", index === chosen));
    // The last element is drawn above the others.
    if (marks[chosen]) drawing.append(marks[chosen].element);
  };
  return { element, select };
}

function mark(face, index, onSelect) {
  const { x, y, width, height } = face.bbox;
  const passed = face.quality?.passed ?? true;
  const label = String(index + 1);
  const dots = (face.landmarks ?? []).map(([cx, cy]) => s("circle", { cx, cy }));
  const tag = s("rect", { class: "tag" });
  const text = s("text", { "text-anchor": "middle" }, label);
  const element = s("g", { class: passed ? "mark" : "mark weak", "data-face": label, onclick: () => onSelect(index) },
    s("rect", { class: "box", x, y, width, height, rx: Math.min(width, height) * 0.04 }), dots, tag, text);
  /**
   * Sets the sizes that are the same on every screen. `unit` is the length of a screen pixel in
   * pixels of the image.
   */
  const lay = (unit, size) => {
    const [labelHeight, labelWidth] = [TALL * unit, (LETTER * 0.65 * label.length + 9) * unit];
    const left = Math.min(Math.max(0, x), size.width - labelWidth);
    const top = y >= labelHeight ? y - labelHeight : Math.max(0, y);
    const set = (shape, values) => Object.entries(values).forEach(([name, value]) => shape.setAttribute(name, value));
    set(tag, { x: left, y: top, width: labelWidth, height: labelHeight, rx: 3 * unit });
    set(text, { x: left + labelWidth / 2, y: top + labelHeight * 0.75, "font-size": LETTER * unit });
    // In a crowd, the numbers would cover the people. If a face is narrower than its number, the
    // number is shown only while the face is selected.
    element.classList.toggle("tiny", width < labelWidth);
    for (const dot of dots) set(dot, { r: Math.max(1.6 * unit, Math.min(width, height) * 0.018) });
  };
  return { element, lay };
}
