// Reads streams of lines and of server-sent events.

/** A server-sent event. */
export interface ServerEvent<Data, Name extends string = string> {
  event: Name;
  data: Data;
  /** The id, if the event has one. */
  id?: string;
}

/** Returns the lines of a text in UTF-8. A line ends with LF or CRLF. */
export async function* textLines(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks) {
    const parts = decoder.decode(chunk, { stream: true }).split("\n");
    parts[0] = rest + parts[0];
    rest = parts.pop() ?? "";
    for (const part of parts) yield part.endsWith("\r") ? part.slice(0, -1) : part;
  }
  rest += decoder.decode();
  if (rest) yield rest;
}

/** Returns the values of a stream of JSON lines. */
export async function* jsonLines<Line>(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Line> {
  for await (const line of textLines(chunks)) {
    if (line) yield JSON.parse(line) as Line;
  }
}

/**
 * Returns the events of a stream. An event that is incomplete at the end of the stream is
 * discarded.
 */
export async function* serverEvents<Event extends ServerEvent<unknown>>(
  chunks: AsyncIterable<Uint8Array>,
): AsyncGenerator<Event> {
  let event = "message";
  let id: string | undefined;
  let data: string[] = [];
  for await (const line of textLines(chunks)) {
    if (line === "") {
      if (data.length > 0) {
        const found: ServerEvent<unknown> = { event, data: JSON.parse(data.join("\n")) };
        if (id !== undefined) found.id = id;
        yield found as Event;
      }
      event = "message";
      data = [];
      continue;
    }
    // A line that begins with a colon is a comment.
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
    else if (name === "id") id = value;
  }
}
