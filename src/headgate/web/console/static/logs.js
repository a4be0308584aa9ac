// Log lines, the newest first, from whichever node runs the streams. Level and search sift what has come.

import { setLink } from "./link.js";
import { follow } from "./live.js";

const MOST = 2000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const MARKS = { warning: "degraded", error: "error", critical: "error" };

const body = document.getElementById("lines");
const form = document.getElementById("sift");
const lines = new Map(); // Each row's line.
let last = 0;

function fits(line) {
  const { level, search } = form.elements;
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  return LEVELS.indexOf(line.level) >= LEVELS.indexOf(level.value) && words.every((word) => line.words.includes(word));
}

function cell(name, text, className = "") {
  return Object.assign(document.createElement(name), { textContent: text, className });
}

function draw(line) {
  const fields = Object.entries(line.fields).map(([name, value]) => `${name}=${value}`).join(" ");
  line.words = `${line.level} ${line.text} ${fields}`.toLowerCase();
  const row = document.createElement("tr");
  row.dataset.health = MARKS[line.level] ?? "";
  const what = cell("td", line.text);
  if (fields) what.append(cell("small", fields));
  const when = cell("td", new Date(line.at).toLocaleString("sv-SE"), "when");
  when.title = line.at;
  row.append(when, cell("td", line.level, "level"), what);
  row.hidden = !fits(line);
  body.prepend(row);
  lines.set(row, line);
  while (body.children.length > MOST) {
    lines.delete(body.lastElementChild);
    body.lastElementChild.remove();
  }
}

function count() {
  const shown = [...lines.keys()].filter((row) => !row.hidden).length;
  document.getElementById("count").textContent = shown === lines.size ? "" : `${shown} of ${lines.size}`;
  document.getElementById("none").hidden = lines.size > 0;
}

function sift() {
  for (const [row, line] of lines) row.hidden = !fits(line);
  count();
}

form.addEventListener("input", sift);
form.addEventListener("submit", (event) => event.preventDefault());
follow(() => `${body.dataset.logs}?after=${last}`, {
  data: (line) => {
    last = line.id;
    draw(line);
    count();
  },
  open: () => setLink("live"),
  link: setLink,
  denied: () => location.reload(),
});
