// Buttons and forms that call the API. They are declared in HTML, and need no script of their page:
//
//   <button data-act="POST /api/datasources/orders/stop">Stop</button>
//   data-body='{"version": 3}'     JSON to send.
//   data-confirm="Stop orders?"    Asks first, in a dialog.
//   data-grave                     The dialog's button is red. Losses that the API tells (409) are always asked for.
//   data-yes="alive in_use"        Codes of other refusals (409) that the reader may overrule after they were read.
//   data-yes-in="body"             The yes goes into the body; without it, into the query.
//   data-as="headgate ds stop …"   The command that does the same; the dialog shows it, and the button's tooltip.
//   data-done="Stopping."          What is said afterwards. Without it: the button's text and "done".
//   data-then="/streams"           Where to go afterwards; "reload" for the same page. Without it the page stays, and
//                                  the element gets a bubbling event `acted` with the answer in `detail`.
//   <form data-act="PUT /api/secrets/{name}">   Named fields fill the path's braces; the others are the body: text as
//                                  it is, numbers and checkboxes as such, `data-type="json"` parsed,
//                                  `data-type="lines"` a list of its lines, empty ones left out.
//
// A button is busy while its call lasts. What became of it is said in one line at the foot of the window, in a live
// region. The session's cookie says who asks; the header that `call` adds keeps other sites from asking in its name.
//
// For scripts: `call(method, path, body)` -> {ok, status, said}; `told(text)` and `failed(text)` for that line;
// `ask({...})` -> Promise of whether the reader agrees; `problem(said)` puts the API's problem into one line.

import { parse } from "./exact.js";

const ANSWER_MS = 90_000;
const SHOWN_MS = 8_000;
const LOSSES = { payloads: "payload", letters: "dead letter", dumps: "dump", datasources: "datasource", running: "running stream" };

// Calls.

export async function call(method, path, body) {
  const headers = { accept: "application/json", "x-headgate-console": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  try {
    const answer = await fetch(path, { method, headers, body: text, signal: AbortSignal.timeout(ANSWER_MS) });
    const said = await answer.text().then(parse).catch(() => ({}));
    return { ok: answer.ok, status: answer.status, said };
  } catch {
    return { ok: false, status: 0, said: { detail: "The node does not answer." } };
  }
}

export function problem(said) {
  const others = (said.problems ?? []).filter((one) => !said.detail?.includes(one.message)); // Most details have them.
  const listed = others.map((one) => [one.path, one.message].filter(Boolean).join(" ")).join("; ");
  const text = listed && said.detail ? `${said.detail}: ${listed}` : listed || said.detail || said.title || "It failed.";
  return said.hint && !text.includes(said.hint) ? `${text} (${said.hint})` : text;
}

// The line at the foot.

let timer = 0;

function say(role, text) {
  const line = document.getElementById("outcome");
  for (const part of line.children) part.textContent = part.getAttribute("role") === role ? text : "";
  clearTimeout(timer);
  if (role === "status" && text) timer = setTimeout(() => say("status", ""), SHOWN_MS);
}

export const told = (text) => say("status", text);
export const failed = (text) => say("alert", text);

// The dialog.

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function ask({ title, text = "", lines = [], verb = "Go on", grave = false, command = "" }) {
  const yes = element("button", { value: "yes", textContent: verb, className: grave ? "grave" : "" });
  const no = element("button", { value: "no", textContent: "Cancel", className: "quiet" });
  const dialog = element("dialog", { className: "ask" });
  const heading = element("h2", { textContent: title, id: "ask-title" });
  const form = element("form", { method: "dialog" }, heading);
  dialog.setAttribute("aria-labelledby", "ask-title");
  if (text) form.append(element("p", { textContent: text }));
  if (lines.length) form.append(element("ul", {}, ...lines.map((line) => element("li", { textContent: line }))));
  if (command) form.append(element("p", { className: "muted as" }, "The same as a command: ", element("code", { textContent: command })));
  form.append(element("div", { className: "acts" }, no, yes));
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  (grave ? no : yes).focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    });
  });
}

