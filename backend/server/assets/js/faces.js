// Stored faces as tiles, and the places where they were found.
import { h, icon } from "./dom.js";
import { ago, count, isWeb, percent, score, shortUrl } from "./format.js";
import { crop } from "./picture.js";
import { bar } from "./quality.js";
import { href } from "./router.js";
import { position } from "./videos.js";

/** Returns a tile for a stored face. */
export const tile = (face, signal) =>
  h("a.tile", { href: href(`/faces/${face.id}`) },
    crop(face.id, "", signal),
    h("span.tiletext", {},
      h("span", {}, face.quality ? `Quality ${percent(face.quality.overall)}` : "Not assessed"),
      h("span.quiet", {}, ago(face.created_at))));

/** Returns a search result: the face, its similarity and the pages that show it. */
export function match(found, signal, extra) {
  return h("li.match", {},
    h("a", { href: href(`/faces/${found.face_id}`), "aria-label": `Face, similarity ${score(found.similarity)}` }, crop(found.face_id, "", signal)),
    h("div.matchtext", {},
      h("p.similarity", {}, h("b", {}, score(found.similarity)), bar(found.similarity)),
      extra,
      appearances(found.appearances ?? []),
      (found.sources.length > 0 || !found.appearances?.length) && sources(found, 2)));
}

/** Returns the list of times at which a face is visible in videos. */
const appearances = (list) =>
  list.length > 0 && h("ul.sources", {}, list.map(({ video_id, at_ms, start_ms, end_ms }) => h("li", {},
    h("a", { href: href(`/videos/${video_id}`, { at: start_ms }) }, `In a video at ${position(at_ms)}`),
    h("span.quiet", {}, ` (${position(start_ms)} to ${position(end_ms)})`))));

/**
 * Returns the list of places where an image was found: the page if there is one, else the image
 * itself. Local files are shown as text without a link. The service counts up to 1,000 places.
 */
function sources({ sources: list, sources_total: total }, most) {
  const places = [...new Map(list.map((source) => [source.page_url ?? source.image_url, source])).keys()];
  const rest = Math.max(places.length - most, 0) + total - list.length;
  return h("ul.sources", {},
    places.slice(0, most).map((place) => h("li", {}, externalLink(place))),
    rest > 0 && h("li.quiet", {}, total < 1000 ? `and ${count(rest)} more` : "1,000 or more in total"),
    places.length === 0 && h("li.quiet", {}, "No source is recorded"));
}

/** Returns a link to another site. The site receives no referrer. */
export const externalLink = (url) =>
  isWeb(url)
    ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer", title: url }, shortUrl(url), icon("external"), h("span.hidden", {}, " (another site, new tab)"))
    : h("code", { title: url }, shortUrl(url));
