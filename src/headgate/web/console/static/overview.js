// The overview, live. The server has drawn every row; this changes the cells that change, and moves what is wrong up.

import { ALARMING, HEALTHS, NOTHING, ago, cells, count, headline, rate, rateOf, span, why } from "./format.js";
import { History } from "./history.js";
import { follow } from "./live.js";

const TICK_MS = 1000;
const SAMPLE_S = 1.5; // A node that is quiet for longer says that nothing changed, which is a sample too.
const ZERO = ["0", NOTHING];
const FIGURES = ["total", "rate", "dead", "backlog"];
const SKEW_MS = 2000; // A smaller difference between the clocks is the rounding of the Date header.

const find = (id) => document.getElementById(id);
const table = find("table");
const filter = find("filter");
const seconds = () => performance.now() / 1000;

const rows = new Map(); // By name, in the order shown.
const state = { link: "connecting", heard_s: seconds(), sampled_s: 0, skew_ms: 0, only: "", current: null };

// Rows.

class Row {
  constructor(body) {
    this.body = body;
    this.line = body.querySelector(".row");
    this.why = body.querySelector(".why");
    this.paths = body.querySelectorAll("path");
    this.cells = {};
    this.shown = {};
    for (const cell of body.querySelectorAll("[data-cell]")) {
      this.cells[cell.dataset.cell] = cell;
      this.shown[cell.dataset.cell] = cell.textContent;
    }
    this.history = new History();
    this.isInView = false;
    this.one = { health: body.dataset.health, name: body.dataset.name, enabled: true, metrics: {} };
    this.words = body.textContent.toLowerCase();
    inView.observe(this.line);
    rowOf.set(this.line, this);
  }

  put(name, text) {
    if (this.shown[name] === text) return;
    this.cells[name].textContent = this.shown[name] = text;
    if (name === "why") this.why.hidden = !text;
    if (name === "health") this.body.dataset.health = text;
    if (FIGURES.includes(name)) this.cells[name].classList.toggle("zero", ZERO.includes(text));
  }

  // What the node says of it may be only what has changed.
  update(said, at_s) {
    const one = { ...this.one, ...said, metrics: { ...this.one.metrics, ...said.metrics } };
    this.one = one;
    this.said_s = at_s;
    const texts = cells(one);
    for (const name in texts) this.put(name, texts[name]);
    this.words = `${one.name} ${one.health} ${texts.route} ${texts.node} ${texts.detail} ${one.why}`.toLowerCase();
  }

  // The oldest record that waits grows older by itself; what was said of it holds until the node says more.
  lag(unix_s) {
    const { lag_s } = this.one.metrics;
    return lag_s ? Math.max(lag_s, lag_s + (unix_s - this.said_s)) : 0;
  }

  tick(now_s, unix_s) {
    const last_s = this.one.metrics.last_record_at_s ?? null;
    this.put("ago", ago(last_s === null ? null : unix_s - last_s));
    this.put("lag", span(this.lag(unix_s) || null));
    this.put("why", why(this.one, unix_s));
    if (!this.isInView) return;
    this.history.paths(now_s).reverse().forEach((path, index) => {
      if (this.paths[index].getAttribute("d") !== path) this.paths[index].setAttribute("d", path);
    });
  }
}

const rowOf = new WeakMap(); // By its line.
const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) rowOf.get(entry.target).isInView = entry.isIntersecting;
}, { rootMargin: "200px" });

function newRow(name) {
  const body = find("blank").content.querySelector("tbody").cloneNode(true);
  body.dataset.name = name;
  table.append(body);
  return new Row(body);
}

// What the node says.

function show({ datasources, nodes, at_s, is_whole, gone }, skew_ms) {
  state.skew_ms = Math.abs(skew_ms) > SKEW_MS ? skew_ms : 0;
  const now = new Set(datasources.map((one) => one.name));
  const left = is_whole ? [...rows.keys()].filter((name) => !now.has(name)) : gone;
  for (const name of left) {
    const row = rows.get(name);
    if (!row) continue;
    inView.unobserve(row.line);
    row.body.remove();
    rows.delete(name);
  }
  for (const one of datasources) {
    if (!rows.has(one.name)) rows.set(one.name, newRow(one.name));
    const row = rows.get(one.name);
    row.update(one, at_s);
    if (row.cells.dead.tagName === "A") row.cells.dead.href = `/letters?datasource=${encodeURIComponent(one.name)}`;
  }
  arrange();
  sum([...rows.values()].map((row) => row.one), nodes);
  sample();
  tick();
}

