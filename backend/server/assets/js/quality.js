// Shows the quality of a face as words and bars.
import { h } from "./dom.js";
import { figure, score } from "./format.js";
import { measures, qualityReason } from "./labels.js";
import { chip } from "./ui.js";

/** Returns "Usable", or the reasons why the face is not usable. */
export function verdict(quality) {
  const chips = !quality ? chip("Not assessed") : quality.passed ? chip("Usable", "ok") : quality.reasons.map((reason) => chip(qualityReason(reason), "warn"));
  return h("span.chips", {}, chips);
}

/** Returns a bar for a value from 0 to 1. The caller must also show the number as text. */
export const bar = (value, tone = "") =>
  h(`span.bar${tone ? `.${tone}` : ""}`, { "aria-hidden": "true", vars: { value: `${Math.max(0, Math.min(1, value)) * 100}%` } });

/**
 * Returns a table of all measures of a face. It shows the score of each measure (from 0 to 1) and
 * the value from which the score was computed.
 */
export function measureTable(quality) {
  const row = (name, value, raw) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td.barcell", {}, bar(value, value < 0.3 ? "warn" : "")), h("td.number", {}, score(value)), h("td.number.quiet", {}, raw));
  const degrees = (n) => `${Math.round(n)}°`;
  const { yaw, pitch, roll } = quality.pose;
  return h("table.measures", {},
    h("caption.hidden", {}, "Quality of the face"),
    h("thead.hidden", {}, h("tr", {}, ["Measure", "Bar", "Score", "Measured"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {},
      row("Overall", quality.overall, ""),
      row("Pose", quality.pose.value, `yaw ${degrees(yaw)}, pitch ${degrees(pitch)}, roll ${degrees(roll)}`),
      measures().filter(([code]) => quality[code]).map(([code, name, unit]) => row(name, quality[code].value, [figure(quality[code].raw), unit].join(" ").trim())),
    ),
  );
}
