// The history of a datasource: rate, lag, backlog and dead letters of the last hour, day or week.

import { chart, perSecond } from "./chart.js";

const EVERY_MS = 30_000;

const panel = document.getElementById("charts");
const find = (id) => document.getElementById(id);
let range = new URLSearchParams(location.search).get("range") ?? "1h";

async function draw() {
  const answer = await fetch(`${panel.dataset.history}?range=${range}`).catch(() => null);
  if (!answer?.ok) return; // The link says what is wrong, and the next time draws it.
  const found = await answer.json();
  const one = (id, label, unit, series) => chart(find(id), { series, unit, range: found, label });
  one("chart-rate", "Records read and written", "per_s", [
    { name: "read", values: perSecond(found.read, found) },
    { name: "written", values: perSecond(found.written, found) },
  ]);
  one("chart-lag", "Lag", "seconds", [{ name: "lag", values: found.lag_s }]);
  one("chart-backlog", "Backlog", "count", [{ name: "waiting", values: found.backlog }]);
  one("chart-dead", "Dead letters", "count", [{ name: "dead letters", values: found.dead_lettered }]);
}

function choose(wanted) {
  range = wanted;
  for (const button of panel.querySelectorAll("[data-range]")) {
    button.setAttribute("aria-pressed", String(button.dataset.range === range));
  }
  history.replaceState(null, "", range === "1h" ? location.pathname : `?range=${range}`);
  draw();
}

panel.addEventListener("click", (event) => {
  const wanted = event.target.closest("[data-range]")?.dataset.range;
  if (wanted) choose(wanted);
});
if (["24h", "7d"].includes(range)) choose(range);
else {
  range = "1h";
  draw();
}
setInterval(() => !document.hidden && draw(), EVERY_MS);
