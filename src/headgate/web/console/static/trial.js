// The test of a document: what would become of each record, before and after, next to what is published. Records and
// reasons are only ever text.
//
//   const trial = new Trial(element, { name: () => "orders", document: () => ({…}), seen: (tested) => …, saves: true });
//   trial.run()   // Or its button.

import { call, failed, problem, told } from "./act.js";

const OUTCOMES = { written: "ok", filtered: "stopped", dead_lettered: "error" };

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

export class Trial {
  constructor(element, { name, document: given, seen = () => {} }) {
    this.element = element;
    this.name = name;
    this.given = given;
    this.seen = seen;
    this.results = element.querySelector("[data-results]");
    this.button = element.querySelector("[data-run]");
    this.form = element.querySelector("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.elements.with?.addEventListener("change", () => this.choose());
    this.choose();
  }

  choose() {
    const how = this.form.elements.with?.value ?? "payload";
    for (const part of this.form.querySelectorAll("[data-with]")) part.hidden = part.dataset.with !== how;
  }

  asked() {
    const fields = this.form.elements;
    const how = fields.with?.value ?? "payload";
    const body = { document: this.given() };
    if (how === "payload") body.payload = fields.payload.value;
    else if (how === "fixture") body.fixture = fields.fixture.value;
    else body[how] = Number(fields.number.value || 1);
    if (fields.rollback?.checked) body.sink = "rollback";
    if (fields.save?.value.trim()) body.save = fields.save.value.trim();
    return body;
  }

  async run() {
    this.button.disabled = true;
    this.button.ariaBusy = "true";
    this.results.replaceChildren(make("p", { className: "muted", textContent: "Testing, in a process that can change nothing…" }));
    const document = JSON.stringify(this.given());
    const answer = await call("POST", `/api/datasources/${encodeURIComponent(this.name())}/test`, this.asked());
    this.button.disabled = false;
    this.button.ariaBusy = "false";
    if (!answer.ok) {
      this.results.replaceChildren(make("p", { className: "problem", textContent: problem(answer.said) }));
      return failed(problem(answer.said));
    }
    this.draw(answer.said);
    if (answer.said.saved) told(`Kept as the fixture ${answer.said.saved}.`);
    this.seen(answer.said, document);
  }

  draw(found) {
    const parts = [`${found.read} read`, `${found.written} written`, `${found.filtered} filtered`, `${found.dead_lettered} dead-lettered`];
    const head = make("p", { className: "sums" }, make("b", { textContent: parts.join(", ") }), ` in ${Math.round(found.figures.took_ms)} ms`);
    const list = make("div", { className: "results" }, head);
    if (found.trouble) list.append(make("p", { className: "problem", textContent: found.trouble + (found.hint ? ` (${found.hint})` : "") }));
    for (const one of found.warnings) list.append(make("p", { className: "caution", textContent: [one.place, one.message].filter(Boolean).join(": ") }));
    for (const record of found.records) list.append(...this.record(record));
    for (const line of found.logs) list.append(make("p", { className: "muted", textContent: `${line.level}: ${line.text}` }));
    if (found.is_cut) list.append(make("p", { className: "muted", textContent: "There was more than is shown." }));
    this.results.replaceChildren(list);
  }

  record(record) {
    return (record.results.length ? record.results : [{ outcome: "filtered", after: null }]).map((result) => {
      const status = make("p", { className: "status" }, make("i", { className: "mark" }), make("b", { textContent: result.outcome.replace("_", " ") }));
      if (result.reason) status.append(make("span", { className: "problem", textContent: ` ${[result.stage, result.field, result.reason].filter(Boolean).join(": ")}` }));
      const before = make("div", {}, make("small", { textContent: "before" }), make("pre", { textContent: pretty(record.before) }));
      const after = make("div", {}, make("small", { textContent: result.is_delete ? "deletes the row" : "after" }), make("pre", { textContent: result.outcome === "written" ? pretty(result.after) : "–" }));
      const item = make("div", { className: "result" }, status, make("div", { className: "both" }, before, after));
      for (const one of record.changes) item.append(make("p", { className: "muted", textContent: `${one.place}: ${pretty(one.before)} → ${pretty(one.after)}, next to what is published` }));
      item.dataset.health = OUTCOMES[result.outcome] ?? "stopped";
      return item;
    });
  }
}
