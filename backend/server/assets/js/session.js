// What the caller of this tab may do: what its key allows, or everything where the service asks for none.
import { get } from "./api.js";

let own = null;

/** Asks the service. Where it does not tell, nothing is hidden: each call is told what it lacks. */
export const load = async () => (own = await get("/keys/current").catch(() => null));

/** Whether the service asks for keys. */
export const asksForKeys = () => own?.asks_for_keys ?? true;

/** The key of this tab as the service describes it; null where there is none. */
export const ownKey = () => own?.key ?? null;

/** Whether calls with this scope are allowed. */
export const may = (scope) => !own?.key || own.key.scopes.includes(scope);
