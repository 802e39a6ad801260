// Passes an image from one view to another. The image is kept in the memory of the tab only.
let waiting = null;

/** Stores an image for the next view. `face` is the index of the selected face. */
export const handOff = (blob, name, face = 0) => (waiting = { blob, name, face });

/** Returns the stored image and removes it. */
export function receive() {
  const handed = waiting;
  waiting = null;
  return handed;
}
