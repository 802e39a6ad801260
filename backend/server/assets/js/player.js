// Plays a local copy of a video. The service does not keep the file.
import { h, icon } from "./dom.js";
import { toast } from "./ui.js";

/**
 * Returns an element that plays a file of the user's choice, and `seek(ms)`. A file that is opened
 * later begins at the last position of `seek`. Calls `moved(ms)` when the position changes. The
 * file is not sent to the service.
 */
export function player(signal, moved) {
  const film = h("video.film", { controls: true, playsinline: true, hidden: true, "aria-label": "Local copy of the video" });
  const file = h("input.hidden", { type: "file", accept: "video/*", onchange: () => file.files[0] && open(file.files[0]) });
  let [address, wanted] = [null, 0];
  const close = () => address && URL.revokeObjectURL(address);
  function open(chosen) {
    close();
    address = URL.createObjectURL(chosen);
    [film.src, film.hidden] = [address, false];
  }
  film.addEventListener("loadedmetadata", () => (film.currentTime = wanted / 1000));
  film.addEventListener("timeupdate", () => moved(film.currentTime * 1000));
  film.addEventListener("error", () => {
    if (film.hidden) return;
    film.hidden = true;
    toast("The browser cannot play this file.", { bad: true });
  });
  signal.addEventListener("abort", close);
  return {
    element: h("div", {},
      h("p.hint", {}, "The service does not keep the file. Open your copy to play it here; it is not sent."),
      h("div.actions", {}, h("label.button", {}, icon("play"), "Open your copy", file)),
      film),
    seek(ms) {
      wanted = ms;
      if (!film.hidden) film.currentTime = ms / 1000;
    },
  };
}
