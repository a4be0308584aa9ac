// Before anything is shown: the theme that the reader chose last, if they chose one.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("headgate-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing for this page shows what the system prefers.
  }
})();