function sum(datasources, nodes) {
  const counts = Object.fromEntries(HEALTHS.map((health) => [health, 0]));
  for (const one of datasources) counts[one.health] += 1;
  write(find("headline"), headline(counts));
  for (const button of find("counts").querySelectorAll("button")) {
    const number = counts[button.dataset.health];
    write(button.querySelector("b"), count(number));
    button.toggleAttribute("data-none", !number);
  }
  write(find("nodes"), `${count(nodes.length)} node${nodes.length === 1 ? "" : "s"}`);
  find("nodes").title = nodes.map((node) => `${node.name}: ${node.streams} streams`).join("\n");
  notice(nodes);
  const wrong = ALARMING.reduce((sum, health) => sum + counts[health], 0);
  document.title = wrong ? `(${count(wrong)}) Headgate` : "Headgate";
  find("empty").hidden = datasources.length > 0;
  find("list").hidden = datasources.length === 0;
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

// What is wrong first, then by name. Rows that are in their place are not touched.
function arrange() {
  const rank = (row) => HEALTHS.indexOf(row.one.health);
  const wanted = [...rows].sort(([, a], [, b]) => rank(a) - rank(b) || (a.one.name < b.one.name ? -1 : 1));
  const focused = document.activeElement;
  let place = table.tBodies[0] ?? null;
  rows.clear();
  for (const [name, row] of wanted) {
    rows.set(name, row);
    if (place !== row.body && place?.nextElementSibling === row.body) table.append(place);
    else if (place !== row.body) {
      table.insertBefore(row.body, place);
      continue;
    }
    place = row.body.nextElementSibling;
  }
  if (focused !== document.activeElement && rowOf.has(focused)) focused.focus({ preventScroll: true });
  sift();
}

// Time passes.

function sample() {
  const now_s = seconds();
  state.sampled_s = now_s;
  for (const row of rows.values()) row.history.add(now_s, rateOf(row.one) ?? 0);
}

function tick() {
  const now_s = seconds();
  if (state.link !== "live") return say();
  state.heard_s = now_s;
  if (now_s - state.sampled_s > SAMPLE_S) sample();
  const unix_s = (Date.now() + state.skew_ms) / 1000;
  let all = 0;
  for (const row of rows.values()) {
    row.tick(now_s, unix_s);
    all += rateOf(row.one) ?? 0;
  }
  write(find("all-rate"), rows.size ? `${rate(all)} records/s` : "");
}

// The link to the node. Old figures stay, but do not look new.

function say() {
  const words = {
    connecting: "connecting",
    live: "live",
    reconnecting: "reconnecting",
    unavailable: "database away",
  };
  const silent_s = Math.round(seconds() - state.heard_s);
  const since = state.link === "live" || silent_s < 2 ? "" : `last heard ${ago(silent_s)}`;
  find("link").dataset.link = state.link;
  write(find("link").querySelector("span"), words[state.link]);
  write(find("since"), since);
  find("main").classList.toggle("stale", state.link === "reconnecting" || state.link === "unavailable");
}

function setLink(word) {
  if (state.link === word) return;
  state.link = word;
  say();
}

// Filter.

function sift() {
  const terms = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let number = 0;
  for (const row of rows.values()) {
    const fits = (!state.only || row.one.health === state.only) && terms.every((term) => row.words.includes(term));
    if (row.body.hidden === fits) row.body.hidden = !fits;
    number += fits;
  }
  write(find("shown"), terms.length || state.only ? `${count(number)} of ${count(rows.size)}` : "");
  find("none").hidden = number > 0 || rows.size === 0;
  if (!state.current?.body.isConnected || state.current.body.hidden) setCurrent(visible()[0] ?? null);
}

const visible = () => [...rows.values()].filter((row) => !row.body.hidden);

function setOnly(health) {
  state.only = state.only === health ? "" : health;
  for (const button of find("counts").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.health === state.only));
  }
  sift();
}

// Keys: one row at a time is in the tab order, and the others are reached from it.

function setCurrent(row) {
  if (state.current) state.current.line.tabIndex = -1;
  if (row) row.line.tabIndex = 0;
  state.current = row;
}

function move(step) {
  const list = visible();
  const at = rowOf.has(document.activeElement) ? list.indexOf(state.current) : -1;
  const next = at < 0 ? list[0] : list[Math.min(Math.max(at + step, 0), list.length - 1)];
  next?.line.focus();
  next?.line.scrollIntoView({ block: "nearest" });
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === filter;
  const onRow = rowOf.has(event.target);
  if (event.key === "/" && !typing) filter.focus();
  else if (event.key === "Escape" && typing && filter.value) filter.value = "";
  else if (event.key === "Escape" && typing) filter.blur();
  else if (event.key === "ArrowDown" && (typing || onRow)) move(1);
  else if (event.key === "ArrowUp" && onRow) move(-1);
  else if (event.key === "j" && !typing) move(1);
  else if (event.key === "k" && !typing) move(-1);
  else return;
  event.preventDefault();
  sift();
}

function start() {
  for (const body of table.tBodies) rows.set(body.dataset.name, new Row(body));
  document.addEventListener("keydown", pressed);
  filter.addEventListener("input", sift);
  table.addEventListener("focusin", (event) => rowOf.has(event.target) && setCurrent(rowOf.get(event.target)));
  find("counts").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) setOnly(button.dataset.health);
  });
  say();
  setInterval(tick, TICK_MS);
  follow("/api/overview", { data: show, link: setLink, denied: () => location.reload() });
}

start();
