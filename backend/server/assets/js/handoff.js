// A picture on its way from one view to another. It stays in this page's memory.
let waiting = null;

/** `face` is the index of the face that is meant. */
export const hand = (blob, name, face = 0) => (waiting = { blob, name, face });

/** What was handed over, once. */
export function receive() {
  const handed = waiting;
  waiting = null;
  return handed;
}
