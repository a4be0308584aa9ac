// The forms of notifications: whom to tell (targets), and of what (rules). There is one document of both; a form reads
// it, changes what it is about, and writes all of it. What is wrong is said at its field.

import { ask, call, failed, problem, told } from "./act.js";
import { look } from "./again.js";

const PATH = "/api/notifications";
const STANDARD = { // What a new target is offered, as long as there is no rule of the kind.
  broken: { when: "health" },
  letters: { when: "dead_letters", above: 100 },
  late: { when: "lag", above: "10m" },
  rejected: { when: "rejected" },
  nodes: { when: "node_lost" },
};
const WHENS = {
  health: "A datasource fails, or no node runs it",
  dead_letters: "More open dead letters than",
  lag: "Lag longer than",
  rejected: "A published version was rejected",
  node_lost: "A node is lost",
};

const find = (id) => document.getElementById(id);
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const secret = (name) => (name ? { $secret: name } : undefined);
const given = (fields) => Object.fromEntries(Object.entries(fields).filter(([, one]) => one !== undefined && one !== "" && one.length !== 0));

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

let was = ""; // The name of what is edited; nothing if it is new.
let version = 0; // Of the document that was read: what somebody else has written since is not overwritten.

async function read() {
  const { ok, said } = await call("GET", PATH);
  if (!ok) failed(problem(said));
  version = said?.version ?? 0;
  return ok ? { targets: {}, rules: {}, ...said.document } : null;
}

// What is wrong, at its field; the rest in the line at the foot.

function optionOf(form, path, at) {
  if (path.startsWith(`${at}.`)) {
    const [first, second] = path.slice(at.length + 1).split(".");
    return (first === form.elements.kind.value && second ? second : first).replace("[key]", "name"); // Some say the kind.
  }
  if (path === at) return "name";
  return form.id === "target-form" ? /^notifications\.rules\.([^.]+)/.exec(path)?.[1] ?? "" : "";
}

function blame(form, problems, at) {
  for (const line of form.querySelectorAll("[data-wrong]")) line.textContent = "";
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  const others = [];
  let first = null;
  for (const one of problems) {
    const option = optionOf(form, one.path, at);
    const box = option && [...form.querySelectorAll(`[data-option="${CSS.escape(option)}"]`)].find((each) => each.checkVisibility());
    const line = box?.querySelector("[data-wrong]");
    if (!line) others.push([one.path, one.message].join(" "));
    else {
      line.textContent = [line.textContent, one.message + (one.hint ? ` (${one.hint})` : "")].filter(Boolean).join("; ");
      const field = box.querySelector("input, select, textarea");
      field.setAttribute("aria-invalid", "true");
      first ??= field;
    }
  }
  first?.focus();
  return others;
}

async function write(form, document, at, done) {
  const { ok, said } = await call("PUT", `${PATH}?over=${version}`, document);
  const others = blame(form, ok ? [] : said.problems ?? [], at);
  if (!ok) return failed(others.length || !said.problems?.length ? problem({ ...said, problems: [], detail: others.join("; ") || said.detail }) : "Some fields are not right.");
  close(form);
  told(done);
  return look();
}

function open(panel, name, title) {
  was = name;
  for (const one of document.querySelectorAll("[data-form]")) one.hidden = one !== panel;
  panel.querySelector("h2").textContent = title;
  const form = panel.querySelector("form");
  form.elements.name.value = name;
  blame(form, [], "");
  choose(form);
  form.elements.name.focus();
  panel.scrollIntoView({ block: "nearest" });
}

function close(form) {
  form.closest("[data-form]").hidden = true;
  form.reset();
  find(form.id === "target-form" ? "add-target" : "add-rule")?.focus();
}

// Of the fields by kind, those of the kind that is chosen.
function choose(form) {
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll("[data-kind]")) part.hidden = part.disabled = !part.dataset.kind.split(" ").includes(kind);
}

function put(form, values) {
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements[name];
    if (field) field.value = Array.isArray(value) ? value.join("\n") : value ?? "";
  }
}

// Targets.

