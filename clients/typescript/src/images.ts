// Converts images, videos and archives to the bodies of requests.
import { type Body, jsonBody } from "./request.js";
import type { ImageSource, VideoByUrl } from "./types.js";

/** The bytes of a file. */
export type FileInput = Blob | Uint8Array | ArrayBuffer;

/**
 * An image: the bytes of a file, a URL as a string, or an object for the JSON body. The service
 * fetches http and https URLs. A `data:` URL contains the image.
 */
export type ImageInput = FileInput | string | ImageSource;

/**
 * A video: the bytes of a file, a stream of them, or the http or https URL from which the service
 * fetches it.
 */
export type VideoInput = FileInput | ReadableStream<Uint8Array> | string;

/** Returns the body of a file. */
export function fileBody(file: FileInput | ReadableStream<Uint8Array>, type = "application/octet-stream"): Body {
  if (file instanceof ReadableStream) return { data: file, type, isStream: true };
  if (!isFile(file)) throw new TypeError("expected a Blob, Uint8Array, ArrayBuffer or ReadableStream");
  return { data: bytesOf(file), type };
}

/** Returns the body of an operation with one image. An object that is no file is sent as JSON. */
export function imageBody(image: ImageInput | object): Body {
  return isFile(image) ? fileBody(image) : jsonBody(sourceOf(image));
}

/**
 * Returns the body of an operation with a fixed number of images: the name of each in JSON, the
 * name of its part in a form, and the image.
 */
export async function imagesBody(images: [name: string, part: string, image: ImageInput][]): Promise<Body> {
  if (images.every(([, , image]) => isFile(image))) {
    return formBody(images.map(([, part, image]) => [part, image as FileInput]));
  }
  const sources = images.map(async ([name, , image]) => [name, await jsonSourceOf(image)] as const);
  return jsonBody(Object.fromEntries(await Promise.all(sources)));
}

/** Returns the body of an operation with a list of images. */
export async function imageListBody(name: string, part: string, images: readonly ImageInput[]): Promise<Body> {
  if (images.length > 0 && images.every(isFile)) return formBody(images.map((image) => [part, image]));
  return jsonBody({ [name]: await Promise.all(images.map(jsonSourceOf)) });
}

/** Returns the body of an operation with a video. */
export function videoBody(video: VideoInput | VideoByUrl): Body {
  if (isFile(video) || video instanceof ReadableStream) return fileBody(video);
  return jsonBody(sourceOf(video));
}

function formBody(parts: [part: string, file: FileInput][]): Body {
  const form = new FormData();
  for (const [part, file] of parts) form.append(part, new Blob([bytesOf(file)]), "image");
  return { data: form };
}

function isFile(value: unknown): value is FileInput {
  return value instanceof Blob || value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

/**
 * Returns the file as a type that `fetch` accepts. Memory that is shared with other threads is
 * copied, because `fetch` rejects it.
 */
function bytesOf(file: FileInput): Blob | Uint8Array<ArrayBuffer> {
  if (file instanceof Blob) return file;
  if (file instanceof ArrayBuffer) return new Uint8Array(file);
  const bytes = new Uint8Array(file.buffer, file.byteOffset, file.byteLength);
  return bytes.buffer instanceof ArrayBuffer ? (bytes as Uint8Array<ArrayBuffer>) : new Uint8Array(bytes);
}

/** Returns a URL or an object as JSON. */
function sourceOf(value: unknown): object {
  if (typeof value === "string") {
    if (value.startsWith("data:")) return { image_base64: value };
    if (/^https?:\/\//i.test(value)) return { url: value };
    throw new TypeError("a string must be an http, https or data URL; pass a file as Blob or Uint8Array");
  }
  const prototype: unknown = typeof value === "object" && value !== null ? Object.getPrototypeOf(value) : undefined;
  if (prototype === Object.prototype || prototype === null) return value as object;
  throw new TypeError("expected a Blob, Uint8Array, ArrayBuffer, URL as a string, or plain object");
}

async function jsonSourceOf(image: ImageInput): Promise<object> {
  if (!isFile(image)) return sourceOf(image);
  const bytes = new Uint8Array(await new Blob([bytesOf(image)]).arrayBuffer());
  let text = "";
  // More arguments in one call would overflow the stack.
  for (let at = 0; at < bytes.length; at += 0x2000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x2000));
  }
  return { image_base64: btoa(text) };
}
