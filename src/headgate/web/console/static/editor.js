// The draft: a form and the YAML of the same document. Whichever is changed, the server makes the other from it and says
// everything that is wrong. Nothing is published that was not saved, and what a publish changes is shown before it.

import { ask, call, failed, problem, told } from "./act.js";
import { parse } from "./exact.js";
import { Form } from "./form.js";
import { setLink } from "./link.js";
import { Trial } from "./trial.js";

const WAIT_MS = 400;

const page = document.getElementById("editor");
const name = page.dataset.name;
const path = `/api/datasources/${encodeURIComponent(name)}`;
const text = document.getElementById("yaml");
const problems = document.getElementById("problems");
const save = document.getElementById("save");
const publish = document.getElementById("publish");
let draft = parse(page.dataset.document);
let hash = page.dataset.hash;
let saved = page.dataset.isDraft === "true" ? JSON.stringify(draft) : "";
let [number, timer, isTouched] = [0, 0, false];
let isRead = true; // The draft is what the text says: what was not read yet, or cannot be, is not saved as something else.
let form = null;

function draw() {
  form = new Form(schema, { get: () => draft, changed: () => later({ document: draft }), secrets });
  document.getElementById("form-source").replaceChildren(form.side("source"));
  document.getElementById("form-sink").replaceChildren(form.side("sink"));
  document.getElementById("form-mapping").replaceChildren(form.mapping());
  document.getElementById("form-options").replaceChildren(form.options());
}

function later(body) {
  isTouched = true;
  number += 1; // What is under way was asked of an older text.
  isRead = body.yaml === undefined;
  clearTimeout(timer);
  state();
  timer = setTimeout(() => check(body), WAIT_MS);
}

// One document, two views: who writes in one of them sees the other follow.
async function check(body) {
  const mine = ++number;
  const { ok, said } = await call("POST", `${path}/document`, body);
  if (mine !== number) return;
  if (!ok) return failed(problem(said));
  if (body.yaml === undefined) text.value = said.yaml;
  else if (said.document) {
    draft = said.document;
    draw();
  }
  isRead = said.document !== null;
  blame(said.problems);
  text.toggleAttribute("aria-invalid", said.document === null);
  state();
}

function blame(found) {
  form.blame(found);
  problems.replaceChildren(...found.map((one) => {
    const item = document.createElement("li");
    const where = Object.assign(document.createElement("code"), { textContent: one.path });
    item.append(...(one.path ? [where, " "] : []), one.message + (one.hint ? ` (${one.hint})` : ""));
    return item;
  }));
  document.getElementById("sound").textContent = found.length ? `${found.length} ${found.length === 1 ? "problem" : "problems"}` : "Nothing is wrong with it.";
}

function state() {
  const isSaved = JSON.stringify(draft) === saved;
  save.disabled = isSaved || !isRead;
  publish.disabled = !isSaved || !isRead;
  publish.title = isSaved && isRead ? publish.dataset.as : "Save the draft first";
}

async function keep() {
  save.ariaBusy = "true";
  const query = hash ? `?expected_hash=${encodeURIComponent(hash)}` : "";
  const { ok, said } = await call("PUT", `${path}/draft${query}`, draft);
  save.ariaBusy = "false";
  if (!ok) return failed(problem(said));
  saved = JSON.stringify(draft);
  isTouched = false;
  hash = said.hash;
  document.getElementById("which").textContent = `The draft, v${said.number}.`;
  told(`Saved as the draft v${said.number}. Nothing runs it yet.`);
  state();
}

const shown = (value) => (value === null || value === undefined ? "nothing" : JSON.stringify(value));

async function go() {
  const plan = await call("GET", `${path}/diff`);
  const isFirst = plan.status === 404;
  if (!plan.ok && !isFirst) return failed(problem(plan.said));
  const lines = isFirst ? ["It is published for the first time."] : plan.said.changes.map((one) => `${one.path}: ${shown(one.before)} → ${shown(one.after)}`);
  const words = { title: `Publish ${name}?`, text: "The streams change to it one by one; a version that fails is rejected, and the old one goes on.", verb: "Publish" };
  if (!(await ask({ ...words, lines: lines.length ? lines : ["Nothing changes."], command: publish.dataset.as }))) return;
  let answer = await call("POST", `${path}/publish`, { hash });
  if (answer.status === 409 && answer.said.code === "fixtures_changed") {
    const lines = (answer.said.problems ?? []).map((one) => `${one.path} ${one.message}`);
    if (!(await ask({ title: "Fixtures expect something else", lines, verb: "Publish, and expect this from now on", grave: true }))) return;
    answer = await call("POST", `${path}/publish`, { hash, accept: true });
  }
  if (!answer.ok) return failed(problem(answer.said));
  told("Published.");
  location.assign(`/datasources/${encodeURIComponent(name)}`);
}

const [found, named] = await Promise.all([call("GET", "/api/documents/schema?one=true"), call("GET", "/api/secrets")]);
const schema = found.said;
const secrets = (named.said.items ?? []).map((one) => one.name);
draw();
state();
new Trial(document.getElementById("trial"), { name: () => name, document: () => draft });
text.addEventListener("input", () => later({ yaml: text.value }));
save.addEventListener("click", keep);
publish.addEventListener("click", go);
addEventListener("beforeunload", (event) => isTouched && event.preventDefault());
setLink(found.ok ? "live" : "unavailable");
page.dataset.ready = "";
check({ document: draft });
