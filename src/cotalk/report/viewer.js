// The chat viewer: two chats of one task side by side, out of the plain JSON that cotalk.report.chats makes.
//
//   const viewer = cotalkViewer(element, data, {fragment: true});   // fragment: keep the choice in the page's address
//   viewer.update(data);                                            // newer data; task, chats and filters stay
//   element.append(...cotalkChat.conversation(chat, ["A", "B"]));   // one chat of that JSON by itself
//
// Every text of a model becomes a text node (textContent), never markup. No style attribute and no eval, so that a
// strict content-security policy can hold it. Left out: everything that needs computing (chats.py did it).
"use strict";

/** How one chat is drawn: for the viewer below, and for whoever shows a chat by itself (cotalk view's newest). */
const cotalkChat = (() => {
  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  const TITLES = { "+": "follows: one operation away from known numbers", "!": "invented: in no hand, and not one operation away from known numbers", "?": "in the question: everybody knows it" };

  function number(words, tag) {
    const kind = { "+": "derived", "!": "invented", "?": "asked" }[tag];
    const element = make("span", kind ? `n n-${kind}` : `n n-hand n-${tag.length > 1 ? "both" : seatClass(tag)}`, words);
    element.title = TITLES[tag] || (tag.length > 1 ? `held by ${[...tag].join(" and ")}` : `from ${tag}'s hand`);
    if (!kind) element.dataset.hand = tag;
    if (tag === "!") element.append(make("span", "hidden", " (invented)"));
    return element;
  }

  function text(segments) {
    const element = make("bdi", "words");
    for (const segment of segments) element.append(typeof segment === "string" ? segment : number(...segment));
    return element;
  }

  const seatClass = (seat) => (/^[A-F]$/.test(seat) ? seat : "other");

  /** 0 no seat right, 1 some, 2 all; -1 where there is no chat. */
  function outcome(chat) {
    if (!chat) return -1;
    const right = Object.values(chat.answers).map((answer) => answer.right);
    return right.length && right.every(Boolean) ? 2 : right.some(Boolean) ? 1 : 0;
  }

  function hands(dealt) {
    return Object.entries(dealt).map(([seat, facts]) => {
      const list = make("ul", "", ...facts.map((fact) => make("li", "", text(fact))));
      return make("div", `v-hand seat-${seatClass(seat)}`, make("span", "v-seat", seat), make("span", "v-who", " holds"), list);
    });
  }

  /** order: of the seats, so that the second's messages stand to the right. */
  function conversation(chat, order) {
    const won = outcome(chat);
    const pills = Object.entries(chat.answers).map(([seat, answer]) => {
      const said = answer.answer ? make("bdi", "", answer.answer) : "no answer";
      const words = answer.right ? `✓ ${seat} right: ` : `✗ ${seat} wrong: `;
      return make("li", answer.right ? "v-right" : "v-wrong", words, said, answer.parsed || !answer.answer ? "" : " (no box)");
    });
    const verdict = make("ul", "v-answers", ...(pills.length ? pills : [make("li", "v-soft", "no answers recorded")]));
    const messages = chat.messages.map((message) => {
      const said = message.said.length ? text(message.said) : make("span", "v-soft", "(nothing)");
      const who = make("span", "v-who", make("span", "v-seat", message.seat), message.last ? " answers" : " says", player(chat, message.seat));
      const notes = [];
      if (message.cut) notes.push(make("span", "v-note", "cut off by its token budget"));
      if (message.heard && !message.last) notes.push(make("span", "v-note", "was heard as: ", text(message.heard)));
      const turned = order.indexOf(message.seat) % 2 ? " v-second" : "";
      return make("li", `v-message seat-${seatClass(message.seat)}${turned}${message.last ? " v-last" : ""}`, who, said, ...notes);
    });
    const own = chat.hands ? make("div", "v-hands v-own", ...hands(chat.hands)) : null;
    const list = make("ol", "v-messages", ...messages);
    const element = [verdict, own, list, trail(chat)];
    verdict.dataset.outcome = won;
    return element.filter(Boolean);
  }

  function player(chat, seat) {
    const name = (chat.players || {})[seat];
    return name && name !== "learner" ? make("span", "v-player", ` · ${name === "base" ? "untrained" : name}`) : null;
  }

  function trail(chat) {
    if (!(chat.trail || []).length) return null;
    const mark = (yes, words, not) => make("span", yes ? "v-yes" : "v-no", yes ? `✓ ${words}` : `✗ ${not}`);
    const rows = chat.trail.map((row) => make("li", "", number(row.number, row.seat), mark(row.said, "said", "not said"),
      mark(row.heard, "heard", "not heard"), mark(row.used.length, `used by ${row.used.join(", ")}`, "not used")));
    const list = make("ul", "v-trail", ...rows);
    list.setAttribute("aria-label", "What became of each number that only one seat holds");
    return list;
  }

  return { make, number, text, seatClass, outcome, hands, conversation };
})();

