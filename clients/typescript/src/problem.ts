// The errors of the client.
import type { Code, Problem as ProblemDocument } from "./types.js";

/** An error response of the service. */
export class Problem extends Error {
  override readonly name = "Problem";
  /** The HTTP status. */
  readonly status: number;
  /**
   * The stable code. `unexpected_response` marks a response that is not from facecrawl, for example
   * from a proxy.
   */
  readonly code: Code | "unexpected_response";
  /** A sentence that explains what was wrong and what is allowed. */
  readonly detail: string;
  /** The id of the request, which the log of the service contains too. */
  readonly requestId: string | undefined;
  /**
   * The document that the service sent. It also has `field`, `value`, `allowed`, `reason` and
   * `errors`.
   */
  readonly document: ProblemDocument | undefined;
  /** Milliseconds to wait before the next attempt, if the service stated a time. */
  readonly retryAfterMs: number | undefined;

  private constructor(response: Response, detail: string, document?: ProblemDocument) {
    const requestId = document?.request_id ?? response.headers.get("x-request-id") ?? undefined;
    const code = document?.code ?? "unexpected_response";
    super(`${code}: ${detail}${requestId ? ` (request ${requestId})` : ""}`);
    this.status = response.status;
    this.code = code;
    this.detail = detail;
    this.requestId = requestId;
    this.document = document;
    this.retryAfterMs = retryAfterMs(response.headers.get("retry-after"));
  }

  /** Reads an error response. */
  static async from(response: Response): Promise<Problem> {
    const text = await response.text();
    try {
      const document = JSON.parse(text) as ProblemDocument;
      if (typeof document.code === "string" && typeof document.detail === "string") {
        return new Problem(response, document.detail, document);
      }
    } catch {
      // The response is not JSON.
    }
    return Problem.unexpected(response, `the response has status ${response.status} and no problem document`);
  }

  /** Returns the error for a response that cannot be from facecrawl. */
  static unexpected(response: Response, detail: string): Problem {
    return new Problem(response, `${detail}; check whether baseUrl is the address of the service`);
  }
}

/** Reports that no response, or only a part, was received. `cause` is the error of `fetch`. */
export class ConnectionError extends Error {
  override readonly name = "ConnectionError";

  constructor(url: string, cause: unknown) {
    super(`the connection to ${new URL(url).origin} failed: ${reason(cause)}`, { cause });
  }
}

/** Returns the message of the innermost error. The outer message of Node is only `fetch failed`. */
function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (error.cause instanceof Error) return reason(error.cause);
  return error.message || (error as { code?: string }).code || error.name;
}

/** Returns the value of `Retry-After`, which is a number of seconds or a date. */
function retryAfterMs(value: string | null): number | undefined {
  if (value === null) return undefined;
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return Number.isNaN(ms) ? undefined : Math.max(0, ms);
}
