"use strict";

const byId = (id) => document.getElementById(id);
const [form, file, drop, status, canvas, details, json, keys, key] =
  ["form", "file", "drop", "status", "canvas", "details", "json", "keys", "key"].map(byId);
let latest = 0;
let last = null;

byId("curl").textContent =
  `curl -F image=@portrait.jpg ${location.origin}/faces/detect\n` +
  `curl ${location.origin}/crawls -H 'content-type: application/json' -d '{"seeds": ["https://example.org/"]}'\n` +
  `curl -F image=@portrait.jpg ${location.origin}/faces/search`;

async function detect(picture) {
  const turn = ++latest;
  last = picture;
  status.textContent = "Looking for faces…";
  canvas.hidden = details.hidden = true;
  try {
    const body = new FormData();
    body.append("image", picture);
    // The key stays in this field and goes nowhere else.
    const headers = key.value ? { authorization: `Bearer ${key.value.trim()}` } : {};
    const response = await fetch("/faces/detect?embeddings=false", { method: "POST", body, headers });
    const answer = await response.json();
    if (turn !== latest) return;
    json.textContent = JSON.stringify(answer, null, 2);
    details.hidden = false;
    if (!response.ok) {
      if (response.status === 401 || response.status === 403) keys.hidden = false;
      status.textContent = `${answer.title}: ${answer.detail} (${answer.code})`;
      return;
    }
    await draw(picture, answer);
    if (turn !== latest) return;
    const count = answer.faces.length;
    status.textContent =
      `${count === 0 ? "No face" : count === 1 ? "1 face" : `${count} faces`} in ${answer.timings_ms.total} ms`;
  } catch (error) {
    if (turn === latest) status.textContent = `The server did not answer: ${error.message}`;
  }
}

async function draw(picture, answer) {
  // Boxes refer to the picture as a browser shows it, so the browser's own idea of its orientation is right.
  const bitmap = await createImageBitmap(picture, { imageOrientation: "from-image" });
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const unit = Math.max(1.5, Math.max(bitmap.width, bitmap.height) / 400);
  context.lineWidth = unit;
  context.font = `${Math.round(unit * 7)}px system-ui, sans-serif`;
  for (const face of answer.faces) {
    const { x, y, width, height } = face.bbox;
    context.strokeStyle = face.quality && !face.quality.passed ? "#ffb02e" : "#28d17c";
    context.strokeRect(x, y, width, height);
    const label = face.det_score.toFixed(2);
    const top = Math.max(unit * 8, y - unit);
    context.fillStyle = "rgba(0, 0, 0, 0.65)";
    context.fillRect(x, top - unit * 7, context.measureText(label).width + unit * 2, unit * 8);
    context.fillStyle = "#fff";
    context.fillText(label, x + unit, top - unit * 0.5);
    context.fillStyle = context.strokeStyle;
    for (const [px, py] of face.landmarks) {
      context.beginPath();
      context.arc(px, py, unit, 0, 2 * Math.PI);
      context.fill();
    }
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `The picture with ${answer.faces.length} faces marked`);
  canvas.hidden = false;
}

form.addEventListener("submit", (event) => event.preventDefault());
key.addEventListener("change", () => last && detect(last));
file.addEventListener("change", () => file.files[0] && detect(file.files[0]));
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) {
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
}
drop.addEventListener("drop", (event) => event.dataTransfer.files[0] && detect(event.dataTransfer.files[0]));
