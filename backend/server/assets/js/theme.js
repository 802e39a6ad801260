"use strict";
// Runs before the first paint, so that the dark theme never starts with a white flash. A module
// would run too late.
{
  const chosen = localStorage.getItem("facecrawl.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
