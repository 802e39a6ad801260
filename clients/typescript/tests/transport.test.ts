// Retries, time limits, streams and errors, with a small HTTP server in place of the service.
import assert from "node:assert/strict";
import type { IncomingMessage, ServerResponse } from "node:http";
import type { TestContext } from "node:test";
import { Client, type ClientOptions, ConnectionError, Problem } from "facecrawl";
import { startServer, test } from "./service.js";

type Answer = (response: ServerResponse, request: IncomingMessage, body: string) => void;

interface Setup {
  client: Client;
  /** The requests so far: method, path with query, body and headers. */
  requests: { line: string; body: string; headers: IncomingMessage["headers"] }[];
}

/** Starts a server that answers one request after the other. The last answer is repeated. */
async function setup(context: TestContext, answers: Answer[], options: ClientOptions = {}): Promise<Setup> {
  const requests: Setup["requests"] = [];
  const server = await startServer((request, response) => {
    let body = "";
    request.setEncoding("latin1").on("data", (text: string) => (body += text));
    request.on("end", () => {
      const answer = answers[Math.min(requests.length, answers.length - 1)];
      requests.push({ line: `${request.method} ${request.url}`, body, headers: request.headers });
      answer?.(response, request, body);
    });
  });
  context.after(() => server.close());
  return { client: new Client({ baseUrl: server.base, ...options }), requests };
}

function json(value: unknown, status = 200, headers: Record<string, string> = {}): Answer {
  return (response) => {
    response.writeHead(status, { "content-type": status < 300 ? "application/json" : "application/problem+json", ...headers });
    response.end(JSON.stringify(value));
  };
}

function problem(status: number, code: string, headers: Record<string, string> = {}): Answer {
  const document = { type: `urn:facecrawl:problem:${code}`, title: "A title", status, code, detail: "a detail", request_id: "id-1" };
  return json(document, status, headers);
}

const live = json({ status: "ok", version: "0.1.0" });
const drop: Answer = (_, request) => request.socket.destroy();
const never: Answer = () => undefined;