function cotalkViewer(root, data, options = {}) {
  const { make, number, text, seatClass, outcome, hands, conversation } = cotalkChat;
  const OUTCOMES = [
    ["", "all outcomes"],
    ["2", "second chat: every seat right"],
    ["1", "second chat: some seats right"],
    ["0", "second chat: no seat right"],
    ["up", "better in the second chat"],
    ["down", "worse in the second chat"],
  ];
  const MODES = [["heldout", "Before and after"], ["training", "Through training"]];
  const WORDS = ["no seat right", "some seats right", "every seat right"];
  const state = { mode: "", task: "", left: "", right: "", outcome: "", text: "" };
  const kept = {}; // mode -> the choice that was left there
  let byId = new Map();

  // --- small parts ---

  function button(className, words, act, label) {
    const element = make("button", className, words);
    element.type = "button";
    if (label) element.setAttribute("aria-label", label);
    element.addEventListener("click", act);
    return element;
  }

  function select(label, choices, value, act) {
    const element = make("select", "");
    element.setAttribute("aria-label", label);
    for (const [key, words] of choices) {
      const choice = make("option", "", words);
      choice.value = key;
      choice.selected = key === value;
      element.append(choice);
    }
    element.addEventListener("change", () => act(element.value));
    return element;
  }

  const plain = (segments) => segments.map((s) => (typeof s === "string" ? s : s[0])).join("");
  const seats = () => Object.keys((data.tasks[state.task] || { hands: {} }).hands);

  // --- what is chosen ---

  const chatOf = (side, task = state.task) => (byId.get(state[side]) || { chats: {} }).chats[task];

  const share = (chat) => {
    const right = Object.values(chat.answers).map((answer) => answer.right);
    return right.reduce((sum, one) => sum + one, 0) / (right.length || 1);
  };

  function taskNames() {
    const both = ["left", "right"].map((side) => new Set(Object.keys((byId.get(state[side]) || { chats: {} }).chats)));
    return Object.keys(data.tasks).filter((task) => both[0].has(task) && both[1].has(task));
  }

  function matches(task) {
    const before = chatOf("left", task), after = chatOf("right", task);
    if (!before || !after) return false;
    if (state.outcome === "up" && share(after) <= share(before)) return false;
    if (state.outcome === "down" && share(after) >= share(before)) return false;
    if (/^\d$/.test(state.outcome) && outcome(after) !== Number(state.outcome)) return false;
    if (!state.text) return true;
    const about = data.tasks[task];
    const said = [before, after].flatMap((chat) => chat.messages.map((message) => plain(message.said)));
    const all = [about.name, plain(about.question), ...Object.values(about.hands).flat().map(plain), ...said];
    return all.join("\n").toLowerCase().includes(state.text.toLowerCase());
  }

  function passesOf(mode) {
    return data.passes.filter((each) => each.mode === mode);
  }

  function settle() {
    byId = new Map(data.passes.map((each) => [each.id, each]));
    if (!data.start[state.mode]) state.mode = MODES.map(([mode]) => mode).find((mode) => data.start[mode]) || "";
    if (!state.mode) return;
    for (const [side, at] of [["left", 0], ["right", 1]]) {
      const each = byId.get(state[side]);
      if (!each || each.mode !== state.mode) state[side] = data.start[state.mode][at];
    }
    const names = taskNames();
    if (!names.includes(state.task)) state.task = names.find(matches) || names[0] || "";
    else if (!matches(state.task)) state.task = names.find(matches) || state.task;
  }

  // --- the address ---

  function address() {
    return "#" + ["chat", state.mode, state.task, state.left, state.right].map(encodeURIComponent).join("/");
  }

  function readAddress() {
    const parts = location.hash.slice(1).split("/");
    if (parts[0] !== "chat" || parts.length !== 5) return false;
    try {
      [, state.mode, state.task, state.left, state.right] = parts.map(decodeURIComponent);
    } catch {
      return false;
    }
    Object.assign(state, { outcome: "", text: "" });
    return true;
  }

  function remember() {
    if (options.fragment) history.replaceState(null, "", address());
  }

  // --- moving ---

  function change(changes) {
    Object.assign(state, changes);
    settle();
    draw();
    remember();
  }

  function move(by) {
    const names = taskNames().filter(matches);
    if (!names.length) return;
    const at = names.indexOf(state.task);
    const next = at < 0 ? 0 : Math.min(names.length - 1, Math.max(0, at + by));
    change({ task: names[next] });
  }

  function step(by, side = "right") {
    const mine = byId.get(state[side]);
    const group = passesOf(state.mode).filter((each) => each.group === mine.group);
    const next = group[group.indexOf(mine) + by];
    if (next) change({ [side]: next.id });
  }

  function enter(mode) {
    kept[state.mode] = { task: state.task, left: state.left, right: state.right };
    change({ mode, outcome: "", text: "", ...(kept[mode] || { task: "", left: "", right: "" }) });
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !state.mode) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") { event.target.blur(); root.focus(); }
      return;
    }
    const act = {
      ArrowLeft: () => move(-1), k: () => move(-1), ArrowRight: () => move(1), j: () => move(1),
      Home: () => move(-1e9), End: () => move(1e9),
      "[": () => step(-1), "]": () => step(1), "{": () => step(-1, "left"), "}": () => step(1, "left"),
      x: () => change({ left: state.right, right: state.left }),
      m: () => { const all = MODES.filter(([mode]) => data.start[mode]); if (all.length > 1) enter(all.find(([mode]) => mode !== state.mode)[0]); },
      "/": () => parts.text.focus(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    const inside = event.target !== root && event.target.closest(".v-map");
    act();
    if (inside) (root.querySelector(".v-map [aria-current]") || root).focus();
    else if (event.key !== "/" && !root.contains(document.activeElement)) root.focus();
  }

  // --- drawing ---

  const parts = {};

  function frame() {
    root.classList.add("v");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    if (!root.hasAttribute("aria-label")) root.setAttribute("aria-label", "Chat viewer");
    parts.modes = make("div", "v-modes");
    parts.about = make("p", "v-about");
    parts.outcome = select("Outcome", OUTCOMES, "", (value) => change({ outcome: value }));
    parts.text = make("input", "");
    Object.assign(parts.text, { type: "search", placeholder: "search the chats", size: 18, autocomplete: "off" });
    parts.text.setAttribute("aria-label", "Only tasks whose chats hold this text");
    parts.text.addEventListener("input", () => change({ text: parts.text.value }));
    parts.count = make("output", "v-count");
    parts.map = make("div", "v-map");
    parts.map.setAttribute("role", "group");
    parts.map.setAttribute("aria-label", "Tasks: upper half the first chat, lower half the second; full: every seat right");
    parts.turn = make("div", "v-turn");
    parts.task = make("div", "v-task");
    parts.panes = make("div", "v-panes");
    const keys = [["←", "→", "task"], ["[", "]", "seed or step"], ["x", "swap"], ["m", "view"], ["/", "search"]];
    parts.legend = make("div", "v-legend");
    parts.keys = make("p", "v-keys", "Keys: ");
    for (const row of keys) {
      for (const key of row.slice(0, -1)) parts.keys.append(make("kbd", "", key), " ");
      parts.keys.append(make("span", "", row.at(-1)), " ");
    }
    const filters = make("div", "v-filters", parts.modes, parts.outcome, parts.text, parts.count);
    root.replaceChildren(filters, parts.about, parts.map, parts.turn, parts.task, parts.panes, parts.legend, parts.keys);
    root.addEventListener("keydown", onKey);
  }

  function draw() {
    if (!state.mode) return;
    const names = taskNames(), fit = new Set(names.filter(matches));
    parts.modes.replaceChildren(...MODES.filter(([mode]) => data.start[mode]).map(([mode, words]) => {
      const one = button("", words, () => enter(mode));
      one.setAttribute("aria-pressed", String(mode === state.mode));
      return one;
    }));
    parts.about.textContent = `Shown: ${data.about[state.mode]}.`;
    parts.outcome.value = state.outcome;
    if (parts.text.value !== state.text) parts.text.value = state.text;
    parts.count.textContent = `${fit.size} of ${names.length} tasks`;
    drawMap(names, fit);
    drawTurn([...fit]);
    drawTask();
    parts.panes.replaceChildren(pane("left", "First chat"), pane("right", "Second chat"));
    drawLegend();
  }

  function drawMap(names, fit) {
    parts.map.replaceChildren(...names.map((task) => {
      const [before, after] = [outcome(chatOf("left", task)), outcome(chatOf("right", task))];
      const words = `${data.tasks[task].name}: ${WORDS[before]}, then ${WORDS[after]}`;
      const cell = button("v-cell", "", () => change({ task }), words);
      cell.title = words;
      cell.append(make("span", `v-half o${before}`), make("span", `v-half o${after}`));
      cell.disabled = !fit.has(task);
      cell.tabIndex = task === state.task ? 0 : -1;
      if (task === state.task) cell.setAttribute("aria-current", "true");
      return cell;
    }));
  }

  function drawTurn(names) {
    const at = names.indexOf(state.task);
    const previous = button("", "← previous", () => move(-1)), next = button("", "next →", () => move(1));
    previous.disabled = at <= 0;
    next.disabled = at >= names.length - 1;
    const where = make("output", "", at < 0 ? "no task fits" : `task ${at + 1} of ${names.length}`);
    where.setAttribute("aria-live", "polite");
    const link = make("a", "v-link", "link to this chat");
    link.href = address();
    parts.turn.replaceChildren(previous, where, next, options.fragment ? link : "");
  }

  function drawTask() {
    const about = data.tasks[state.task];
    if (!about) return parts.task.replaceChildren();
    const question = make("p", "v-question", make("span", "v-who", make("bdi", "", about.name)), text(about.question));
    const gold = make("span", "v-gold", "right answer ", make("bdi", "", about.gold));
    parts.task.replaceChildren(question, make("div", "v-hands", ...hands(about.hands)), gold);
  }

  function pane(side, name) {
    const mine = byId.get(state[side]), all = passesOf(state.mode);
    const groups = [...new Set(all.map((each) => each.group))];
    const within = all.filter((each) => each.group === mine.group);
    const chooseGroup = (group) => {
      const same = all.filter((each) => each.group === group);
      change({ [side]: (same.find((each) => each.label === mine.label) || same[0]).id });
    };
    const steps = make("div", "v-steps", ...within.map((each) => {
      const won = outcome(each.chats[state.task]);
      const one = button("", "", () => change({ [side]: each.id }), `${each.label}: ${WORDS[won] || "no chat"}`);
      one.append(make("span", `v-dot o${won}`), each.label);
      one.setAttribute("aria-pressed", String(each.id === mine.id));
      return one;
    }));
    steps.setAttribute("role", "group");
    steps.setAttribute("aria-label", state.mode === "training" ? "Step" : "Seed");
    const head = make("div", "v-head", make("span", "v-who", name), select(`${name}: condition or run`, groups.map((g) => [g, g]), mine.group, chooseGroup), steps);
    const chat = chatOf(side);
    const element = make("section", "v-pane", head, ...(chat ? conversation(chat, seats()) : [make("p", "v-soft", "No chat of this task here.")]));
    element.setAttribute("aria-label", `${name}: ${mine.group}, ${mine.label}`);
    return element;
  }

  function drawLegend() {
    const held = seats().map((seat) => [number("12", seat), `${seat}'s hand`]);
    const rows = [...held, [number("12", "?"), "the question"], [number("12", "+"), "follows"], [number("12", "!"), "invented"]];
    parts.legend.replaceChildren("Numbers: ", ...rows.map(([sample, words]) => make("span", "v-key", sample, ` ${words}`)));
  }

  // --- the whole ---

  frame();
  const asked = options.fragment && readAddress();
  settle();
  draw();
  if (asked) root.scrollIntoView();
  if (options.fragment) {
    window.addEventListener("hashchange", () => {
      if (location.hash === address() || !readAddress()) return;
      settle();
      draw();
      root.scrollIntoView();
    });
  }

  return {
    update(newer) {
      const typing = document.activeElement === parts.text;
      data = newer;
      settle();
      draw();
      if (typing) parts.text.focus();
    },
    get state() {
      return { ...state };
    },
  };
}
