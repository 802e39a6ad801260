// What a collection is told to do otherwise than the service.
import { h } from "./dom.js";
import { choice } from "./form.js";
import { field } from "./ui.js";
import { profiles } from "./words.js";

/** The fields; `own` is the collection as it is, if there is one. */
export const settings = (own = {}) => h("div.columns", {},
  field("Faces are judged by", choice("quality_profile", [["", "As the service"], ...profiles()], own.quality_profile ?? ""), "From now on; stored faces keep their verdict."),
  field("A match begins at", number("match_threshold", own.match_threshold, { min: -1, max: 1, step: 0.01, placeholder: "the model's own" }), "Cosine similarity. Higher is stricter."),
  field("Kept for, days", number("retention_days", own.retention_days, { min: 1, max: 36500, step: 1, placeholder: "for ever" }), "Counted from when an image was last seen."));

const number = (name, value, props) => h("input", { type: "number", inputmode: "decimal", name, value: value ?? "", ...props });

/** What the fields say, as the service takes it: null is the service's own. */
export function chosen(data) {
  const optional = (name, read) => (data.get(name) === "" ? null : read(data.get(name)));
  return {
    quality_profile: optional("quality_profile", String),
    match_threshold: optional("match_threshold", Number),
    retention_days: optional("retention_days", Number),
  };
}
