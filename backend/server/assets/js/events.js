// Server-sent events over fetch, because `EventSource` cannot send a key.
import { request } from "./api.js";

/**
 * Calls `handle(event, data)` for every event until `signal` aborts or `handle` returns false.
 * Reconnects when the stream ends.
 */
export async function follow(path, signal, handle) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 10_000)) {
    try {
      const response = await request("GET", path, { signal, headers: { accept: "text/event-stream" } });
      for await (const { event, data } of events(response.body)) {
        wait = 500;
        if (handle(event, data) === false) return;
      }
    } catch (error) {
      // A repeated request would get the same client error, for example because the crawl does not
      // exist or a right is missing. 429 only says that too many streams are open now.
      const final = error.status >= 400 && error.status < 500 && error.status !== 429;
      if (signal.aborted || final) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function* events(body) {
  let text = "";
  for await (const piece of chunks(body)) {
    text += piece;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const parsed = parse(block);
      if (parsed) yield parsed;
    }
  }
}

async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value.replaceAll("\r\n", "\n");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Parses one block of lines. Returns null for a comment (the keep-alive). */
export function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trim());
  }
  return data.length === 0 ? null : { event, data: JSON.parse(data.join("\n")) };
}
