// Tables as files (RFC 4180). Pure: the browser tests call these directly.

/** Rows of cells as CSV. A text that a spreadsheet would run as a formula is disarmed with an apostrophe: URLs and names come from strangers. */
export const csv = (rows) => rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
