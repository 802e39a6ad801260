// Sends requests: time limits, retries, and reconnection of event streams.
import { ConnectionError, Problem } from "./problem.js";
import { type Body, type Call, type RequestOptions, sleep, type Value } from "./request.js";
import { jsonLines, type ServerEvent, serverEvents } from "./streams.js";

/** Options of a client. */
export interface ClientOptions {
  /** The address of the service; `http://127.0.0.1:8080` by default. */
  baseUrl?: string | undefined;
  /** An API key, for a service with `AUTH=keys`. */
  key?: string | undefined;
  /** The function that sends requests; `globalThis.fetch` by default. */
  fetch?: typeof globalThis.fetch;
  /**
   * Maximum time of one attempt; 120,000 by default. For streams, it limits the time until the
   * response begins, and the time without data. Uploads of videos and archives have no limit by
   * default. `Infinity` means no limit.
   */
  timeoutMs?: number;
  /**
   * Maximum number of further attempts of a call; 4 by default. Calls are repeated after a response
   * 429, and after a response 503 that has `Retry-After`. Only GET requests are repeated after a
   * connection error or another response 503.
   */
  maxRetries?: number;
  /** Maximum `Retry-After`; 60,000 by default. If it is longer, the call fails at once. */
  maxRetryWaitMs?: number;
  /** Maximum time in which an interrupted event stream tries to reconnect; 300,000 by default. */
  maxReconnectMs?: number;
}

/** Maximum wait before a further attempt without `Retry-After`. */
const MAX_BACKOFF_MS = 15_000;
/** An event stream that lasted this long does not count as a failure when it ends. */
const LASTING_MS = 10_000;

/** Aborts a request when the signal of the caller is aborted, or after a time limit. */
class Limit {
  private readonly controller = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly caller: AbortSignal | undefined,
    private readonly timeoutMs: number,
  ) {
    if (caller?.aborted) this.abort();
    caller?.addEventListener("abort", this.abort, { once: true });
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  readonly abort = (): void => this.controller.abort(this.caller?.reason);

  /** Starts the time limit again from zero. */
  start(): void {
    this.stop();
    // `setTimeout` fires at once for longer times.
    if (this.timeoutMs >= 2 ** 31) return;
    const error = new DOMException(`no data within ${this.timeoutMs} ms`, "TimeoutError");
    this.timer = setTimeout(() => this.controller.abort(error), this.timeoutMs);
  }

  stop(): void {
    clearTimeout(this.timer);
  }

  /** Stops the time limit, and ignores the signal of the caller from now on. */
  release(): void {
    this.stop();
    this.caller?.removeEventListener("abort", this.abort);
  }
}

/** Sends the requests of the operations. */
export abstract class Transport {
  /** The address of the service, without a slash at the end. */
  readonly baseUrl: string;
  readonly #headers: Headers;
  readonly #fetch: typeof globalThis.fetch;
  readonly #options: Required<Omit<ClientOptions, "baseUrl" | "key" | "fetch">>;

