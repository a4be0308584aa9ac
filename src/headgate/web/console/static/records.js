// Records as they flow. Whatever is in them is only ever text.

import { failed, problem } from "./act.js";
import { setLink } from "./link.js";
import { follow } from "./live.js";

const MOST = 200;

const form = document.getElementById("tap");
const list = document.getElementById("records");
const halt = document.getElementById("halt");
const said = document.getElementById("tapped");
let stream = null;
let [seen, dropped] = [0, 0];

function tell(ended = "") {
  const lost = dropped ? `, ${dropped.toLocaleString("en-US")} more not shown` : "";
  said.textContent = `${seen.toLocaleString("en-US")} records${lost}${ended}`;
}

function draw(one) {
  const item = document.createElement("li");
  const head = document.createElement("p");
  head.className = "muted";
  head.textContent = [one.stream, one.place, one.node, one.reason].filter(Boolean).join(" · ");
  const text = document.createElement("pre");
  text.textContent = JSON.stringify(one.record, null, 2);
  item.append(head, text);
  list.prepend(item);
  while (list.children.length > MOST) list.lastElementChild.remove();
}

function heard(step) {
  dropped += step.dropped ?? 0;
  if (step.shown) {
    seen += 1;
    draw(step.shown);
  }
  if (step.ended) return end(`; the watch has ended (${step.ended})`);
  tell();
}

function end(text = "; stopped") {
  stream?.stop();
  stream = null;
  halt.hidden = true;
  setLink("still");
  tell(text);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  stream?.stop();
  list.replaceChildren();
  [seen, dropped] = [0, 0];
  const fields = form.elements;
  const query = new URLSearchParams({ at: fields.at.value, where: fields.where.value, sample: fields.sample.value || "1" });
  halt.hidden = false;
  tell("; waiting for the next");
  stream = follow(`${form.dataset.tap}?${query}`, {
    data: heard,
    open: () => setLink("live"),
    link: setLink,
    denied: () => location.reload(),
    refused: (found) => {
      failed(problem(found));
      end("; refused");
    },
  });
});
halt.addEventListener("click", () => end());
