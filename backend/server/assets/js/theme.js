"use strict";
// Before the first paint, so that a page that was switched to dark never flashes white. A module would come too late.
{
  const chosen = localStorage.getItem("facecrawl.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
