// Draws the page's Vega-Lite specifications. The policy of the page forbids eval: expressions are interpreted (ast).
//
//   cotalkCharts.draw(element, spec)            draws, or draws anew
//   cotalkCharts.all(specs)                     {id: {wide, narrow?}} into every <div class="chart" data-chart="id">
"use strict";

const cotalkCharts = (() => {
  const OPTIONS = { mode: "vega-lite", ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true } };
  const NARROW = 560; // pixels of the element below which the narrow layout is better
  const drawn = new WeakMap();

  async function draw(element, spec) {
    const before = drawn.get(element);
    const place = document.createElement("div");
    place.className = "chart-place";
    element.replaceChildren(place);
    if (before) before.finalize();
    const result = await vegaEmbed(place, spec, OPTIONS);
    drawn.set(element, result);
    return result;
  }

  function all(specs) {
    for (const element of document.querySelectorAll(".chart[data-chart]")) {
      const found = specs[element.dataset.chart];
      if (!found) continue;
      let now;
      const fit = () => {
        const best = found.narrow && element.clientWidth && element.clientWidth < NARROW ? "narrow" : "wide";
        if (best === now) return;
        now = best;
        draw(element, found[best]);
      };
      fit();
      if (found.narrow) new ResizeObserver(fit).observe(element);
    }
  }

  return { all, draw };
})();
