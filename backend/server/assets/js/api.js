// Requests to the service, made like those of any other client: JSON bodies, problem documents as
// errors, and a key if the service requires one.

const STORE = "facecrawl.key";
let askForKey = null;
let asking = null;

/** An error response (RFC 9457), or a missing response. */
export class Problem extends Error {
  constructor(document, status) {
    super(document.detail || document.title || `The service responded with status ${status}.`);
    Object.assign(this, document, { status, requestId: document.request_id });
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORE),
  set: (value) => (value ? sessionStorage.setItem(STORE, value) : sessionStorage.removeItem(STORE)),
};

/**
 * Registers `ask(problem)`, which is called once when requests are rejected because of a missing or
 * invalid key. It resolves to true if there is a new key, else to false.
 */
export const onRefused = (ask) => (askForKey = ask);

/** Returns a URL with those parameters that have a value. */
export function url(path, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return set.length === 0 ? path : `${path}?${new URLSearchParams(set)}`;
}

/**
 * Sends a request and returns the successful response of any type. Throws a `Problem` for any other
 * response. Options: query, json, body, headers, signal.
 */
export async function request(method, path, { query, json, body, headers = {}, signal } = {}) {
  for (;;) {
    const used = key.get();
    const init = { method, signal, headers: { ...headers } };
    if (used) init.headers.authorization = `Bearer ${used}`;
    if (json !== undefined) [init.body, init.headers["content-type"]] = [JSON.stringify(json), "application/json"];
    else if (body !== undefined) init.body = body;
    const response = await send(url(path, query), init);
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401 || !askForKey) throw problem;
    // If several concurrent requests are rejected, the user is asked for a key only once. A request
    // that was sent with an older key is sent again.
    if (key.get() === used) {
      asking ??= askForKey(problem).finally(() => (asking = null));
      if (!(await asking)) throw problem;
    }
    if (signal?.aborted) throw new DOMException("left", "AbortError");
  }
}

async function send(target, init) {
  try {
    return await fetch(target, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const detail = "The service cannot be reached. It may have stopped, or the network is down.";
    throw new Problem({ title: "No response", detail, code: "unreachable" }, 0);
  }
}

async function problemOf(response) {
  const fallback = { title: response.statusText, code: `http_${response.status}`, request_id: response.headers.get("x-request-id") };
  const document = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("retry-after"));
  return new Problem({ ...fallback, ...document, retryAfter: wait > 0 ? wait : undefined }, response.status);
}

/** Returns the JSON of a response, or undefined if it has no body. */
export async function call(method, path, options) {
  const text = await (await request(method, path, options)).text();
  return text === "" ? undefined : JSON.parse(text);
}

/**
 * Deletes something. The service deletes many rows only with the confirmation token of a preview,
 * so this function requests one first. Resolves to the preview.
 */
export async function deleteWithPreview(path, query = {}) {
  const preview = await call("DELETE", path, { query: { ...query, dry_run: true } });
  await call("DELETE", path, { query: { ...query, confirm: preview.confirm } });
  return preview;
}

export const get = (path, query, signal) => call("GET", path, { query, signal });

/** Returns a multipart body with one image. */
export function withPicture(blob, name = "picture") {
  const body = new FormData();
  body.append("image", blob, name);
  return body;
}

/** Saves a file as a download of the browser. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // By then, the download has its own reference to the data.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