const losses = (counts) => Object.entries(counts ?? {}).filter(([, number]) => number > 0)
  .map(([what, number]) => `${number.toLocaleString("en-US")} ${LOSSES[what] ?? what}${number === 1 ? "" : "s"}`);

// What is declared.

function fields(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "radio" && !field.checked)) continue;
    if (field.type === "checkbox") found[field.name] = field.checked;
    else if (field.value === "") continue;
    else if (field.type === "number") found[field.name] = Number(field.value);
    else if (field.dataset.type === "json") found[field.name] = parse(field.value);
    else if (field.dataset.type === "lines") found[field.name] = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    else found[field.name] = field.value;
  }
  return found;
}

function request(source) {
  const [method, template] = source.dataset.act.split(" ");
  let body = source.dataset.body ? JSON.parse(source.dataset.body) : undefined;
  if (source.tagName !== "FORM") return { method, path: template, body };
  const values = fields(source);
  const path = template.replace(/\{(\w+)\}/g, (_, name) => {
    const value = encodeURIComponent(values[name] ?? "");
    delete values[name];
    return value;
  });
  body = { ...body, ...values };
  return { method, path, body };
}

// Sends it; what would be lost, or may be overruled, is asked for, and then said yes to.
async function send({ method, path, body }, source) {
  const answer = await call(method, path, body);
  const { yes = "", yesIn, as } = source.dataset;
  const lost = losses(answer.said.counts);
  const mayOverrule = yes.split(" ").includes(answer.said.code);
  if (answer.status !== 409 || path.includes("yes=true") || !(lost.length || mayOverrule)) return answer;
  const title = mayOverrule ? `${verbOf(source)}?` : "Something would be lost";
  const words = { title, text: answer.said.detail, verb: verbOf(source), grave: true, lines: mayOverrule ? reasons(answer.said) : lost };
  if (!(await ask({ ...words, command: as ? `${as} --yes` : "" }))) return null;
  if (yesIn === "body") return call(method, path, { ...body, yes: true });
  return call(method, `${path}${path.includes("?") ? "&" : "?"}yes=true`, body);
}

const reasons = (said) => (said.problems ?? []).map((one) => [one.path, one.message].filter(Boolean).join(" "));

const buttonOf = (source) => (source.tagName === "FORM" ? source.querySelector("button:not([type=button])") : source);
const verbOf = (source) => buttonOf(source)?.textContent.trim() || "Go on";

async function act(source) {
  const button = buttonOf(source);
  if (source.ariaBusy === "true") return;
  let wanted;
  try {
    wanted = request(source);
  } catch (error) {
    return failed(`A field is not JSON: ${error.message}`);
  }
  const { confirm: title, as: command, done, then } = source.dataset;
  const grave = "grave" in source.dataset;
  if (title && !(await ask({ title, verb: verbOf(source), grave, command }))) return;
  source.ariaBusy = "true";
  if (button) button.disabled = true;
  const answer = await send(wanted, source);
  source.ariaBusy = "false";
  if (button) button.disabled = false;
  button?.focus({ preventScroll: true });
  if (!answer) return;
  if (!answer.ok) return failed(problem(answer.said));
  told(done || `${verbOf(source)}: done`);
  if (then === "reload") location.reload();
  else if (then) location.assign(then);
  else (source.isConnected ? source : document).dispatchEvent(new CustomEvent("acted", { bubbles: true, detail: answer.said })); // The page may have been drawn again meanwhile.
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]:not(form)");
  if (!button) return;
  event.preventDefault();
  act(button);
});

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-act]")) return;
  event.preventDefault();
  act(event.target);
});

// Without scripts nothing could be sent, so what acts is shown from here (`data-acts hidden` in HTML).
export function reveal() {
  for (const part of document.querySelectorAll("[data-acts]")) part.hidden = false;
  for (const button of document.querySelectorAll("button[data-as]")) button.title = button.dataset.as;
}

document.addEventListener("shown", reveal);
reveal();
