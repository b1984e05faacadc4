// The page of `cotalk view`: asks the server again and again, and draws what it says.
//
// Every text becomes a text node; no markup is made of strings, no style attribute is written into markup, nothing is
// evaluated. Curves are plain SVG: thin, one run; thick, the mean over an arm's runs at the steps that all of them have.
"use strict";

(() => {
  const EVERY = 2000, AT_REST = 10000; // milliseconds between two looks: while runs are at work, and else
  const CHATS_EVERY = 10000; // the viewer's data is larger: at most this often
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 340, HEIGHT = 190, MARGIN = { left: 34, right: 10, top: 8, bottom: 22 };
  const COLUMNS = ["run", "", "step", "held-out", "reward", "dev", "tokens/s", "state"];
  const id = new URLSearchParams(location.search).get("id") || "";
  const { make, text, hands, conversation } = cotalkChat; // of viewer.js
  const at = (name) => document.getElementById(name);
  const drawn = {}; // part -> what it was drawn from, so that what stays the same is left alone (focus, hover)
  let viewer = null, chatsVersion = "", chatsAsked = 0;

  function draw(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function duration(seconds) {
    const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  }

  const fixed = (value, digits = 2) => (value === null || value === undefined ? "" : value.toFixed(digits));
  const percent = (share) => `${Math.floor(100 * share + 1e-9)}%`;

  function changed(part, value) {
    const told = JSON.stringify(value), before = drawn[part];
    drawn[part] = told;
    return told !== before;
  }

  // --- progress ---

  function studies(all, current) {
    if (!changed("studies", [all, current && current.id])) return;
    at("studies").replaceChildren(...(all.length < 2 ? [] : all).map((study) => {
      const state = study.problem ? "cannot be read" : study.finished ? "done" : percent(study.share);
      const link = make("a", "", make("bdi", "", study.id === "." ? study.name : study.id), " ", make("span", "at", state));
      link.href = `?id=${encodeURIComponent(study.id)}`;
      if (current && study.id === current.id) link.setAttribute("aria-current", "page");
      return link;
    }));
  }

  function progress(study) {
    at("name").textContent = study.name;
    at("report").hidden = !study.report;
    at("report").href = `report?id=${encodeURIComponent(study.id)}`;
    bar(at("bar"), study.share);
    const quiet = Math.min(...study.runs.map((run) => (run.quiet === null ? Infinity : run.quiet)));
    const wrote = Number.isFinite(quiet) ? `last written ${duration(quiet)} ago` : "nothing is written yet";
    const work = study.working ? `${study.working} ${study.working === 1 ? "run" : "runs"} at work` : "no run is at work";
    const left = study.left === null ? "" : `about ${duration(study.left)} left`;
    const failed = study.runs.filter((run) => run.phase === "failed").length;
    const parts = study.finished ? [failed ? `ended, ${failed} failed` : "done", wrote] : [percent(study.share), left, work, wrote];
    at("left").textContent = parts.filter(Boolean).join(" · ");
    document.title = `${study.finished ? "done" : percent(study.share)} · ${study.name} – Cotalk`;
    at("runs").replaceChildren(heading(), make("tbody", "", ...study.runs.map(row)));
  }

  function bar(element, share) {
    element.setAttribute("aria-valuenow", String(Math.floor(100 * share)));
    element.firstElementChild.style.width = `${100 * share}%`;
  }

  function heading() {
    const cells = COLUMNS.map((words) => {
      const cell = make("th", { "": "wide", "tokens/s": "speed" }[words] || "", words);
      cell.scope = "col";
      return cell;
    });
    return make("thead", "", make("tr", "", ...cells));
  }

  function row(run) {
    const name = make("th", "", make("bdi", "", run.name));
    name.scope = "row";
    const small = make("div", "bar", make("div"));
    bar(small, run.share);
    const left = run.left === null ? run.phase : `${run.phase}, ${duration(run.left)} left`;
    const silent = ["training", "evaluating"].includes(run.phase) && !run.working;
    const state = run.phase === "failed" ? `failed: ${run.reason}` : silent ? `silent for ${duration(run.quiet)}` : left;
    const element = make("tr", "", name, make("td", "wide", small),
      make("td", "", run.steps ? `${run.step}/${run.steps}` : ""),
      make("td", "", run.of_passes ? `${run.passes}/${run.of_passes}` : ""),
      make("td", "", fixed(run.reward)), make("td", "", fixed(run.dev)),
      make("td", "speed", run.tokens_per_second === null ? "" : Math.round(run.tokens_per_second).toLocaleString("en")),
      make("td", "state", state));
    element.dataset.phase = run.phase;
    return element;
  }

  // --- curves ---

  function curves(study) {
    if (!changed("curves", study.curves)) return;
    const some = study.curves.filter((curve) => curve.runs.length);
    const arms = [...new Set(study.runs.map((run) => run.arm || run.name))];
    at("curves").hidden = !some.length;
    at("legend").replaceChildren(...arms.filter((arm) => some.some((curve) => curve.runs.some((run) => run.arm === arm))).map((arm) => {
      const swatch = draw("svg", { viewBox: "0 0 34 10", "aria-hidden": "true" }, draw("path", { d: "M1 5H33", class: line(arms, arm, "mean") }));
      return make("span", `key ${color(arms, arm)}`, swatch, make("bdi", "", arm));
    }), make("span", "", `Thin: one run. Thick: the mean over an arm's runs. ${counted(study.runs)}Curves, not results.`));
    at("panels").replaceChildren(...some.map((curve) => panel(curve, arms)));
  }

  function counted(runs) {
    const chats = runs.find((run) => run.chats), dev = runs.find((run) => run.dev_tasks);
    return (chats ? `Reward: ${chats.chats} chats a step. ` : "") + (dev ? `Dev: ${dev.dev_tasks} tasks, one greedy chat each. ` : "");
  }

  const color = (arms, arm) => `arm-${arms.indexOf(arm) % 6}`;
  const line = (arms, arm, kind) => `line ${kind} ${color(arms, arm)} dash-${arms.indexOf(arm) % 6}`;

  function panel(curve, arms) {
    const all = curve.runs.flatMap((run) => run.points);
    const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
    const last = Math.max(...steps), first = Math.min(...steps, last - 1);
    const top = curve.share ? Math.max(1, ...values) : ceiling(Math.max(...values)), low = Math.min(0, ...values);
    const x = (step) => MARGIN.left + ((step - first) / (last - first)) * (WIDTH - MARGIN.left - MARGIN.right);
    const y = (value) => HEIGHT - MARGIN.bottom - ((value - low) / (top - low || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const marks = [low, low + (top - low) / 2, top].map((value) => [
      draw("path", { class: "grid", d: `M${MARGIN.left} ${y(value)}H${WIDTH - MARGIN.right}` }),
      draw("text", { x: MARGIN.left - 5, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(3))),
    ]).flat();
    const ends = [draw("text", { x: x(first), y: HEIGHT - 6 }, `step ${first}`), draw("text", { x: x(last), y: HEIGHT - 6, "text-anchor": "end" }, String(last))];
    const lines = [];
    const spoken = [];
    for (const arm of arms) {
      const mine = curve.runs.filter((run) => run.arm === arm);
      for (const run of mine) lines.push(...path(run.points, x, y, line(arms, arm, mine.length > 1 ? "" : "mean"), run.run));
      if (mine.length > 1) lines.push(...path(mean(mine), x, y, line(arms, arm, "mean"), `${arm}, mean of ${mine.length} runs`));
      const end = (mine.length > 1 ? mean(mine) : mine.length ? mine[0].points : []).at(-1);
      if (end) spoken.push(`${arm} ${fixed(end[1])} at step ${end[0]}`);
    }
    const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${curve.heading} over steps: ${spoken.join(", ")}` }, ...marks, ...ends, ...lines);
    const figure = make("figure", "panel", make("figcaption", "", curve.heading), picture);
    figure.dataset.key = curve.key;
    return figure;
  }

  /** Steps that all runs have, and the mean there. */
  function mean(runs) {
    const tables = runs.map((run) => new Map(run.points));
    return runs[0].points.map(([step]) => step).filter((step) => tables.every((table) => table.has(step)))
      .map((step) => [step, tables.reduce((sum, table) => sum + table.get(step), 0) / tables.length]);
  }

  function path(points, x, y, className, name) {
    if (!points.length) return [];
    const [step, value] = points.at(-1);
    const title = draw("title", {}, `${name}: ${fixed(value, 3)} at step ${step}`);
    if (points.length === 1) return [draw("circle", { class: `point ${className.match(/arm-\d/)[0]}`, cx: x(step), cy: y(value), r: 2.5 }, title)];
    const d = points.map(([s, v], i) => `${i ? "L" : "M"}${x(s).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    return [draw("path", { class: className, d, "data-points": points.length }, title)];
  }

  /** The next of 1, 2, 5, 10, 20, ... */
  function ceiling(value) {
    if (!(value > 0)) return 1;
    const unit = 10 ** Math.floor(Math.log10(value));
    return unit * [1, 2, 5, 10].find((factor) => factor * unit >= value - 1e-9);
  }

  // --- newest chats ---

  function card(one) {
    const title = make("h3", "", make("bdi", "", one.run), `, step ${one.step}, reward ${fixed(one.reward)}`);
    return make("article", "v-pane", title, make("p", "v-question", text(one.task.question)),
      make("div", "v-hands", ...hands(one.task.hands)), ...conversation(one.chat, Object.keys(one.task.hands)));
  }

  function newest(found) {
    if (!changed("newest", found)) return;
    at("newest").hidden = !found.length;
    at("cards").replaceChildren(...found.map(card));
  }

  // --- the viewer ---

  async function chats(study) {
    const choosing = at("viewer").contains(document.activeElement) && document.activeElement.matches("select");
    if (study.chats === chatsVersion || choosing || Date.now() - chatsAsked < CHATS_EVERY) return;
    chatsAsked = Date.now();
    const found = await ask("api/chats", study.id);
    chatsVersion = found.version;
    if (found.problem) problem(found.problem);
    at("chats").hidden = !found.viewer;
    if (!found.viewer) return;
    if (viewer) viewer.update(found.viewer);
    else viewer = cotalkViewer(at("viewer"), found.viewer, { fragment: true });
  }

  // --- asking ---

  function problem(told) {
    at("problem").hidden = !told;
    at("problem").textContent = told;
  }

  async function ask(address, study) {
    const answer = await fetch(`${address}?id=${encodeURIComponent(study)}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  }

  async function look() {
    let wait = AT_REST;
    try {
      const { studies: all, study } = await ask("api/look", id);
      studies(all, study);
      if (!study) {
        problem("");
        at("name").textContent = "nothing here yet";
        wait = EVERY;
      } else {
        problem(study.problem);
        progress(study);
        curves(study);
        newest(study.newest);
        await chats(study);
        if (!study.finished) wait = EVERY;
      }
      at("clock").textContent = `as of ${new Date().toLocaleTimeString()}`;
      document.body.dataset.looks = String(Number(document.body.dataset.looks || 0) + 1);
    } catch (error) {
      problem(`No answer from the server (${error.message}). Is cotalk view still running? Trying again.`);
      wait = EVERY;
    }
    setTimeout(look, document.hidden ? AT_REST : wait);
  }

  look();
})();
