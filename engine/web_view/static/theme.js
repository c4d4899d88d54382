// The theme before the first paint: the system's, unless somebody chose one here.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("callboard-theme"); } catch { /* no storage: the system's */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
