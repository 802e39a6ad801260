// A message that replaces a view for which the key lacks the scope.
import { h } from "../dom.js";
import { scopeMeaning } from "../labels.js";
import { ownKey, personName } from "../session.js";
import { button, empty } from "../ui.js";

/** Returns a view that explains that the requested view needs `scope`. */
export const missingScope = (title, scope) => ({
  show(page) {
    const { name, scopes } = ownKey();
    if (personName() !== null) {
      page.append(h("h1", {}, title), empty("keys",
        [`This view requires the scope `, h("code", {}, scope), `: ${scopeMeaning(scope)} Your groups allow ${scopes.join(", ")}. The operator of the service can change this.`]));
      return;
    }
    page.append(h("h1", {}, title), empty("keys",
      [`This view requires a key with the scope `, h("code", {}, scope), `: ${scopeMeaning(scope)} Your key, “${name}”, has ${scopes.join(", ")}.`],
      button("Use a different key", { symbol: "keys", onclick: () => document.getElementById("key").click() })));
  },
});
