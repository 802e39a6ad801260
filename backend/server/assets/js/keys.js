// The API key, where the service wants one. It lives as long as the tab does.
import { key, onRefused } from "./api.js";
import { h, put } from "./dom.js";
import { button, field, modal } from "./ui.js";

/** Asks for a key when a call is refused for want of one; the button in the header changes or forgets it. */
export function install(onChange) {
  const control = document.getElementById("key");
  const show = () => (control.hidden = key.get() === null);
  onRefused(async (problem) => {
    const entered = await enter(key.get() === null ? "This service asks for an API key." : problem.message);
    show();
    return entered;
  });
  control.addEventListener("click", async () => {
    if (await enter("The key that this tab uses.")) onChange();
    show();
  });
  show();
}

/** Resolves to whether there is another key now. */
async function enter(text) {
  const before = key.get();
  const value = await modal("API key", (close) => {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", autofocus: true, required: true });
    const forget = button("Forget it", { onclick: () => close("") });
    return h("form", { onsubmit: (event) => (event.preventDefault(), close(input.value.trim())) },
      h("p", {}, text),
      field("Key", input, "It is kept in this tab only and sent to this service only."),
      put(h("div.actions.end"), before && forget, button("Cancel", { onclick: () => close(null) }), h("button.button.primary", { type: "submit" }, "Use it")),
    );
  });
  if (value === null) return false;
  key.set(value);
  return value !== "" && value !== before;
}
