// The overview, live. The server has drawn the first rows, what is wrong first; this changes the cells that change, and
// draws more as somebody scrolls or searches. It asks for no more rows than it shows, however many there are.

import { reveal } from "./act.js";
import { spark } from "./chart.js";
import { ALARMING, HEALTHS, NOTHING, ago, cells, count, headline, nextStep, rate, span, why } from "./format.js";
import { refresh } from "./keys.js";
import { setLink } from "./link.js";
import { follow } from "./live.js";

const TICK_MS = 1000;
const TYPED_MS = 200; // Somebody who types is asked for once.
const HISTORY_MS = 60_000; // Nodes keep what happened in each minute.
const SETTLED_MS = 300; // Rows that have just come ask for their history together.
const PAGE = 30;
const MOST_ROWS = 1000;
const MOST_LINES = 200; // That are asked for at once.
const ZERO = ["0", NOTHING];
const FIGURES = ["total", "rate", "dead", "backlog"];
const SKEW_MS = 2000; // A smaller difference between the clocks is the rounding of the Date header.

const find = (id) => document.getElementById(id);
const table = find("table");
const filter = find("filter");

const rows = new Map(); // By name, in the order shown.
const asked = new URLSearchParams(location.search);
const wish = { search: filter.value, health: asked.get("health") ?? "", order: asked.get("order") ?? "health", limit: PAGE };
const state = { link: "connecting", skew_ms: 0, matching: 0, drawn_ms: 0, drawing: 0 };

// Rows.

class Row {
  constructor(body) {
    this.body = body;
    this.line = body.querySelector(".row");
    this.why = body.querySelector(".why");
    this.step = body.querySelector(".step");
    this.spark = body.querySelector(".spark");
    this.cells = {};
    this.shown = {};
    for (const cell of body.querySelectorAll("[data-cell]")) {
      this.cells[cell.dataset.cell] = cell;
      this.shown[cell.dataset.cell] = cell.textContent;
    }
    this.one = { health: body.dataset.health, name: body.dataset.name, enabled: true, metrics: {} };
  }

  put(name, text) {
    if (this.shown[name] === text) return;
    this.cells[name].textContent = this.shown[name] = text;
    if (name === "why") this.why.hidden = !text;
    if (FIGURES.includes(name)) this.cells[name].classList.toggle("zero", ZERO.includes(text));
  }

  // What the node says of it may be only what has changed.
  update(said, at_s) {
    const one = { ...this.one, ...said, metrics: { ...this.one.metrics, ...said.metrics } };
    this.one = one;
    this.said_s = at_s;
    this.body.dataset.health = one.health;
    const texts = cells(one);
    for (const name in texts) this.put(name, texts[name]);
    this.offer(nextStep(one));
  }

  // What to do about it, as a button or a link.
  offer(step) {
    const key = step ? `${step.label} ${step.act ?? step.href}` : "";
    if (!this.step || this.offered === key) return;
    this.offered = key;
    if (!step) return this.step.replaceChildren();
    const made = document.createElement(step.act ? "button" : "a");
    made.textContent = step.label;
    made.className = step.act ? "plain" : "button plain";
    if (step.act) {
      made.type = "button";
      made.dataset.act = `POST /api/datasources/${encodeURIComponent(this.one.name)}/${step.act}`;
      made.dataset.as = `headgate ds ${step.act} ${this.one.name}`;
    } else made.href = step.href;
    this.step.replaceChildren(made);
  }

  // The oldest record that waits grows older by itself; what was said of it holds until the node says more.
  lag(unix_s) {
    const { lag_s } = this.one.metrics;
    return lag_s ? Math.max(lag_s, lag_s + (unix_s - this.said_s)) : 0;
  }

  tick(unix_s) {
    const last_s = this.one.metrics.last_record_at_s ?? null;
    this.put("ago", ago(last_s === null ? null : unix_s - last_s));
    this.put("lag", span(this.lag(unix_s) || null));
    this.put("why", why(this.one, unix_s) ?? "");
  }
}

function newRow(name) {
  const body = find("blank").content.querySelector("tbody").cloneNode(true);
  body.dataset.name = name;
  body.querySelector("a[data-cell=name]").href = `/datasources/${encodeURIComponent(name)}`;
  const dead = body.querySelector("a[data-cell=dead]");
  if (dead) dead.href = `/letters?datasource=${encodeURIComponent(name)}`;
  return new Row(body);
}

// What the node says.

function show({ rows: said, order, matching, counts, written_per_s, nodes, at_s }, skew_ms) {
  state.skew_ms = Math.abs(skew_ms) > SKEW_MS ? skew_ms : 0;
  state.matching = matching;
  for (const one of said) {
    if (!rows.has(one.name)) rows.set(one.name, newRow(one.name));
    rows.get(one.name).update(one, at_s);
  }
  if (order) arrange(order);
  sum(counts, nodes);
  write(find("all-rate"), rows.size ? `${rate(written_per_s)} records/s` : "");
  tick();
  remember();
}

