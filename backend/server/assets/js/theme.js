"use strict";
// Runs before the first paint, so that a white page is never visible before the dark theme is
// applied. A module would run too late.
{
  const chosen = localStorage.getItem("facecrawl.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
