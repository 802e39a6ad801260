// Forms that are sent to the service: what it refuses is said below them, and marked in them.
import { Problem } from "./api.js";
import { h, put } from "./dom.js";
import { trouble } from "./ui.js";

/** A choice among a few: pairs of value and text. */
export const choice = (name, values, chosen = "") =>
  h("select", { name }, values.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));

/** A form that runs `task(data)` when it is sent; the button waits with it. The last of `children` holds the button. */
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
      put(place, trouble(problem));
      mark(element, problem.field);
    } finally {
      control.disabled = false;
    }
  } }, children);
  // Trouble is said where the eye is: above the button that was pressed.
  element.lastElementChild.before(place);
  return element;
}

/** The problem names the field that is wrong (`seeds`, `seeds[2]`, `max_pages`). */
function mark(element, name) {
  const control = element.elements[String(name ?? "").split(/[[.]/)[0]];
  // Several of one name are boxes to tick; the first stands for them.
  const first = control instanceof RadioNodeList ? control[0] : control;
  if (!first) return;
  first.setAttribute("aria-invalid", "true");
  first.focus();
}
