// Forms that are sent to the service. An error is shown in the form, and the field that caused it
// is marked.
import { Problem } from "./api.js";
import { h, put } from "./dom.js";
import { problemBox } from "./ui.js";

/** Returns a select element for pairs of value and text. */
export const choice = (name, values, chosen = "") =>
  h("select", { name }, values.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));

/**
 * Returns a form that runs `task(data)` when it is submitted. The submit button is disabled while
 * the task runs. The last of `children` contains this button.
 */
export function form(task, ...children) {
  const place = h("div");
  const element = h("form.form", { onsubmit: async (event) => {
    event.preventDefault();
    const control = event.submitter ?? element.querySelector("[type=submit]");
    control.disabled = true;
    put(place);
    element.querySelectorAll("[aria-invalid]").forEach((one) => one.removeAttribute("aria-invalid"));
    try {
      await task(new FormData(element), control);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (!(problem instanceof Problem)) console.error(problem);
      put(place, problemBox(problem));
      mark(element, problem.field);
    } finally {
      control.disabled = false;
    }
  } }, children);
  // Errors appear directly above the button that the user pressed.
  element.lastElementChild.before(place);
  return element;
}

/** Marks the field that the problem names (`seeds`, `seeds[2]`, `max_pages`). */
function mark(element, name) {
  const control = element.elements[String(name ?? "").split(/[[.]/)[0]];
  // If several controls have the same name, they are checkboxes, and the first one is marked.
  const first = control instanceof RadioNodeList ? control[0] : control;
  if (!first) return;
  first.setAttribute("aria-invalid", "true");
  first.focus();
}
