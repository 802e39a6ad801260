// Tables as CSV files (RFC 4180). The functions are pure, and the browser tests call them directly.

/**
 * Returns rows of cells as CSV. URLs and names come from untrusted sources, so a text that a
 * spreadsheet would run as a formula gets a leading apostrophe.
 */
export const csv = (rows) => rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
