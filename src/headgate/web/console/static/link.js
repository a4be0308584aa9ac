// Whether what a page shows is fresh. `setLink(word)` with connecting, live, reconnecting or unavailable: the word in the
// header changes, `main` gets the class `stale` while the link is down, and a database that is away becomes the headline.
// Pages that are kept by `live.js` or `again.js` call it; a page of its own stream passes it on as `on.link`.

import { ago } from "./format.js";

const WORDS = { still: "as of page load", connecting: "connecting", live: "live", reconnecting: "reconnecting", unavailable: "database away" };
const AWAY = "The database is away";

let link = "still";
let heard_ms = Date.now();
let headline = "";

const write = (element, text) => element && element.textContent !== text && (element.textContent = text);

function banner(since_s) {
  if (link === "unavailable") return `${AWAY}: this node cannot reach it and keeps trying. What is shown was heard ${ago(since_s)}; nothing can be changed now.`;
  if (link === "reconnecting" && since_s >= 3) return `This node does not answer. What is shown was last heard ${ago(since_s)}; the page tries again by itself.`;
  return "";
}

function show() {
  const sign = document.getElementById("link");
  const since_s = (Date.now() - heard_ms) / 1000;
  if (link === "live") heard_ms = Date.now();
  sign.dataset.link = link;
  write(sign.querySelector("span"), WORDS[link]);
  const text = banner(since_s);
  const away = document.getElementById("away");
  // The words change every second; they are told once.
  if (!text || !away.textContent) write(away, text);
  else if (text.split(":")[0] !== away.textContent.split(":")[0] || Math.round(since_s) % 10 === 0) write(away, text);
  document.getElementById("main").classList.toggle("stale", link === "reconnecting" || link === "unavailable");
}

function head(isAway) {
  const element = document.querySelector("[data-headline]");
  if (!element) return;
  if (isAway && element.textContent !== AWAY) headline = element.textContent;
  if (isAway) write(element, AWAY);
  else if (element.textContent === AWAY) write(element, headline);
}

export function setLink(word) {
  if (link === word) return;
  link = word;
  head(word === "unavailable");
  show();
}

setInterval(() => link !== "still" && show(), 1000);
