// The rights of this tab: those of its key, or all rights if the service requires no keys.
import { get } from "./api.js";

let own = null;

/**
 * Loads the rights from the service. If that fails, no view is hidden, and the response to each
 * request reports a missing right.
 */
export const load = async () => (own = await get("/keys/current").catch(() => null));

/** Returns whether the service requires keys. */
export const asksForKeys = () => own?.asks_for_keys ?? true;

/** Returns the key of this tab as the service describes it, or null if there is none. */
export const ownKey = () => own?.key ?? null;

/** Returns whether requests with this scope are allowed. */
export const may = (scope) => !own?.key || own.key.scopes.includes(scope);
