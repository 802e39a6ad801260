// Takes an image from the file dialog, the clipboard, the camera or a drop.
import { h, icon } from "./dom.js";
import { button, modal, toast } from "./ui.js";

/**
 * Returns the input area. Calls `take(blob, name)` for every image. Pasting works anywhere in the
 * view.
 */
export function pictureInput(take, signal) {
  const file = h("input.hidden", { type: "file", accept: "image/*", "aria-describedby": "picture-hint", onchange: () => first(file.files) });
  const zone = h("div.drop", {},
    h("label.button.primary", {}, icon("upload"), "Choose an image", file),
    h("p.hint", { id: "picture-hint" }, "or drop or paste an image: JPEG, PNG, WebP, GIF, BMP, AVIF, HEIC, JPEG XL, TIFF, JPEG 2000"),
    navigator.mediaDevices?.getUserMedia && button("Camera", { symbol: "camera", "aria-label": "Use the camera", onclick: () => photograph(take) }),
  );
  const first = (files) => {
    const picture = [...files].find((one) => one.type.startsWith("image/") || one.type === "");
    if (picture) take(picture, picture.name || "pasted");
    else if (files.length > 0) toast(`${files[0].name} is not an image.`, { bad: true });
    file.value = "";
  };
  for (const name of ["dragenter", "dragover"]) {
    document.addEventListener(name, (event) => (event.preventDefault(), zone.classList.add("over")), { signal });
  }
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && zone.classList.remove("over"), { signal });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    first(event.dataTransfer.files);
  }, { signal });
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    first(event.clipboardData.files);
  }, { signal });
  return zone;
}

async function photograph(take) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 }, height: { ideal: 960 } } });
  } catch (error) {
    return toast(error.name === "NotAllowedError" ? "Access to the camera was denied." : "No camera is available.", { bad: true });
  }
  const video = h("video.camera", { autoplay: true, playsinline: true, "aria-label": "Camera preview" });
  video.muted = true;
  video.srcObject = stream;
  const blob = await modal("Camera", (close) => {
    const shoot = button("Take photo", { kind: "primary", symbol: "camera", disabled: true, autofocus: true });
    video.addEventListener("loadeddata", () => (shoot.disabled = false));
    shoot.addEventListener("click", () => {
      const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob(close, "image/jpeg", 0.95);
    });
    return h("div", {}, video, h("div.actions.end", {}, button("Cancel", { onclick: () => close(null) }), shoot));
  });
  for (const track of stream.getTracks()) track.stop();
  if (blob) take(blob, "camera.jpg");
}
