// Sends a record to a webhook, as the reader of the page. What was typed is sent as it is, so that no number is rounded.

import { look } from "./again.js";

const ANSWER_MS = 30_000;
const HEADERS = { "content-type": "application/json", "x-headgate-console": "1" };

const form = document.getElementById("send-form");
const body = document.getElementById("send-body");
const said = document.getElementById("sent");
const command = document.querySelector("#send [data-command]");
const quoted = (text) => `'${text.replaceAll("'", "'\"'\"'")}'`;

function tell(isTaken, text) {
  said.dataset.health = isTaken ? "ok" : "error";
  said.querySelector("b").textContent = text;
  said.hidden = false;
}

async function send() {
  try {
    const answer = await fetch(form.dataset.hook, { method: "POST", headers: HEADERS, body: body.value, signal: AbortSignal.timeout(ANSWER_MS) });
    const text = await answer.json().catch(() => ({}));
    if (answer.status === 202) tell(true, "202: it is durable. What becomes of it is counted above.");
    else tell(false, `${answer.status}: ${[text.detail ?? text.title ?? "it was refused", text.hint].filter(Boolean).join(" · ")}`);
  } catch {
    tell(false, "The node does not answer.");
  }
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  await send();
  button.disabled = false;
  look();
});
body?.addEventListener("input", () => {
  command.textContent = form.dataset.begin + quoted(body.value);
});
