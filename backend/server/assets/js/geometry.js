// Geometry of rectangles, bars and plots. The functions are pure, and the browser tests call them
// directly.

/**
 * Returns the square around a box with `margin` of its longer side on each side, moved and cut to
 * lie inside width x height.
 */
export function square({ x, y, width, height }, bounds, margin = 0.25) {
  const side = Math.min(Math.max(width, height) * (1 + 2 * margin), bounds.width, bounds.height);
  const clamp = (value, most) => Math.min(Math.max(0, value), Math.max(0, most));
  return {
    x: clamp(x + width / 2 - side / 2, bounds.width - side),
    y: clamp(y + height / 2 - side / 2, bounds.height - side),
    side,
  };
}

/**
 * Returns the largest size with the proportions of `width` x `height` that fits into `most` x
 * `most`, and never larger than the original.
 */
export function fit(width, height, most) {
  const scale = Math.min(1, most / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)), scale };
}

/**
 * Returns the widths of the parts of a bar in percent, in order. Each part that is not 0 gets about
 * `least` percent or more, and the widths add up to 100.
 */
export function shares(values, least = 1.5) {
  const total = values.reduce((sum, value) => sum + value, 0);
  if (total <= 0) return values.map(() => 0);
  const raised = values.map((value) => (value > 0 ? Math.max(least, (value / total) * 100) : 0));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => (value / sum) * 100);
}

/**
 * Returns the points of a line through `samples` (numbers, or null for a gap) in a width x height
 * box whose upper edge stands for the value `top`. Each piece without a gap is a separate list.
 */
export function lines(samples, width, height, top) {
  const pieces = [];
  let piece = null;
  const step = samples.length > 1 ? width / (samples.length - 1) : 0;
  samples.forEach((value, index) => {
    if (value === null) return void (piece = null);
    if (!piece) pieces.push((piece = []));
    const y = top > 0 ? height - (Math.min(value, top) / top) * height : height;
    piece.push([Number((index * step).toFixed(2)), Number(y.toFixed(2))]);
  });
  return pieces;
}

/** Returns the end of an axis that includes `most`: 1, 2 or 5 times a power of ten. */
export function axisTop(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * power).find((top) => top >= most - 1e-9);
}
