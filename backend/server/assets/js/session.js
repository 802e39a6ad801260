// The rights of this tab: those of its key or of the person whom a proxy named, or all rights if
// the service requires no keys.
import { get } from "./api.js";

let own = null;

/**
 * Loads the rights from the service. If that fails, no view is hidden, and the response to each
 * request reports a missing right.
 */
export const load = async () => (own = await get("/keys/current").catch(() => null));

/** Returns whether the service requires keys. */
export const asksForKeys = () => own?.asks_for_keys ?? true;

/** Returns the key of this tab, or the person, as the service describes them; null without both. */
export const ownKey = () => own?.key ?? own?.person ?? null;

/** Returns the name of the person whom a proxy named, or null. */
export const personName = () => own?.person?.name ?? null;

/** Returns whether requests with this scope are allowed. */
export const may = (scope) => ownKey()?.scopes.includes(scope) ?? true;