function sum(counts, nodes) {
  const total = HEALTHS.reduce((all, health) => all + counts[health], 0);
  const wrong = ALARMING.reduce((all, health) => all + counts[health], 0);
  write(find("headline"), headline(counts));
  for (const button of find("counts").querySelectorAll("button")) {
    const number = counts[button.dataset.health];
    write(button.querySelector("b"), count(number));
    button.toggleAttribute("data-none", !number);
  }
  write(find("nodes"), `${count(nodes.length)} node${nodes.length === 1 ? "" : "s"}`);
  find("nodes").title = nodes.map((node) => `${node.name}: ${node.streams} streams`).join("\n");
  notice(nodes);
  document.title = wrong ? `(${count(wrong)}) Headgate` : "Headgate";
  find("empty").hidden = total > 0;
  find("list").hidden = total === 0;
  const isNarrowed = wish.search || wish.health;
  write(find("shown"), isNarrowed ? `${count(state.matching)} of ${count(total)}` : "");
  find("none").hidden = state.matching > 0 || total === 0;
  const left = state.matching - rows.size;
  find("more").hidden = left <= 0;
  write(find("more"), wish.limit < MOST_ROWS ? `${count(left)} more` : `${count(left)} more; search to find them`);
}

// What is wrong apart from datasources.
function notice(nodes) {
  const wrong = nodes.filter((node) => node.registry_problem);
  const text = (node) => `the registry file of ${node.name} is not usable; what runs goes on: ${node.registry_problem}`;
  write(find("notices"), wrong.map(text).join("\n"));
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// As the node orders them. Rows that are in their place are not touched.
function arrange(order) {
  const focused = document.activeElement;
  const wanted = new Set(order);
  for (const [name, row] of rows) {
    if (wanted.has(name)) continue;
    row.body.remove();
    rows.delete(name);
  }
  const known = new Map(rows);
  let place = table.tBodies[0] ?? null;
  rows.clear();
  for (const name of order) {
    const row = known.get(name);
    if (!row) continue; // It is asked for again: the node was not told of it here.
    rows.set(name, row);
    if (place !== row.body && place?.nextElementSibling === row.body) table.append(place);
    else if (place !== row.body) {
      table.insertBefore(row.body, place);
      continue;
    }
    place = row.body.nextElementSibling;
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  refresh();
  reveal();
}

// Time passes.

function tick() {
  if (state.link !== "live") return;
  const unix_s = (Date.now() + state.skew_ms) / 1000;
  for (const row of rows.values()) row.tick(unix_s);
}

// What the rows wrote in the last hour, as the nodes have kept it: of those without a line, or of all once a minute.
function remember() {
  const isOld = Date.now() - state.drawn_ms > HISTORY_MS;
  if (state.drawing || document.hidden || (!isOld && [...rows.values()].every((row) => row.isDrawn))) return;
  state.drawing = setTimeout(async () => {
    const wanted = [...rows.values()].filter((row) => isOld || !row.isDrawn).slice(0, MOST_LINES);
    for (const row of wanted) row.isDrawn = true;
    if (isOld) state.drawn_ms = Date.now();
    const names = wanted.map((row) => row.one.name).join(",");
    const answer = await fetch(`/api/history?names=${encodeURIComponent(names)}`).catch(() => null);
    for (const one of answer?.ok ? (await answer.json()).items : []) {
      const row = rows.get(one.name);
      if (row) spark(row.spark, one.written);
    }
    state.drawing = 0;
  }, SETTLED_MS);
}

// What is asked for.

function query() {
  const found = new URLSearchParams();
  if (wish.search) found.set("search", wish.search);
  if (wish.health) found.set("health", wish.health);
  if (wish.order !== "health") found.set("order", wish.order);
  return found;
}

function ask() {
  const text = query().toString();
  history.replaceState(null, "", text ? `/?${text}` : "/");
  stream.again();
}

function address() {
  const found = query();
  found.set("limit", wish.limit);
  return `/api/overview/rows?${found}`;
}

function setHealth(health) {
  wish.health = wish.health === health ? "" : health;
  wish.limit = PAGE;
  for (const button of find("counts").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.health === wish.health));
  }
  ask();
}

function setOrder(order) {
  wish.order = order;
  for (const button of table.querySelectorAll("button.order")) {
    const heading = button.closest("th");
    if (button.dataset.order === order) heading.setAttribute("aria-sort", order === "name" ? "ascending" : "descending");
    else heading.removeAttribute("aria-sort");
  }
  ask();
}

let typed = 0;

function type() {
  clearTimeout(typed);
  typed = setTimeout(() => {
    wish.search = filter.value.trim();
    wish.limit = PAGE;
    ask();
  }, TYPED_MS);
}

// More rows are drawn before somebody gets to them.
const end = new IntersectionObserver((entries) => {
  if (!entries.some((one) => one.isIntersecting) || wish.limit >= MOST_ROWS || rows.size < wish.limit) return;
  wish.limit = Math.min(wish.limit * 2, MOST_ROWS);
  stream.again();
}, { rootMargin: "600px" });

for (const body of table.tBodies) rows.set(body.dataset.name, new Row(body));
filter.addEventListener("input", type);
filter.form.addEventListener("submit", (event) => event.preventDefault());
find("counts").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) setHealth(button.dataset.health);
});
table.tHead.addEventListener("click", (event) => {
  const button = event.target.closest("button.order");
  if (button) setOrder(button.dataset.order);
});
setLink("connecting");
setInterval(tick, TICK_MS);
const stream = follow(address, {
  data: show,
  link: (word) => {
    state.link = word;
    setLink(word);
  },
  denied: () => location.reload(),
});
end.observe(find("more"));
