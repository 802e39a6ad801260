// The public interface of the package.
export { Client, type WaitOptions } from "./client.js";
export type { FileInput, ImageInput, VideoInput } from "./images.js";
export type * from "./lines.js";
export type * from "./operations.js";
export { ConnectionError, Problem } from "./problem.js";
export type { RequestOptions } from "./request.js";
export type { ServerEvent } from "./streams.js";
export type { ClientOptions } from "./transport.js";
export type * from "./types.js";
export type { Problem as ProblemDocument } from "./types.js";