function targetOf(form) {
  const text = (name) => form.elements[name].value.trim();
  const kind = text("kind");
  if (kind === "webhook") return given({ type: kind, url: secret(text("webhook-url-secret")) ?? text("webhook-url"), secret: secret(text("webhook-secret")), ca_file: text("webhook-ca") });
  if (kind === "slack") return given({ type: kind, url: secret(text("slack-url")), ca_file: text("slack-ca") });
  const port = text("email-port") && Number(text("email-port"));
  const server = { host: text("email-host"), port, tls: text("email-tls"), ca_file: text("email-ca") };
  const who = { user: text("email-user"), password: secret(text("email-password")), from: text("email-from"), to: lines(text("email-to")) };
  return given({ type: kind, ...server, ...who });
}

function fill(form, one) {
  const url = one.url?.$secret;
  put(form, { kind: one.type, "webhook-url": url ? "" : one.url, "webhook-url-secret": url, "webhook-secret": one.secret?.$secret, "slack-url": url });
  put(form, { "email-host": one.host, "email-port": one.port, "email-tls": one.tls ?? "starttls", "email-user": one.user });
  put(form, { "email-password": one.password?.$secret, "email-from": one.from, "email-to": one.to });
  put(form, { [`${one.type}-ca`]: one.ca_file });
}

// Of what it is told: the rules that there are, and those that one would begin with.
function offer(document, target) {
  const whens = Object.values(document.rules).map((one) => one.when);
  const standard = Object.entries(STANDARD).filter(([name, one]) => !(name in document.rules) && !whens.includes(one.when));
  const offered = [...Object.entries(document.rules), ...standard].map(([name, one]) => {
    const tick = make("input", { type: "checkbox", checked: (one.to ?? []).includes(target) });
    const about = [name in document.rules ? name : "", one.datasources?.join(", ")].filter(Boolean).join(": ");
    const item = make("li", {}, make("label", {}, tick, ` ${WHENS[one.when]}`));
    Object.assign(item.dataset, { rule: name, option: name, when: one.when });
    if ("above" in one || one.when === "dead_letters") {
      const above = make("input", { value: one.above ?? 0, className: "short", ariaLabel: `${WHENS[one.when]}, of rule ${name}` });
      if (one.when === "dead_letters") Object.assign(above, { type: "number", min: 0 });
      above.dataset.above = "";
      item.append(" ", above);
    }
    if (about) item.append(" ", make("span", { className: "muted", textContent: about }));
    const wrong = make("small", { className: "bad" });
    wrong.dataset.wrong = "";
    item.append(wrong);
    return item;
  });
  find("offered").replaceChildren(...offered);
}

// The rules as they are ticked. One that would tell nobody goes.
function ticked(rules, target, before) {
  const found = { ...rules };
  for (const item of find("offered").children) {
    const { rule: name, when } = item.dataset;
    const isTold = item.querySelector("input[type=checkbox]").checked;
    const above = item.querySelector("[data-above]")?.value;
    const one = found[name] ?? (isTold ? { ...STANDARD[name], to: [] } : null);
    if (!one) continue;
    const to = (one.to ?? []).filter((each) => each !== before && each !== target);
    found[name] = { ...one, to: isTold ? [...to, target] : to };
    if (isTold && above !== undefined) found[name].above = when === "dead_letters" ? Number(above) : above.trim();
    if (!found[name].to.length) delete found[name];
  }
  return found;
}

const lost = (before, after) => Object.keys(before).filter((name) => !(name in after));

async function editTarget(name) {
  const document = await read();
  if (!document) return;
  const form = find("target-form");
  form.reset();
  if (name) fill(form, document.targets[name] ?? { type: "webhook" });
  offer(document, name);
  open(find("target-panel"), name, name ? `Change ${name}` : "Somebody to tell");
}