  /**
   * Creates a client. It sends no request.
   *
   * @throws TypeError if `baseUrl` is not an http or https URL, or has a query or a password.
   */
  constructor(options: ClientOptions = {}) {
    const base = new URL(options.baseUrl || "http://127.0.0.1:8080", globalThis.location?.href);
    const isHttp = base.protocol === "http:" || base.protocol === "https:";
    if (!isHttp || base.username || base.password || base.search || base.hash) {
      throw new TypeError("baseUrl must be an http or https URL without user, query and fragment");
    }
    this.baseUrl = base.href.replace(/\/+$/, "");
    this.#headers = new Headers();
    if (options.key) this.#headers.set("authorization", `Bearer ${options.key}`);
    // A browser calls `fetch` only as a function of the global object.
    this.#fetch = options.fetch ?? ((...request) => globalThis.fetch(...request));
    this.#options = {
      timeoutMs: options.timeoutMs ?? 120_000,
      maxRetries: options.maxRetries ?? 4,
      maxRetryWaitMs: options.maxRetryWaitMs ?? 60_000,
      maxReconnectMs: options.maxReconnectMs ?? 300_000,
    };
  }

  /** Returns the JSON of the response, or `undefined` if the response has no body. */
  protected json<T>(call: Call, options: RequestOptions = {}): Promise<T> {
    return this.#read(call, options, async (response) => {
      const text = await response.text();
      if (text === "") return undefined as T;
      checkType(response, "application/json");
      return JSON.parse(text) as T;
    });
  }

  protected async nothing(call: Call, options: RequestOptions = {}): Promise<void> {
    await this.json(call, options);
  }

  protected text(call: Call, options: RequestOptions = {}): Promise<string> {
    return this.#read(call, options, (response) => {
      checkType(response, "text/plain");
      return response.text();
    });
  }

  protected blob(call: Call, options: RequestOptions = {}): Promise<Blob> {
    return this.#read(call, options, (response) => {
      checkType(response, "image/");
      return response.blob();
    });
  }

  /** Returns the bytes of a CSV response. */
  protected async stream(call: Call, options: RequestOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const { chunks, limit } = await this.#open(call, options, "text/csv");
    return new ReadableStream<Uint8Array>({
      async pull(controller) {
        const { done, value } = await chunks.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      cancel() {
        limit.abort();
        limit.release();
      },
    });
  }

  /**
   * Returns the values of a response of JSON lines. The request is sent when the iteration begins.
   */
  protected async *lines<Line>(call: Call, options: RequestOptions = {}): AsyncGenerator<Line> {
    const { chunks } = await this.#open(call, options, "application/x-ndjson");
    yield* jsonLines<Line>(chunks);
  }

  /**
   * Returns the events of a response, up to the event `last`. The request is sent when the
   * iteration begins. If the connection is lost afterwards, the client connects again. A stream
   * with ids continues after the last id.
   */
  protected async *events<Event extends ServerEvent<unknown>>(
    call: Call,
    options: RequestOptions = {},
    last?: Event["event"],
  ): AsyncGenerator<Event> {
    let query = call.query;
    let isConnected = false;
    let failures = 0;
    let lostAt = 0;
    for (;;) {
      let cause: unknown = new ConnectionError(this.baseUrl, "the event stream ended early");
      let openedAt: number | undefined;
      try {
        const request = { ...call, ...(query && { query }) };
        const { chunks } = await this.#open(request, options, "text/event-stream");
        isConnected = true;
        openedAt = Date.now();
        for await (const event of serverEvents<Event>(chunks)) {
          failures = 0;
          // The header last-event-id would have the same effect, but the service does not allow it
          // for other origins.
          if (event.id !== undefined) query = { ...query, after: event.id };
          yield event;
          if (event.event === last) return;
        }
      } catch (error) {
        if (!isConnected || options.signal?.aborted || !isTemporary(error)) throw error;
        cause = error;
      }
      // A proxy may close a stream without events after some time. This is not a failure.
      if (openedAt !== undefined && Date.now() - openedAt >= LASTING_MS) failures = 0;
      if (failures === 0) lostAt = Date.now();
      failures += 1;
      if (Date.now() - lostAt >= this.#options.maxReconnectMs) throw cause;
      await sleep(backoff(failures), options.signal);
    }
  }

  /** Sends a request and reads the response. */
  #read<T>(
    call: Call,
    options: RequestOptions,
    read: (response: Response) => Promise<T>,
  ): Promise<T> {
    return this.#attempt(call, options, async (response, limit) => {
      const value = await read(response);
      limit.release();
      return value;
    });
  }

  /** Sends a request, and returns the response as soon as it begins. */
  #open(
    call: Call,
    options: RequestOptions,
    type: string,
  ): Promise<{ chunks: AsyncGenerator<Uint8Array, void>; limit: Limit }> {
    return this.#attempt(call, options, async (response, limit) => {
      checkType(response, type);
      limit.stop();
      return { chunks: chunksOf(response, limit, this.baseUrl), limit };
    });
  }

  /**
   * Sends a request, and repeats it as often as allowed until it succeeds. `use` receives the
   * response and releases the limit.
   */
  async #attempt<T>(
    call: Call,
    options: RequestOptions,
    use: (response: Response, limit: Limit) => Promise<T>,
  ): Promise<T> {
    const { signal } = options;
    const maxRetries = options.maxRetries ?? this.#options.maxRetries;
    const timeoutMs = options.timeoutMs ?? (call.isUpload ? Infinity : this.#options.timeoutMs);
    const body = await call.body;
    const url = this.baseUrl + call.path + queryOf(call.query);
    const init = this.#init(call, body);
    for (let retries = 0; ; retries += 1) {
      signal?.throwIfAborted();
      const limit = new Limit(signal, timeoutMs);
      let waitMs: number | undefined;
      try {
        limit.start();
        const response = await this.#fetch(url, { ...init, signal: limit.signal });
        if (response.ok) return await use(response, limit);
        if (response.type === "opaqueredirect" || Math.trunc(response.status / 100) === 3) {
          const location = response.headers.get("location") ?? "another address";
          throw Problem.unexpected(response, `the response is a redirect to ${location}`);
        }
        const problem = await Problem.from(response);
        waitMs = this.#waitMs(problem, call, retries);
        if (waitMs === undefined || body?.isStream || retries >= maxRetries) throw problem;
      } catch (error) {
        limit.release();
        if (limit.signal.aborted) throw limit.signal.reason;
        if (error instanceof Problem || error instanceof SyntaxError) throw error;
        if (call.method !== "GET" || retries >= maxRetries) throw new ConnectionError(url, error);
        waitMs = backoff(retries);
      }
      limit.release();
      await sleep(waitMs, signal);
    }
  }

  #init(call: Call, body: Body | undefined): RequestInit {
    const headers = new Headers(this.#headers);
    for (const [name, value] of Object.entries(call.headers ?? {})) {
      if (value !== undefined && value !== null) headers.set(name, String(value));
    }
    if (body?.type) headers.set("content-type", body.type);
    // A redirect could turn a POST request into a GET request.
    const init: RequestInit = { method: call.method, headers, redirect: "manual" };
    if (body) init.body = body.data;
    // `fetch` requires this for streams, but its types do not contain it.
    return body?.isStream ? ({ ...init, duplex: "half" } as RequestInit) : init;
  }

  /**
   * Returns the time until the next attempt, or `undefined` if the call must not be repeated. A
   * response 503 without `Retry-After` does not tell whether a change was made.
   */
  #waitMs(problem: Problem, call: Call, retries: number): number | undefined {
    const wait = problem.retryAfterMs;
    const isSafe = problem.status === 429 || wait !== undefined || call.method === "GET";
    if (!isSafe || (problem.status !== 429 && problem.status !== 503)) return undefined;
    if (wait !== undefined && wait > this.#options.maxRetryWaitMs) return undefined;
    return wait ?? backoff(retries);
  }
}

