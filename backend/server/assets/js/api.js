// Calls of the service, as any other client makes them: JSON in and out, problem documents as errors, a key where keys are on.

const STORE = "facecrawl.key";
let askForKey = null;
let asking = null;

/** An error answer (RFC 9457), or the lack of an answer. */
export class Problem extends Error {
  constructor(document, status) {
    super(document.detail || document.title || `The service answered ${status}.`);
    Object.assign(this, document, { status, requestId: document.request_id });
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORE),
  set: (value) => (value ? sessionStorage.setItem(STORE, value) : sessionStorage.removeItem(STORE)),
};

/** `ask(problem)` is called once when calls are refused for want of a key, and resolves to whether there is a new one. */
export const onRefused = (ask) => (askForKey = ask);

/** A URL with those of the parameters that are set. */
export function url(path, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return set.length === 0 ? path : `${path}?${new URLSearchParams(set)}`;
}

/** The answer, whatever its kind; a `Problem` is thrown for anything but success. Options: query, json, body, headers, signal. */
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
    // Several calls that are refused at once are one question; a call that was sent before the answer is sent again.
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
    throw new Problem({ title: "No answer", detail, code: "unreachable" }, 0);
  }
}

async function problemOf(response) {
  const fallback = { title: response.statusText, code: `http_${response.status}`, request_id: response.headers.get("x-request-id") };
  const document = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("retry-after"));
  return new Problem({ ...fallback, ...document, retryAfter: wait > 0 ? wait : undefined }, response.status);
}

/** The JSON of an answer; undefined where there is none. */
export async function call(method, path, options) {
  const text = await (await request(method, path, options)).text();
  return text === "" ? undefined : JSON.parse(text);
}

export const get = (path, query, signal) => call("GET", path, { query, signal });

/** A multipart body with one picture. */
export function withPicture(blob, name = "picture") {
  const body = new FormData();
  body.append("image", blob, name);
  return body;
}

/** Gives a file to the browser's downloads. */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // The download has its own hold on the data by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
