// Parts that several views use to show and control a video.
import { call, request } from "./api.js";
import { duration, percent, time, title } from "./format.js";
import { chip, confirm, toast } from "./ui.js";

const TONES = { queued: "", running: "busy", paused: "warn", completed: "ok", cancelled: "", failed: "bad" };

export const stateChip = (state) => chip(title(state), TONES[state] ?? "");

export const isOver = ({ state }) => ["completed", "cancelled", "failed"].includes(state);

/** Returns a name of a video. The service does not keep the name of the file. */
export const name = (video) => (video.stream ? `${video.stream}, ${video.started_at.slice(0, 10)}` : `Video of ${time(video.created_at)}`);

/** Returns a position in a video as `1:02:03` or `2:03`. */
export function position(ms) {
  const seconds = Math.floor(ms / 1000);
  const two = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/** Returns how much of a video was read, as text. */
export function progress({ state, read_ms: read, duration_ms: whole }) {
  if (state === "completed") return position(whole ?? read ?? 0);
  if (whole === null) return read === null ? "Not read yet" : `${position(read)} read`;
  return `${position(read ?? 0)} of ${position(whole)} (${percent(Math.min((read ?? 0) / Math.max(whole, 1), 1))})`;
}

/**
 * Sends a file. Resolves to the new video, or to the video that the collection has of this file.
 */
export async function send(file, query, signal) {
  const type = file.type.startsWith("video/") ? file.type : "application/octet-stream";
  const response = await request("POST", "/videos", { query, body: file, headers: { "content-type": type }, signal });
  if (response.status === 200) toast("The collection has this video already.");
  return response.json();
}

/** Pauses, resumes, retries or cancels a video. Resolves to the updated video. */
export const changeState = (id, step) => call("POST", `/videos/${id}/${step}`);

/** Asks for confirmation and cancels a video. */
export async function cancel(video) {
  const sure = await confirm("Cancel this video?", "The faces that were found so far are kept, but the people are not numbered. A cancelled video cannot be resumed.", "Cancel the video");
  return sure && changeState(video.id, "cancel");
}

/** Asks for confirmation and deletes a video. Resolves to whether it was deleted. */
export async function remove(video) {
  const sure = await confirm("Delete this video?", `This permanently deletes its tracks and all its faces (${duration((video.duration_ms ?? 0) / 1000)} of video).`, "Delete");
  if (!sure) return false;
  await call("DELETE", `/videos/${video.id}`);
  toast("The video and its faces were deleted.");
  return true;
}