/** Checks that a response has a content type. Otherwise a proxy or a different server sent it. */
function checkType(response: Response, expected: string): void {
  const type = response.headers.get("content-type") ?? "";
  if (type.toLowerCase().startsWith(expected)) return;
  throw Problem.unexpected(response, `the content type of the response is ${type || "missing"}`);
}

/**
 * Returns the bytes of a response. The time limit applies to each read, not to the time in which
 * the caller uses the data.
 */
async function* chunksOf(response: Response, limit: Limit, url: string): AsyncGenerator<Uint8Array, void> {
  const reader = response.body?.getReader();
  try {
    while (reader) {
      limit.start();
      const { done, value } = await reader.read();
      limit.stop();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (limit.signal.aborted) throw limit.signal.reason;
    throw new ConnectionError(url, error);
  } finally {
    // Closes the connection if the caller stops early.
    reader?.cancel().catch(() => undefined);
    limit.release();
  }
}

function queryOf(query: object = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(pairs.map(([name, value]: [string, Value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}

/** Returns the wait before an attempt, which doubles and is partly random. */
function backoff(retries: number): number {
  return Math.min(MAX_BACKOFF_MS, 500 * 2 ** retries) * (0.5 + Math.random() / 2);
}

/**
 * Returns whether a new connection may help: the connection was lost or had no data for too long,
 * or the service is starting or overloaded.
 */
function isTemporary(error: unknown): boolean {
  if (error instanceof Problem) return error.status === 429 || error.status >= 500;
  return error instanceof ConnectionError || (error instanceof DOMException && error.name === "TimeoutError");
}
