// The detection view, which shows the faces in one image. The service stores neither the image nor
// the faces.
import { save } from "../api.js";
import { analyse, facePicker } from "../analysis.js";
import { csv } from "../csv.js";
import { h, put } from "../dom.js";
import { choice } from "../form.js";
import { bytes, milliseconds, plural, title } from "../format.js";
import { shares } from "../geometry.js";
import { handOff } from "../handoff.js";
import { pictureInput } from "../input.js";
import { measureTable, verdict } from "../quality.js";
import { go } from "../router.js";
import { button, empty, facts, field, fillWith, heading, loading, panel } from "../ui.js";

export function show(page, { signal }) {
  const options = h("form.columns", { onsubmit: (event) => event.preventDefault(), onchange: () => last && run(...last) },
    field("Detection passes", choice("passes", [["", "Service default"], ["single", "One pass"], ["auto", "More if needed"], ["thorough", "All passes (slow)"]])),
    field("Rotated images", choice("rotate", [["", "No change"], ["auto", "Find the rotation"]])),
    field("Small images", choice("enhance", [["", "No change"], ["auto", "Enhance if no clear face is found"]])),
    field("Quality profile", choice("quality_profile", [["", "Service default"], ["off", "Off"], ["standard", "Standard"], ["strict", "Strict"]])),
  );
  const result = h("div.result", {}, empty("detect", "Boxes, landmarks and quality appear here. The image is sent only to this service and is not stored."));
  let last = null;
  let turn = 0;
  const run = async (blob, name) => {
    last = [blob, name];
    input.classList.add("compact");
    const mine = ++turn;
    const query = { embeddings: false, ...Object.fromEntries(new FormData(options)) };
    await fillWith(result, signal, () => analyse(blob, name, query, signal), (found) => (mine === turn ? draw(found, blob, name, signal) : []), loading("Detecting faces…"));
  };
  const input = pictureInput(run, signal);
  page.append(heading("Detect"), h("div.side", {}, input, h("details.panel", {}, h("summary", {}, "Options"), options)), result);
}

function draw(found, blob, name, signal) {
  const { answer } = found;
  const detail = h("div", { "aria-live": "polite" });
  const picker = facePicker(found, blob, signal, (index) => put(detail, face(answer.faces[index], index, blob, name)));
  const base = name.replace(/\.[^.]+$/, "");
  const drawn = h("div.detected", {},
    picker.stage,
    h("div.found", {},
      h("h2", {}, h("span", { role: "status" }, `${plural(answer.faces.length, "face")} in ${milliseconds(answer.timings_ms.total)}`)),
      answer.faces.length === 0 && h("p", {}, "No face was found. Other options may find more faces."),
      picker.list, detail,
      h("div.actions", {},
        button("JSON", { symbol: "download", onclick: () => save(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }), `${base}.json`) }),
        button("CSV", { symbol: "download", onclick: () => save(new Blob([table(answer)], { type: "text/csv" }), `${base}.csv`) })),
    ),
    summary(answer, blob),
  );
  if (answer.faces.length > 0) picker.choose(0);
  return drawn;
}

function face(one, index, blob, name) {
  return h("div.facedetail", {},
    h("div.heading", {}, h("h3", {}, `Face ${index + 1}`),
      button("Search this face", { kind: "primary", symbol: "search", onclick: () => (handOff(blob, name, index), go("/search")) })),
    verdict(one.quality),
    one.quality && measureTable(one.quality));
}

const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6"];

function summary(answer, blob) {
  const { total, ...stages } = answer.timings_ms;
  const names = Object.keys(stages).filter((stage) => stages[stage] > 0);
  const widths = shares(names.map((stage) => stages[stage]));
  const devices = [...new Set(Object.values(answer.devices))].join(", ");
  return h("div.panel", {},
    h("h2", {}, `Timings: ${milliseconds(total)}`),
    h("div.stack", { "aria-hidden": "true" }, names.map((stage, at) => h(`span.${COLOURS[at]}`, { vars: { width: `${widths[at]}%` } }))),
    h("ul.legend", {}, names.map((stage, at) => h("li", {}, h(`span.dot.${COLOURS[at]}`, { "aria-hidden": "true" }), `${title(stage)} `, h("b", {}, milliseconds(stages[stage]))))),
    facts([
      ["Image", `${answer.image.width} × ${answer.image.height} ${answer.image.format}, ${bytes(blob.size)}`],
      answer.image.rotation !== 0 && ["Upright after", `${answer.image.rotation}° clockwise`],
      answer.image.enhancement_scale && ["Enhanced", `${answer.image.enhancement_scale}×`],
      ["Models", `${answer.models.detector}, ${answer.models.embedder}`],
      ["Devices", devices],
      ["SHA-256", h("code", {}, answer.image.sha256)],
    ]));
}

function table({ faces }) {
  const head = ["face", "x", "y", "width", "height", "det_score", "quality", "passed", "reasons"];
  return csv([head, ...faces.map(({ bbox, det_score, quality }, index) =>
    [index + 1, bbox.x, bbox.y, bbox.width, bbox.height, det_score, quality?.overall, String(quality?.passed ?? ""), quality?.reasons.join(" ")])]);
}
