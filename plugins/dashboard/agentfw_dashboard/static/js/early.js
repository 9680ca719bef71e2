// Before anything is drawn, so that a dark page never flashes white. Not a module: those come after the first paint.
"use strict";
try {
  const theme = localStorage.getItem("agentfw.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be switched off.
}
