// A form that creates a collection.
import { call } from "../api.js";
import * as collections from "../collections.js";
import { h } from "../dom.js";
import { form } from "../form.js";
import { go } from "../router.js";
import { chosen, settings } from "../settings.js";
import { field, heading, linkButton, panel, toast } from "../ui.js";

export function show(page, { signal }) {
  const send = async (data) => {
    const made = await call("POST", "/collections", { json: { name: data.get("name"), ...chosen(data) }, signal });
    collections.choose(made.name);
    await collections.load();
    toast(`${made.name} is now in use.`);
    go("/collections");
  };
  page.append(heading("New collection"), form(send,
    panel("", nameField("")),
    panel("Settings", settings()),
    h("div.actions", {}, h("button.button.primary", { type: "submit" }, "Create"), linkButton("Back", "#/collections"))));
}

/** Returns the field for the name of a collection. */
export const nameField = (value, props = {}) => field("Name",
  h("input", { name: "name", value, required: true, pattern: "[a-z0-9_\\-]{1,64}", maxlength: 64, autocomplete: "off", autocapitalize: "none", spellcheck: "false", ...props }),
  props.readonly ? "This collection cannot be renamed." : "1 to 64 characters: a-z, 0-9, - and _.");