function text(type: string, parts: string[], end: "end" | "destroy" | "open" = "end"): Answer {
  return (response) => {
    response.writeHead(200, { "content-type": type });
    for (const part of parts) response.write(part);
    if (end === "end") response.end();
    // The client must receive the data first.
    else if (end === "destroy") setTimeout(() => response.destroy(), 50);
  };
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("the key is sent, and a base path is kept", async (context) => {
  const { client, requests } = await setup(context, [live]);
  const other = new Client({ baseUrl: `${client.baseUrl}/faces-api/`, key: "fc_secret\n" });
  await other.healthLive();
  assert.equal(requests[0]?.line, "GET /faces-api/health/live");
  assert.equal(requests[0]?.headers.authorization, "Bearer fc_secret");
});

test("an address that cannot be that of a service is rejected", () => {
  for (const baseUrl of ["ftp://example.org", "http://user:secret@example.org", "http://example.org/?a=b", "example.org"]) {
    assert.throws(() => new Client({ baseUrl }), TypeError);
  }
});

test("an id cannot address a different resource", async (context) => {
  const { client, requests } = await setup(context, [live]);
  for (const id of ["", ".", "..", undefined as unknown as string]) await assert.rejects(client.deleteFace(id), TypeError);
  await client.getFace("../keys?a#b");
  assert.deepEqual(requests.map(({ line }) => line), ["GET /faces/..%2Fkeys%3Fa%23b"]);
});

test("a problem has code, detail, status and request id", async (context) => {
  const { client } = await setup(context, [problem(404, "not_found")]);
  await assert.rejects(client.getFace("id"), (error) => {
    assert.ok(error instanceof Problem);
    assert.equal(error.message, "not_found: a detail (request id-1)");
    assert.deepEqual([error.status, error.code, error.detail, error.requestId], [404, "not_found", "a detail", "id-1"]);
    return true;
  });
});

test("a response that is not from the service is a problem", async (context) => {
  const html: Answer = (response) => response.writeHead(200, { "content-type": "text/html" }).end("<p>Welcome");
  const gateway: Answer = (response) => response.writeHead(502, { "content-type": "text/html" }).end("<p>Bad gateway");
  const redirect: Answer = (response) => response.writeHead(302, { location: "https://example.org/" }).end();
  const { client } = await setup(context, [html, html, html, gateway, redirect]);
  const code = { name: "Problem", code: "unexpected_response" };
  await assert.rejects(client.healthLive(), { ...code, status: 200 });
  await assert.rejects(all(client.followCrawl("a")), { ...code, status: 200 });
  await assert.rejects(client.getMetrics(), { ...code, status: 200 });
  await assert.rejects(client.healthLive(), { ...code, status: 502 });
  await assert.rejects(client.healthLive(), { ...code, status: 302, message: /https:\/\/example\.org/ });
});

test("a call is repeated after the time in Retry-After", async (context) => {
  const { client, requests } = await setup(context, [problem(429, "rate_limited", { "retry-after": "1" }), live]);
  const start = performance.now();
  await client.createSubject({ name: "Ada" });
  assert.ok(performance.now() - start >= 990);
  assert.deepEqual(requests.map(({ body }) => body), ['{"name":"Ada"}', '{"name":"Ada"}']);
});

test("Retry-After can be a date", async (context) => {
  const past = new Date(Date.now() - 5000).toUTCString();
  const { client, requests } = await setup(context, [problem(503, "database_unavailable", { "retry-after": past }), live]);
  await client.createSubject({ name: "Ada" });
  assert.equal(requests.length, 2);
});

test("retries end after the maximum", async (context) => {
  const { client, requests } = await setup(context, [problem(429, "overloaded", { "retry-after": "0" })], { maxRetries: 2 });
  await assert.rejects(client.healthLive(), { code: "overloaded" });
  assert.equal(requests.length, 3);
  await assert.rejects(client.healthLive({ maxRetries: 0 }), { code: "overloaded" });
  assert.equal(requests.length, 4);
});

test("a longer Retry-After than the maximum is not waited for", async (context) => {
  const { client, requests } = await setup(context, [problem(429, "rate_limited", { "retry-after": "61" })]);
  await assert.rejects(client.healthLive(), { code: "rate_limited", retryAfterMs: 61_000 });
  assert.equal(requests.length, 1);
});

test("a change is not repeated if its outcome is unknown", async (context) => {
  const { client, requests } = await setup(context, [problem(503, "database_unavailable")]);
  await assert.rejects(client.deleteFace("id"), { code: "database_unavailable" });
  assert.equal(requests.length, 1);
});

test("only GET requests are repeated after a connection error", async (context) => {
  const { client, requests } = await setup(context, [drop, live]);
  assert.equal((await client.healthLive()).status, "ok");
  assert.equal(requests.length, 2);
  const other = await setup(context, [drop, live]);
  await assert.rejects(other.client.createSubject({ name: "Ada" }), ConnectionError);
  assert.equal(other.requests.length, 1);
});

test("a connection error names the address and the cause", async () => {
  const client = new Client({ baseUrl: "http://127.0.0.1:9/path", maxRetries: 0, fetch: async () => {
    throw new TypeError("fetch failed", { cause: new Error("connect ECONNREFUSED") });
  } });
  await assert.rejects(client.healthLive(), { message: "the connection to http://127.0.0.1:9 failed: connect ECONNREFUSED" });
});

test("a stream is sent once", async (context) => {
  const { client, requests } = await setup(context, [problem(429, "overloaded", { "retry-after": "0" }), live]);
  const video = new Blob(["film"]).stream();
  await assert.rejects(client.createVideo(video, { sampling: "auto" }), { code: "overloaded" });
  assert.deepEqual(requests.map(({ line, body }) => [line, body]), [["POST /videos?sampling=auto", "film"]]);
});

test("images are sent as bytes, forms, URLs or base64", async (context) => {
  const { client, requests } = await setup(context, [live]);
  const bytes = new Uint8Array([1, 2, 200]);
  const shared = new Uint8Array(new SharedArrayBuffer(3));
  shared.set(bytes);
  for (const image of [bytes, Buffer.from(bytes), bytes.buffer, new Blob([bytes]), shared, new DataView(bytes.buffer) as unknown as Uint8Array]) {
    await client.detectFaces(image);
    const { body, headers } = requests.at(-1)!;
    assert.deepEqual([body, headers["content-type"], headers["content-length"]], ["\x01\x02\xc8", "application/octet-stream", "3"]);
  }
  await client.detectFaces("https://example.org/a.jpg");
  assert.equal(requests.at(-1)?.body, '{"url":"https://example.org/a.jpg"}');
  await client.detectFaces("data:image/png;base64,AQLI");
  assert.equal(requests.at(-1)?.body, '{"image_base64":"data:image/png;base64,AQLI"}');
  await client.compareFaces(bytes, new Blob([bytes]));
  assert.match(requests.at(-1)?.headers["content-type"] ?? "", /^multipart\/form-data; boundary=/);
  assert.match(requests.at(-1)?.body ?? "", /name="image_a"; filename="image"[^]*\x01\x02\xc8[^]*name="image_b"[^]*\x01\x02\xc8/);
  await client.detectFacesBatch([bytes, "https://example.org/a.jpg", { image_base64: "AQLI" }]);
  assert.equal(requests.at(-1)?.body, '{"images":[{"image_base64":"AQLI"},{"url":"https://example.org/a.jpg"},{"image_base64":"AQLI"}]}');
  for (const wrong of ["portrait.jpg", "file:///etc/passwd", null, 1, new Date(), new ReadableStream()]) {
    await assert.rejects(client.reportQuality(wrong as string, {}, { timeoutMs: 100 }), TypeError, String(wrong));
  }
});

test("a call ends after the time limit", async (context) => {
  const { client, requests } = await setup(context, [never], { timeoutMs: 100 });
  await assert.rejects(client.healthLive(), { name: "TimeoutError" });
  assert.equal(requests.length, 1);
  // The limit includes the body.
  const other = await setup(context, [text("application/json", ['{"status":'], "open")], { timeoutMs: 100 });
  await assert.rejects(other.client.healthLive(), { name: "TimeoutError" });
});

test("a signal ends a call and a wait", async (context) => {
  const reason = new Error("the user left");
  const { client, requests } = await setup(context, [never, problem(429, "rate_limited", { "retry-after": "30" })]);
  const isReason = (error: unknown) => error === reason;
  await assert.rejects(client.healthLive({ signal: AbortSignal.abort(reason) }), isReason);
  assert.equal(requests.length, 0);
  for (let count = 1; count <= 2; count += 1) {
    const controller = new AbortController();
    const call = client.healthLive({ signal: controller.signal });
    setTimeout(() => controller.abort(reason), 100);
    await assert.rejects(call, isReason);
    assert.equal(requests.length, count);
  }
});

test("pages are fetched until the last one", async (context) => {
  const { client, requests } = await setup(context, [
    json({ faces: [{ id: "1" }, { id: "2" }], next_cursor: "a b" }), json({ faces: [], next_cursor: "c" }), json({ faces: [{ id: "3" }], next_cursor: null }),
  ]);
  const faces = await all(client.iterateFaces({ limit: 2, crawl_id: "x" }));
  assert.deepEqual(faces.map(({ id }) => id), ["1", "2", "3"]);
  assert.deepEqual(requests.map(({ line }) => line), ["GET /faces?limit=2&crawl_id=x", "GET /faces?limit=2&crawl_id=x&cursor=a+b", "GET /faces?limit=2&crawl_id=x&cursor=c"]);
});

test("a page that repeats itself is an error", async (context) => {
  const { client } = await setup(context, [json({ faces: [], next_cursor: "a" })]);
  await assert.rejects(all(client.iterateFaces()), /same page twice/);
});

test("lines may be split anywhere", async (context) => {
  const bytes = Buffer.from('{"id":"é1"}\r\n\n{"id":"2"}\n{"id":"3"}');
  const { client } = await setup(context, [
    async (response) => {
      response.writeHead(200, { "content-type": "application/x-ndjson" });
      for (const byte of bytes) {
        response.write(Buffer.of(byte));
        await new Promise(setImmediate);
      }
      response.end();
    },
  ]);
  assert.deepEqual((await all(client.exportAlerts())).map(({ id }) => id), ["é1", "2", "3"]);
});

test("an export that ends early is an error", async (context) => {
  const lines = text("application/x-ndjson", ['{"id":"1"}\n'], "destroy");
  const { client } = await setup(context, [lines, text("text/csv", ["id\r\n"], "destroy")]);
  const found: string[] = [];
  await assert.rejects(async () => {
    for await (const { id } of client.exportAlerts()) found.push(id);
  }, ConnectionError);
  assert.deepEqual(found, ["1"]);
  await assert.rejects(new Response(await client.exportAlertsCsv()).text(), ConnectionError);
});

test("a stream without data ends after the time limit", async (context) => {
  const slow: Answer = (response, request, body) => {
    text("application/x-ndjson", ['{"id":"1"}\n'], "open")(response, request, body);
    setTimeout(() => response.write('{"id":"2"}\n'), 100);
  };
  const { client } = await setup(context, [slow], { timeoutMs: 300 });
  const lines = client.exportAlerts();
  await lines.next();
  // The limit does not apply to the time in which the caller uses a line.
  await new Promise((done) => setTimeout(done, 600));
  assert.equal((await lines.next()).value?.id, "2");
  await assert.rejects(lines.next(), { name: "TimeoutError" });
});

test("the connection closes when the caller stops reading", async (context) => {
  for (const stop of ["break", "signal", "cancel"]) {
    let closed = () => {};
    const isClosed = new Promise<void>((resolve) => (closed = resolve));
    const { client } = await setup(context, [
      (response) => {
        response.on("close", closed);
        text(stop === "cancel" ? "text/csv" : "application/x-ndjson", ['{"id":"1"}\n'], "open")(response, null as never, "");
      },
    ]);
    const controller = new AbortController();
    if (stop === "cancel") {
      const reader = (await client.exportAlertsCsv()).getReader();
      await reader.read();
      await reader.cancel();
    } else {
      const read = async () => {
        for await (const _ of client.exportAlerts({}, { signal: controller.signal })) {
          if (stop === "break") break;
          controller.abort();
        }
      };
      if (stop === "break") await read();
      else await assert.rejects(read(), { name: "AbortError" });
    }
    await isClosed;
  }
});

function event(name: string, data: unknown, id?: number): string {
  return `${id === undefined ? "" : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

test("events are read as the specification says", async (context) => {
  const parts = [":\n\n", "event:progress\ndata: {\ndata: \"id\": 1}\n\n", "retry: 1\nevent: done\r\ndata: {}\r\n\r\n"];
  const { client } = await setup(context, [text("text/event-stream", parts, "open")]);
  assert.deepEqual(await all(client.followCrawl("a")), [{ event: "progress", data: { id: 1 } }, { event: "done", data: {} }]);
});

test("a crawl is followed across lost connections", async (context) => {
  const stream = (parts: string[], end?: "end" | "destroy" | "open") => text("text/event-stream", parts, end);
  const { client, requests } = await setup(context, [
    stream([event("progress", { state: "running" })], "destroy"), drop, problem(503, "not_ready"),
    stream([event("progress", { state: "running" }), "event: progress\ndata: {\"sta"]),
    stream([event("done", { state: "completed" })], "open"),
  ]);
  const states: string[] = [];
  const crawl = await client.waitForCrawl("a", { onProgress: ({ state }) => void states.push(state) });
  assert.equal(crawl.state, "completed");
  assert.deepEqual(states, ["running", "running", "completed"]);
  assert.equal(requests.length, 5);
});

test("a crawl that was deleted ends the wait", async (context) => {
  const progress = text("text/event-stream", [event("progress", {})]);
  const { client } = await setup(context, [progress, problem(404, "not_found")]);
  await assert.rejects(client.waitForCrawl("a"), { code: "not_found" });
});

test("an error of the caller ends the wait", async (context) => {
  const { client } = await setup(context, [text("text/event-stream", [event("progress", {})], "open")]);
  const error = new Error("no space left");
  await assert.rejects(client.waitForCrawl("a", { onProgress: () => Promise.reject(error) }), (found) => found === error);
});

test("reconnection ends after the maximum time", async (context) => {
  const empty = text("text/event-stream", []);
  const { client, requests } = await setup(context, [empty], { maxReconnectMs: 1000 });
  await assert.rejects(client.waitForCrawl("a"), ConnectionError);
  assert.ok(requests.length > 1 && requests.length < 6, `${requests.length} requests`);
});

test("an event stream without data is connected again", async (context) => {
  const { client, requests } = await setup(context, [
    text("text/event-stream", [event("progress", {})], "open"), text("text/event-stream", [event("done", {})], "open"),
  ], { timeoutMs: 200 });
  await client.waitForCrawl("a");
  assert.equal(requests.length, 2);
});

/** Returns a client without a network. Each function of `answers` answers one request. */
function scripted(answers: (() => Response)[]): Client {
  const remaining = [...answers];
  const fetch = () => Promise.resolve(remaining.shift()?.() ?? assert.fail("one request too many"));
  return new Client({ baseUrl: "http://127.0.0.1", fetch, maxRetries: 0, maxReconnectMs: 15_000 });
}

test("only a long stream, not a slow response 503, resets the reconnect time", async (context) => {
  context.mock.timers.enable({ apis: ["Date"] });
  const wait = () => context.mock.timers.tick(20_000);
  const stream = (body: string | ReadableStream) => new Response(body, { headers: { "content-type": "text/event-stream" } });
  const done = () => stream(event("done", {}));
  // The time passes when the client reads, so the stream is open then.
  const pull = (controller: ReadableStreamDefaultController) => {
    wait();
    controller.close();
  };
  const long = () => stream(new ReadableStream({ pull }, { highWaterMark: 0 }));
  await scripted([long, long, long, done]).waitForCrawl("a");

  const unavailable = () => {
    wait();
    return new Response("", { status: 503 });
  };
  const client = scripted([() => stream(""), unavailable, done]);
  await assert.rejects(client.waitForCrawl("a"), { status: 503 });
});

test("no alert is missed while the connection is lost", async (context) => {
  const stream = (...numbers: number[]) => text("text/event-stream", numbers.map((number) => event("alert", { sequence: number }, number)));
  const { client, requests } = await setup(context, [json({ alerts: [{ sequence: 6 }] }), stream(), stream(7, 8), stream(9)]);
  const numbers: number[] = [];
  for await (const { data } of client.followAlerts({ collection: "press" })) {
    numbers.push(data.sequence);
    if (data.sequence === 9) break;
  }
  assert.deepEqual(numbers, [7, 8, 9]);
  assert.deepEqual(requests.map(({ line }) => line), [
    "GET /alerts?collection=press&limit=1", ...[6, 6, 8].map((after) => `GET /alerts/events?collection=press&after=${after}`),
  ]);
});
