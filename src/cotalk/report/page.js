// Starts the page: theme, charts, chat viewer. Everything it shows stands in the page as data.
"use strict";

(() => {
  const data = (id) => {
    const element = document.getElementById(id);
    return element ? JSON.parse(element.textContent) : null;
  };

  const theme = document.getElementById("theme");
  const names = ["auto", "light", "dark"];
  const apply = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = `theme: ${name}`;
  };
  let chosen = "auto";
  try { chosen = localStorage.getItem("cotalk-theme") || "auto"; } catch { /* a page from disk may have no storage */ }
  theme.hidden = false;
  apply(names.includes(chosen) ? chosen : "auto");
  theme.addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    apply(chosen);
    try { localStorage.setItem("cotalk-theme", chosen); } catch { /* as above */ }
  });

  const specs = data("charts");
  if (specs) cotalkCharts.all(specs);
  const viewer = document.getElementById("viewer");
  if (viewer) cotalkViewer(viewer, data("chats"), { fragment: true });
})();
