// Events, live: each new one becomes the first row. Those before are what the server has drawn; older pages stay as they
// are.

import { ago } from "./format.js";
import { follow } from "./live.js";
import { setLink } from "./link.js";

const MOST = 300; // Rows that are kept. Older ones are on the next page.
const MOST_TEXT = 300; // As in `events.py`.
const EVERY_MS = 5000;

const table = document.querySelector("table.events");
const body = document.getElementById("events");
const blank = document.getElementById("blank").content.querySelector("tr");
let skew_ms = 0;

function value(one) {
  return typeof one === "string" ? one : JSON.stringify(one);
}

function said(payload) {
  const text = Object.entries(payload).map(([name, one]) => `${name}=${value(one)}`).join(" ");
  return text.split(/[\r\n]+/).map((line) => line.trim()).filter(Boolean).join(" ").slice(0, MOST_TEXT);
}

function draw(event) {
  const row = blank.cloneNode(true);
  const cell = (name) => row.querySelector(`.${name}`);
  row.dataset.id = event.id;
  row.classList.add("fresh");
  const time = cell("when").querySelector("time");
  time.dateTime = time.title = event.at;
  cell("type").textContent = event.type;
  const link = cell("of").querySelector("a");
  if (event.name) link.textContent = event.name;
  if (event.name) link.href = `/datasources/${encodeURIComponent(event.name)}`;
  else link.remove();
  cell("text").textContent = said(event.payload);
  cell("by").textContent = event.actor;
  return row;
}

function add(event, skew) {
  skew_ms = Math.abs(skew) > 2000 ? skew : 0;
  if (body.querySelector(`[data-id="${Number(event.id)}"]`)) return;
  body.prepend(draw(event));
  while (body.rows.length > MOST) body.lastElementChild.remove();
  document.getElementById("none").hidden = true;
  table.dataset.after = event.id;
  tick();
  document.dispatchEvent(new Event("shown"));
}

function tick() {
  const now_ms = Date.now() + skew_ms;
  for (const time of body.querySelectorAll("time")) {
    const text = ago(Math.max(0, (now_ms - Date.parse(time.dateTime)) / 1000));
    if (time.textContent !== text) time.textContent = text;
  }
}

// The address is made again for each try: what has been seen is not sent again.
function address() {
  const asked = new URLSearchParams(location.search);
  const query = new URLSearchParams({ after: table.dataset.after });
  for (const name of ["datasource", "type"]) if (asked.get(name)) query.set(name, asked.get(name));
  return `/api/events?${query}`;
}

setInterval(tick, EVERY_MS);
tick();
if ("after" in table.dataset) follow(address, { data: add, link: setLink, open: () => setLink("live"), denied: () => location.reload() });
