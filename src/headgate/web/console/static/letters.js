// The buttons of dead letters. The pages themselves are kept fresh by `again.js`.

import { look } from "./again.js";

const GRAVE = "Discard for good? The records cannot be brought back.";

const find = (id) => document.getElementById(id);

// Without scripts nothing could be sent, so the buttons are shown from here.
function reveal() {
  for (const part of document.querySelectorAll("[data-acts]")) part.hidden = false;
}

// What the page is about: of a list, which letters fit the filter it was asked for.
function body(what) {
  const sent = { do: what };
  const query = new URLSearchParams(location.search);
  if (location.pathname === "/letters") {
    for (const name of ["datasource", "stage", "field", "reason"]) sent[name] = query.get(name) ?? "";
  }
  if (find("overwrite")?.checked) sent.overwrite = true;
  if (what.startsWith("edit")) sent.payload = find("payload").value;
  return sent;
}

async function send(what) {
  let [text, problem] = ["", ""];
  try {
    const answer = await fetch(location.pathname, {
      method: "POST",
      headers: { "content-type": "application/json", "x-headgate-console": "1" },
      body: JSON.stringify(body(what)),
    });
    const said = await answer.json();
    if (answer.ok) text = said.text;
    else problem = said.problems?.map((one) => `${one.path} ${one.message}`).join("; ") || said.detail || said.title;
    if (!answer.ok && said.hint && !problem.includes(said.hint)) problem += ` (${said.hint})`;
  } catch {
    problem = "The node does not answer.";
  }
  find("told").textContent = text;
  find("problem").textContent = problem;
  await look();
}

document.addEventListener("click", (event) => {
  const what = event.target.closest("button[data-do]")?.dataset.do;
  if (!what || (what === "discard" && !confirm(GRAVE))) return;
  send(what);
});

document.addEventListener("shown", reveal);
reveal();