async function saveTarget(form) {
  const document = await read();
  const name = form.elements.name.value.trim();
  if (!document) return;
  if (name !== was && name in document.targets) return failed(blame(form, [{ path: "x", message: "is taken by another target" }], "x")[0] ?? "The name is taken.");
  const rules = ticked(document.rules, name, was);
  const gone = lost(document.rules, rules);
  if (gone.length && !(await ask({ title: "Rules that tell nobody are deleted", lines: gone, verb: "Save", grave: true }))) return;
  delete document.targets[was];
  for (const one of Object.values(rules)) one.to = one.to.map((each) => (each === was ? name : each));
  const changed = { targets: { ...document.targets, [name]: targetOf(form) }, rules };
  await write(form, changed, `notifications.targets.${name}`, `${name} is saved. Test it, so that you know that it is reached.`);
}

// Rules.

function ruleOf(form) {
  const fields = form.elements;
  const when = fields.kind.value;
  const checked = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((one) => one.value);
  const of = when === "node_lost" ? {} : { datasources: lines(fields.datasources.value), labels: lines(fields.labels.value) };
  const limits = { health: { health: checked("health") }, dead_letters: { above: Number(fields["above-letters"].value || 0) }, lag: { above: fields["above-lag"].value.trim() } };
  return { ...given({ when, ...limits[when], ...of, for: fields.for.value.trim() }), to: checked("to") };
}

async function editRule(name) {
  const document = await read();
  if (!document) return;
  const form = find("rule-form");
  form.reset();
  const one = document.rules[name] ?? { when: "health" };
  put(form, { kind: one.when, datasources: one.datasources, labels: one.labels, for: one.for });
  put(form, { [one.when === "lag" ? "above-lag" : "above-letters"]: one.above });
  for (const tick of form.querySelectorAll("input[name=health]")) tick.checked = (one.health ?? ["error", "no_node"]).includes(tick.value);
  find("to").replaceChildren(...Object.keys(document.targets).map((target) => {
    const tick = make("input", { type: "checkbox", name: "to", value: target, checked: (one.to ?? []).includes(target) });
    return make("label", {}, tick, ` ${target}`);
  }));
  open(find("rule-panel"), name, name ? `Change the rule ${name}` : "A rule");
}

async function saveRule(form) {
  const document = await read();
  const name = form.elements.name.value.trim();
  if (!document) return;
  if (name !== was && name in document.rules) return failed(`There is a rule ${name} already.`);
  delete document.rules[was];
  const changed = { ...document, rules: { ...document.rules, [name]: ruleOf(form) } };
  await write(form, changed, `notifications.rules.${name}`, `The rule ${name} is saved.`);
}

// Deleting.

async function drop(kind, name) {
  const document = await read();
  if (!document) return;
  const rules = { ...document.rules };
  if (kind === "rules") delete rules[name];
  else for (const [rule, one] of Object.entries(rules)) {
    rules[rule] = { ...one, to: one.to.filter((each) => each !== name) };
    if (!rules[rule].to.length) delete rules[rule];
  }
  const targets = { ...document.targets };
  if (kind === "targets") delete targets[name];
  const gone = kind === "targets" ? lost(document.rules, rules).map((rule) => `the rule ${rule}, which tells nobody else`) : [];
  if (!(await ask({ title: `Delete ${name}?`, lines: gone, verb: "Delete", grave: true }))) return;
  const isLast = !Object.keys(targets).length && !Object.keys(rules).length;
  const answer = isLast ? await call("DELETE", `${PATH}?over=${version}`) : await call("PUT", `${PATH}?over=${version}`, { targets, rules });
  if (!answer.ok) return failed(problem(answer.said));
  told(`${name} is deleted.`);
  look();
}

const DOES = { target: editTarget, rule: editRule, "drop-target": (name) => drop("targets", name), "drop-rule": (name) => drop("rules", name) };

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-does]");
  if (button?.dataset.does === "cancel") close(button.form);
  else if (button) DOES[button.dataset.does](button.dataset.of ?? "");
});
document.addEventListener("change", (event) => event.target.name === "kind" && choose(event.target.form));
document.addEventListener("submit", async (event) => {
  const save = { "target-form": saveTarget, "rule-form": saveRule }[event.target.id];
  if (!save) return;
  event.preventDefault();
  const button = event.target.querySelector("[type=submit]");
  button.disabled = true;
  await save(event.target);
  button.disabled = false;
});
