"use strict";
(function () {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  // A browser may forbid pages from disk to store anything.
  function recall(key) { try { return localStorage.getItem(key); } catch { return null; } }
  function remember(key, value) { try { localStorage.setItem(key, value); } catch { /* then not */ } }

  const themeButton = document.getElementById("theme");
  function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches; }
  function nameTheme() {
    themeButton.textContent = isDark() ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", "Switch to " + (isDark() ? "light" : "dark") + " colours");
  }
  const kept = recall("contdrop-theme");
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember("contdrop-theme", root.dataset.theme);
    nameTheme();
  });
  prefersDark.addEventListener("change", nameTheme);
  nameTheme();
})();
