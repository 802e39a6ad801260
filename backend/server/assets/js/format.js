// Formats numbers, times and codes for people. The functions are pure, and the browser tests call
// them directly.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Formats 12345 as "12,345", and a missing number as a dash. */
export const count = (n) => (Number.isFinite(n) ? whole.format(n) : "–");

/** Returns a number with its noun: "1 face", "2 faces". */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Formats a share from 0 to 1 as "83%". */
export const percent = (share) => (Number.isFinite(share) ? `${Math.round(share * 100)}%` : "–");

/** Formats a score with two decimal places. */
export const score = (n) => (Number.isFinite(n) ? n.toFixed(2) : "–");

/** Formats a number with three significant digits and no exponent: 0.0123, 4.56, 78.9, 412. */
export function figure(n) {
  if (!Number.isFinite(n)) return "–";
  if (n === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(n))));
  return Math.abs(n) >= 1000 ? whole.format(n) : String(Number(n.toFixed(Math.min(digits, 6))));
}

/** Formats bytes as "412 B" or "4.2 MB" (powers of 1000). */
export function bytes(n) {
  if (!Number.isFinite(n)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) [n, unit] = [n / 1000, unit + 1];
  return `${unit === 0 || n >= 99.5 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

/** Formats milliseconds as "8.4 ms" or "1.25 s". */
export const milliseconds = (ms) => (!Number.isFinite(ms) ? "–" : ms < 1000 ? `${figure(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/** Formats seconds as "42 s", "3 min 5 s", "2 h 10 min" or "3 d 4 h". */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const total = Math.max(0, Math.round(seconds));
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => total >= size);
  if (first < 0) return "0 s";
  const [size, unit] = parts[first];
  const next = parts[first + 1];
  const rest = next ? Math.floor((total % size) / next[0]) : 0;
  return `${Math.floor(total / size)} ${unit}${rest > 0 ? ` ${rest} ${next[1]}` : ""}`;
}

/** Formats an instant as "2026-03-01 14:05" in the local time zone of the user. */
export function time(instant) {
  const date = new Date(instant);
  if (!instant || Number.isNaN(date.getTime())) return "–";
  const padTwo = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${padTwo(date.getMonth() + 1)}-${padTwo(date.getDate())} ${padTwo(date.getHours())}:${padTwo(date.getMinutes())}`;
}

/**
 * Formats the time since an instant as "just now" or "5 min ago". Returns the date if it was more
 * than a week ago.
 */
export function ago(instant, now = Date.now()) {
  const seconds = (now - new Date(instant).getTime()) / 1000;
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return "just now";
  return seconds < 7 * 86400 ? `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago` : time(instant).slice(0, 10);
}

/** Formats "scan_image" as "Scan image". */
export const title = (code) => sentence(String(code).replaceAll("_", " "));

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Returns a URL without its scheme, cut in the middle to `most` characters. */
export function shortUrl(url, most = 60) {
  const text = String(url).replace(/^[a-z]+:\/\//, "").replace(/\/$/, "");
  const half = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, most - 1 - half)}…${text.slice(-half)}`;
}

/**
 * Returns whether a browser can follow a link to this URL. It cannot open local files and URLs with
 * other schemes.
 */
export const isWeb = (url) => /^https?:\/\//i.test(url ?? "");
