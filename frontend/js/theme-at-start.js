// Runs before the first paint, so a chosen theme never flashes the other one.
;(() => {
  let chosen = null
  try {
    chosen = localStorage.getItem("paceline-theme")
  } catch {
    // Storage may be off; the system's theme is then followed.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches
  document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : dark ? "dark" : "light"
})()
