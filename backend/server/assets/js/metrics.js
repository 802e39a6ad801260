// A parser for the part of the Prometheus text format that the web page needs. The functions are
// pure, and the browser tests call them directly.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Returns all samples: `{ name, labels, value }`. */
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = !line.startsWith("#") && LINE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}

/**
 * Returns the sum of the samples of a metric whose labels match `wanted` (a value or a list of
 * values for each label).
 */
export const sum = (samples, name, wanted = {}) =>
  samples.filter((sample) => sample.name === name && fits(sample.labels, wanted)).reduce((total, { value }) => total + value, 0);

const fits = (labels, wanted) => Object.entries(wanted).every(([name, value]) => [value].flat().includes(labels[name]));

/**
 * Returns the growth of a counter per second. A counter that decreased has restarted at 0. Without
 * an earlier sample, the result is NaN.
 */
export const rate = (before, after, seconds) => (seconds > 0 ? (after >= before ? after - before : after) / seconds : NaN);
