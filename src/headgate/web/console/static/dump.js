// The buttons of a dump, and the field of its rate. The page itself is kept fresh by `again.js`.

import { look } from "./again.js";

const GRAVE = {
  cancel: "Give this dump up? Rows that were appended stay; tables under construction are removed.",
  delete: "Forget this dump and its history? What it copied stays.",
};

// Without scripts nothing could be sent, so the buttons are shown from here.
function reveal() {
  const actions = document.getElementById("actions");
  if (actions) actions.hidden = false;
}

async function send(body) {
  const problem = document.getElementById("problem");
  let text = "";
  try {
    const answer = await fetch(location.pathname, {
      method: "POST",
      headers: { "content-type": "application/json", "x-headgate-console": "1" },
      body: JSON.stringify(body),
    });
    if (!answer.ok) {
      const said = await answer.json();
      text = said.detail || said.title;
      if (said.hint && !text.includes(said.hint)) text += ` (${said.hint})`;
    }
  } catch {
    text = "The node does not answer.";
  }
  if (problem) problem.textContent = text;
  if (body.do === "delete" && !text) location.assign("/dumps");
  else await look();
}

document.addEventListener("click", (event) => {
  const what = event.target.closest("button[data-do]")?.dataset.do;
  if (!what || (GRAVE[what] && !confirm(GRAVE[what]))) return;
  send({ do: what });
});

document.addEventListener("submit", (event) => {
  if (event.target.id !== "rate-form") return;
  event.preventDefault();
  send({ do: "rate", rate: event.target.elements.rate.value });
});

document.addEventListener("shown", reveal);
reveal();
