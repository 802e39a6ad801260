// The Prometheus text format, as much of it as the page needs. Pure: the browser tests call these directly.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** All samples: `{ name, labels, value }`. */
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

/** The sum of the samples of a name whose labels are as `wanted` says (a value, or a list of them). */
export const sum = (samples, name, wanted = {}) =>
  samples.filter((sample) => sample.name === name && fits(sample.labels, wanted)).reduce((total, { value }) => total + value, 0);

const fits = (labels, wanted) => Object.entries(wanted).every(([name, value]) => [value].flat().includes(labels[name]));

/** How fast a counter grew between two looks, per second. A service that began anew counts from 0; NaN without an earlier look. */
export const rate = (before, after, seconds) => (seconds > 0 ? (after >= before ? after - before : after) / seconds : NaN);
