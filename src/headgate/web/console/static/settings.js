// Forms of the settings: what was sent does not stay in its fields, and a new token is shown once. The page itself is
// kept fresh by `again.js`.

import { failed, told } from "./act.js";
import "./again.js";

const DAY_MS = 86_400_000;

const find = (id) => document.getElementById(id);

// "In 30 days" is a time when the form is sent, not when the page was drawn.
document.addEventListener("submit", (event) => {
  for (const field of event.target.querySelectorAll("[data-days]")) {
    const at = field.value ? new Date(Date.now() + Number(field.value) * DAY_MS).toISOString() : "";
    event.target.elements[field.dataset.days].value = at;
  }
}, true);

document.addEventListener("acted", ({ target, detail }) => {
  if (target.matches?.("form[data-clears]")) for (const field of target.querySelectorAll("input, textarea")) field.value = "";
  if (target.id !== "new-token") return;
  find("made").hidden = false;
  find("made-name").textContent = detail.name;
  find("made-token").textContent = detail.token;
  find("made-copy").focus();
});

document.addEventListener("click", async (event) => {
  if (event.target.id !== "made-copy") return;
  try {
    await navigator.clipboard.writeText(find("made-token").textContent);
    told("Copied.");
  } catch {
    failed("The browser does not let this page copy; select the text instead.");
  }
});
