// Describes requests, and contains helpers of the generated methods.

/** Options of a single call. They take precedence over those of the client. */
export interface RequestOptions {
  /** Ends the call when it is aborted. The call then rejects with the reason of the signal. */
  signal?: AbortSignal;
  /** See `ClientOptions`. */
  timeoutMs?: number;
  /** See `ClientOptions`. */
  maxRetries?: number;
}

/** A value of the query or of a header. `undefined` and `null` are not sent. */
export type Value = string | number | boolean | null | undefined;

/** The body of a request. */
export interface Body {
  data: NonNullable<RequestInit["body"]>;
  /** The content type. `fetch` determines the type of a form. */
  type?: string;
  /** Whether `data` is a stream, which can be sent only once. */
  isStream?: boolean;
}

/** A call of an operation. */
export interface Call {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  /** The path, with escaped ids. */
  path: string;
  query?: object;
  headers?: Record<string, Value>;
  body?: Body | Promise<Body>;
  /** Whether the body can be so large that the default time limit is too short. */
  isUpload?: boolean;
}

/**
 * Returns a path with escaped ids. Without the check, an empty id would address a list, and `..` a
 * different resource.
 */
export function path(parts: TemplateStringsArray, ...ids: string[]): string {
  return parts.reduce((path, part, index) => {
    const id = ids[index - 1];
    if (typeof id !== "string" || id === "" || id === "." || id === "..") {
      throw new TypeError(`${JSON.stringify(id) ?? "undefined"} is not an id`);
    }
    return path + encodeURIComponent(id) + part;
  });
}

/** Returns a value as a JSON body. */
export function jsonBody(value: object): Body {
  return { data: JSON.stringify(value), type: "application/json" };
}

/** Returns the items of all pages, which are fetched one by one. */
export async function* items<Page extends { next_cursor?: string | null }, Item>(
  list: (cursor: { cursor?: string }) => Promise<Page>,
  itemsOf: (page: Page) => Item[],
): AsyncGenerator<Item> {
  let position: { cursor?: string } = {};
  for (;;) {
    const page = await list(position);
    yield* itemsOf(page);
    const cursor = page.next_cursor;
    if (!cursor) return;
    if (cursor === position.cursor) throw new Error("the service returned the same page twice");
    position = { cursor };
  }
}

/** Waits, unless the signal is or becomes aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
