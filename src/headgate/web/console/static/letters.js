// What is done to dead letters, apart from what `act.js` does by itself: a dry run is shown, an edited record is saved,
// and what a replay comes to is told. The pages themselves are kept fresh by `again.js`.

import { call, failed, problem, told } from "./act.js";
import { look } from "./again.js";
import { parse } from "./exact.js";
import { count } from "./format.js";

const MOST_LINES = 20;

const find = (id) => document.getElementById(id);
const letters = (number) => `${count(number)} letter${number === 1 ? "" : "s"}`;

function text(done) {
  if (done.letters === undefined) return "";
  const left = (done.left_alone ?? []).map((one) => `${count(one.letters)} left alone: ${one.reason}.`);
  if (done.before === undefined) return `${letters(done.letters)} discarded.`;
  let said = `${letters(done.letters)} will be replayed.`;
  if (!done.letters) said = "Nothing to replay.";
  else if (done.waits) said = `${letters(done.letters)} to replay, but not now: ${done.waits}.`;
  return [said, ...left].join(" ");
}

document.addEventListener("acted", ({ detail }) => {
  const said = text(detail ?? {});
  if (said) told(said);
});

// A dry run.

function line(name, content) {
  const element = document.createElement(name);
  element.textContent = content;
  return element;
}

function fate(one) {
  const where = one.field ? ` at ${one.field}` : "";
  return one.outcome === "dead_lettered" ? `${one.place}: fails again${where}: ${one.reason}` : `${one.place}: ${one.outcome}`;
}

function shown(done) {
  const dry = done.dry_run;
  const how = dry.is_rehearsed ? "tried in the sink, and taken back" : "mapped, without the sink";
  const parts = [line("h2", `With version ${dry.version}: ${count(dry.written)} written, ${count(dry.filtered)} filtered, ${count(dry.dead_lettered)} fail again`), line("p", `${letters(dry.letters.length)} ${how}. Nothing has changed.`)];
  if (dry.trouble) parts.push(line("p", dry.trouble));
  const list = document.createElement("ul");
  list.append(...dry.letters.slice(0, MOST_LINES).map((one) => line("li", fate(one))));
  parts.push(list, ...(done.left_alone ?? []).map((one) => line("p", `${count(one.letters)} left alone: ${one.reason}`)));
  if (dry.is_cut || dry.letters.length > MOST_LINES) parts.push(line("p", "There are more."));
  return parts;
}

async function rehearse(button) {
  const [method, path] = button.dataset.path.split(" ");
  button.disabled = true;
  const body = { ...JSON.parse(button.dataset.dry), overwrite: find("overwrite")?.checked ?? false };
  const answer = await call(method, path, body);
  button.disabled = false;
  if (!answer.ok) return failed(problem(answer.said));
  find("dry").replaceChildren(...shown(answer.said));
  find("dry").hidden = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-dry]");
  if (button) rehearse(button);
});

// An edited record.

async function save(form, isReplayed) {
  let payload;
  try {
    payload = parse(find("payload").value);
  } catch (error) {
    return failed(`The payload is not JSON: ${error.message}`);
  }
  const [method, path] = form.dataset.put.split(" ");
  const answer = await call(method, path, { payload });
  if (!answer.ok) return failed(problem(answer.said));
  told("The record was changed.");
  if (isReplayed) find("replay").requestSubmit();
  return look();
}

document.addEventListener("submit", (event) => {
  if (event.target.id !== "edit-form") return;
  event.preventDefault();
  save(event.target, event.submitter?.value === "replay");
});
