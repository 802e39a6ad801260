// A line over time, drawn as inline SVG.
import { h, put, s } from "./dom.js";
import { figure } from "./format.js";
import { axisTop, lines } from "./geometry.js";

const [WIDTH, HEIGHT] = [300, 72];
/** Maximum number of samples that are kept and drawn. */
const KEPT = 90;

/**
 * Returns a plot. `samples` may be an array that lives longer than the view. `add(value)` draws one
 * more sample. A value that is not finite is drawn as a gap.
 */
export function plot(label, { unit = "", samples = [] } = {}) {
  const value = h("b.number");
  const area = s("g");
  const drawing = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" }, area);
  const scale = h("span.axis.quiet", { "aria-hidden": "true" });
  const element = h("figure.plotbox", {}, h("figcaption", {}, h("span", {}, label), value), h("div.plotarea", {}, drawing, scale));
  const draw = () => {
    const known = samples.filter(Number.isFinite);
    const most = axisTop(Math.max(0, ...known));
    const now = known.at(-1);
    put(value, known.length > 0 ? `${figure(now)}${unit}` : "–");
    put(scale, `${figure(most)}${unit}`);
    drawing.setAttribute("aria-label", known.length > 0 ? `${label}: now ${figure(now)}${unit}, at most ${figure(Math.max(...known))}${unit}` : `${label}: no measurement yet`);
    // The newest sample is always at the right edge, even if there are only a few samples.
    const padded = [...Array(Math.max(0, KEPT - samples.length)).fill(null), ...samples.map((n) => (Number.isFinite(n) ? n : null))];
    put(area, lines(padded, WIDTH, HEIGHT - 2, most).flatMap((points) => {
      const path = points.map(([x, y], at) => `${at === 0 ? "M" : "L"}${x} ${y + 1}`).join("");
      return [s("path", { class: "area", d: `${path}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z` }), s("path", { class: "line", d: path })];
    }));
  };
  const add = (sample) => {
    samples.push(sample);
    while (samples.length > KEPT) samples.shift();
    draw();
  };
  draw();
  return { element, add };
}
