// Form fields for the settings of a collection that can differ from the defaults of the service.
import { h } from "./dom.js";
import { choice } from "./form.js";
import { profiles } from "./labels.js";
import { field } from "./ui.js";

/** Returns the form fields. `own` is the existing collection, if any. */
export const settings = (own = {}) => h("div.columns", {},
  field("Quality profile", choice("quality_profile", [["", "Service default"], ...profiles()], own.quality_profile ?? ""), "Applies to new faces. Stored faces keep their result."),
  field("Match threshold", number("match_threshold", own.match_threshold, { min: -1, max: 1, step: 0.01, placeholder: "model default" }), "Cosine similarity. Higher is stricter."),
  field("Retention, days", number("retention_days", own.retention_days, { min: 1, max: 36500, step: 1, placeholder: "unlimited" }), "Counted from the last time an image was found."));

const number = (name, value, props) => h("input", { type: "number", inputmode: "decimal", name, value: value ?? "", ...props });

/**
 * Returns the values of the fields as the API expects them. Null stands for the default of the
 * service.
 */
export function chosen(data) {
  const optional = (name, read) => (data.get(name) === "" ? null : read(data.get(name)));
  return {
    quality_profile: optional("quality_profile", String),
    match_threshold: optional("match_threshold", Number),
    retention_days: optional("retention_days", Number),
  };
}
