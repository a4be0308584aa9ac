// A new datasource in five steps. One document grows from step to step; the server says what is wrong with it, tests it,
// and nothing is published before its test was seen.

import { call, failed, problem, told } from "./act.js";
import { HEALTH_WORDS } from "./format.js";
import { Form } from "./form.js";
import { setLink } from "./link.js";
import { Trial } from "./trial.js";

const NAME = /^[a-z0-9][a-z0-9_-]{0,99}$/;
const LAST = 5;
const LOOK_MS = 1000;

const wizard = document.getElementById("wizard");
const find = (id) => document.getElementById(id);
const nameField = find("name");
const draft = {};
let [step, furthest, tested, shown, form] = [1, 1, "", "", null]; // `shown`: the document whose results are on the page.

const name = () => nameField.value.trim();
const path = () => `/api/datasources/${encodeURIComponent(name())}`;

// Steps.

function show(wanted) {
  step = wanted;
  furthest = Math.max(furthest, wanted);
  for (const part of wizard.querySelectorAll("[data-step]")) part.hidden = Number(part.dataset.step) !== step;
  for (const button of find("steps").querySelectorAll("button")) {
    const number = Number(button.dataset.to);
    button.disabled = number > furthest;
    if (number === step) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  find("back").disabled = step === 1;
  find("next").hidden = step === LAST;
  wizard.querySelector(`[data-step="${step}"]`).querySelector("input:checked, input, textarea, button")?.focus({ preventScroll: true });
  if (step >= 3) draw();
  if (step >= 4) judge();
  if (shown !== JSON.stringify(draft)) find("trial").querySelector("[data-results]").replaceChildren();
}

function draw() {
  form = new Form(schema, { get: () => draft, changed: () => {}, secrets });
  if (draft.source) find("source-options").replaceChildren(form.side("source"));
  if (draft.sink) find("sink-options").replaceChildren(form.side("sink"));
  find("mapping-options").replaceChildren(form.mapping());
}

// A name that is like what was typed, in words.
function suggestion() {
  const near = name().toLowerCase().replace(/[^a-z0-9_-]+/g, "-").replace(/^[-_]+|-+$/g, "").slice(0, 100);
  return NAME.test(near) ? `, such as ${near}` : "";
}

// What keeps the reader from going on; empty: nothing.
function lacking() {
  if (step === 1 && !draft.source) return "Choose a source.";
  if (step === 1 && !NAME.test(name())) return `Give it a name of lower case letters, digits, - and _${suggestion()}.`;
  if (step === 2 && !draft.sink) return "Choose a sink.";
  const side = { 1: "source", 2: "sink" }[step];
  const empty = side && (schema.$defs[`${side}-${draft[side].type}`]?.required ?? []).find((one) => draft[side][one] === undefined);
  return empty ? `${empty} is missing.` : "";
}

async function taken() {
  if (step !== 1 || !(await call("GET", path())).ok) return "";
  return `There is a datasource ${name()} already; choose another name.`;
}

// What is wrong with what this step has asked for. It is shown at its field.
async function blamed() {
  const part = { 1: "source", 2: "sink", 3: "mapping" }[step];
  if (!part) return "";
  const { ok, said } = await call("POST", `${path()}/document`, { document: draft });
  const wrong = ok ? said.problems.filter((one) => one.path.split(".")[0] === part) : [];
  form.blame(wrong);
  return wrong.length ? inWords(wrong[0]) : "";
}

function inWords(one) {
  return [one.path && `${one.path}:`, one.message, one.hint && `(${one.hint})`].filter(Boolean).join(" ");
}

async function next() {
  const text = lacking() || (await taken());
  const wrong = text || (await blamed());
  find("name-wrong").textContent = step === 1 && draft.source ? text : "";
  if (wrong) return failed(wrong);
  told("");
  failed("");
  show(step + 1);
}

// Source and sink.

function choose(side, type) {
  if (draft[side]?.type === type) return;
  draft[side] = { type };
  if (side === "sink" && type === "postgres" && name()) draft.sink.table = name().replaceAll("-", "_");
  if (side === "source" && !name()) nameField.value = type === "webhook" ? "events" : `from-${type}`;
  draw();
  find("own").hidden = draft.sink?.type !== "postgres" || !("admin" in wizard.dataset);
}

async function useOwn() {
  const { ok, said } = await call("POST", "/api/secrets/own-database");
  if (!ok) return failed(problem(said));
  if (!secrets.includes(said.name)) secrets.push(said.name);
  draft.sink.url = { $secret: said.name };
  draw();
  told(`The secret ${said.name} has its address.`);
}

// What is wrong, and what is left to do.

async function judge() {
  const { ok, said } = await call("POST", `${path()}/document`, { document: draft });
  if (!ok) return failed(problem(said));
  find("yaml").textContent = said.yaml;
  form.blame(said.problems);
  find("problems").replaceChildren(...said.problems.map((one) => {
    const item = document.createElement("li");
    item.textContent = inWords(one);
    return item;
  }));
  const isTested = tested === JSON.stringify(draft);
  find("run").disabled = !isTested || said.problems.length > 0;
  find("verdict").textContent = said.problems.length ? "Something is wrong with it: see the step before." : isTested ? "It was tested as it is. Publishing starts its stream." : "Test it first, in the step before.";
}

async function run() {
  find("run").disabled = true;
  const existing = await call("GET", path());
  if (existing.ok) {
    find("run").disabled = false;
    return failed(`There is a datasource ${name()} already; choose another name in the first step.`);
  }
  const kept = await call("PUT", path(), draft);
  const published = kept.ok ? await call("POST", `${path()}/publish`, {}) : kept;
  if (!published.ok) {
    find("run").disabled = false;
    return failed(problem(published.said));
  }
  told("Published. A node takes it up.");
  watch();
}

// Until it runs, or says why not.
async function watch() {
  const { ok, said } = await call("GET", path());
  if (ok) tell(said);
  if (!ok || !["ok", "error", "degraded", "ended"].includes(said.health)) setTimeout(watch, LOOK_MS);
}

function tell(one) {
  const line = document.createElement("p");
  line.className = "status";
  line.id = "status";
  line.dataset.health = one.health;
  const word = Object.assign(document.createElement("b"), { textContent: HEALTH_WORDS[one.health] ?? one.health });
  line.append(Object.assign(document.createElement("i"), { className: "mark" }), word, ` ${one.why}`);
  const parts = [line];
  if (draft.source.type === "webhook") {
    const call = `curl -X POST ${location.origin}/hooks/${one.name} -H 'Authorization: Bearer TOKEN' -d '{"id": 1}'`;
    const code = Object.assign(document.createElement("code"), { textContent: call });
    code.dataset.command = "";
    parts.push(Object.assign(document.createElement("p"), { textContent: "Send it a record on its page, or with this command:" }));
    const box = Object.assign(document.createElement("p"), { className: "command" });
    box.append(code);
    parts.push(box);
  }
  const link = Object.assign(document.createElement("a"), { className: "button", href: `/datasources/${encodeURIComponent(one.name)}`, textContent: `Open ${one.name}` });
  parts.push(link);
  find("running").replaceChildren(...parts);
  document.dispatchEvent(new Event("shown"));
}

const [found, named] = await Promise.all([call("GET", "/api/documents/schema?one=true"), call("GET", "/api/secrets")]);
const schema = found.said;
const secrets = (named.said.items ?? []).map((one) => one.name);
setLink(found.ok ? "live" : "unavailable");
new Trial(find("trial"), {
  name,
  document: () => draft,
  seen: (said, document) => {
    shown = document;
    tested = said.trouble ? "" : document;
    judge();
  },
});
for (const side of ["source", "sink"]) {
  for (const input of wizard.querySelectorAll(`input[name=${side}]`)) {
    input.addEventListener("change", () => choose(side, input.value));
    if (input.checked) choose(side, input.value);
  }
}
find("use-own").addEventListener("click", useOwn);
let going = Promise.resolve(); // One click after the other: each asks the server first.
find("next").addEventListener("click", () => (going = going.then(next, next)));
find("back").addEventListener("click", () => show(step - 1));
find("run").addEventListener("click", run);
find("steps").addEventListener("click", (event) => {
  const wanted = Number(event.target.closest("button")?.dataset.to);
  if (wanted && (wanted < step || !lacking())) show(wanted);
});
wizard.dataset.ready = "";
show(1);
