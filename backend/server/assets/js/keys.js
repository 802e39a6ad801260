// Stores the API key, if the service requires one, until the tab is closed.
import { key, onRefused } from "./api.js";
import { h, put } from "./dom.js";
import { button, field, modal } from "./ui.js";

/**
 * Asks for a key when a request is rejected because of its key. The button in the header changes or
 * removes the key.
 */
export function install(onChange) {
  const control = document.getElementById("key");
  const show = () => (control.hidden = key.get() === null);
  onRefused(async (problem) => {
    const entered = await enter(key.get() === null ? "This service requires an API key." : problem.message);
    show();
    return entered;
  });
  control.addEventListener("click", async () => {
    if (await enter("This tab uses an API key. Enter a different key or remove it.")) onChange();
    show();
  });
  show();
}

/** Asks for a key. Resolves to true if a different key was entered, else to false. */
async function enter(text) {
  const before = key.get();
  const value = await modal("API key", (close) => {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", autofocus: true, required: true });
    const forget = button("Remove key", { onclick: () => close("") });
    return h("form", { onsubmit: (event) => (event.preventDefault(), close(input.value.trim())) },
      h("p", {}, text),
      field("Key", input, "The key is stored only in this tab and sent only to this service."),
      put(h("div.actions.end"), before && forget, button("Cancel", { onclick: () => close(null) }), h("button.button.primary", { type: "submit" }, "Use key")),
    );
  });
  if (value === null) return false;
  key.set(value);
  return value !== "" && value !== before;
}
