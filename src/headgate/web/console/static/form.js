// A form made from a JSON Schema, for one document that is shared with others who change it:
//
//   const form = new Form(schema, { get: () => document, changed: () => …, secrets: ["warehouse"] });
//   element.append(form.side("source"), form.object("mapping"), form.options([...]));
//   form.blame(problems);       // Shows each problem at its field; returns those that have none.
//
// Fields write into the document by their path and leave everything else as it is: what the form cannot show stays. What
// is empty is left out of the document. Secrets are chosen by name.

import { number, parse, shown } from "./exact.js";

const SECRET = "#/$defs/secret";

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function at(value, path) {
  return path.reduce((found, key) => (found !== null && typeof found === "object" ? found[key] : undefined), value);
}

// Writes a value at its path; what becomes empty by it goes, except a side's own mapping.
export function put(value, path, wanted) {
  const [first, ...rest] = path;
  if (!rest.length) {
    if (wanted === undefined) delete value[first];
    else value[first] = wanted;
    return;
  }
  if (value[first] === null || typeof value[first] !== "object") {
    if (wanted === undefined) return;
    value[first] = {};
  }
  put(value[first], rest, wanted);
  if (wanted === undefined && !Object.keys(value[first]).length && !["source", "sink"].includes(first)) delete value[first];
}

export class Form {
  constructor(schema, { get, changed, secrets = [] }) {
    this.schema = schema;
    this.get = get;
    this.changed = changed;
    this.secrets = secrets;
    this.fields = new Map(); // By path, its line for what is wrong and its control.
  }

  definition(name) {
    return this.schema.$defs[name];
  }

  // The options of a source's or a sink's connector.
  side(side) {
    const type = at(this.get(), [side, "type"]);
    const found = this.definition(`${side}-${type}`);
    return found ? this.members(found, [side]) : make("p", { className: "muted", textContent: `There is no ${side} of the type ${type}.` });
  }

  mapping() {
    return this.members(this.definition("mapping"), ["mapping"], ["where", "set", "key"]);
  }

  options() {
    const names = ["description", "labels", "streams", "on_error", "expect", "dead_letters", "assignment"];
    const whole = this.definition("datasource");
    const properties = Object.fromEntries(names.filter((name) => whole.properties[name]).map((name) => [name, whole.properties[name]]));
    return this.members({ properties, required: [] }, []);
  }

  // Required and filled fields are shown; the others wait in a disclosure.
  members(schema, path, first = []) {
    const box = make("div", { className: "fields" });
    const rest = make("div", { className: "fields" });
    const needed = [...(schema.required ?? []), ...first];
    for (const [name, one] of Object.entries(schema.properties ?? {})) {
      if (name === "type" && path.length === 1) continue;
      const here = [...path, name];
      const isShown = needed.includes(name) || at(this.get(), here) !== undefined;
      (isShown ? box : rest).append(this.field(name, one, here, (schema.required ?? []).includes(name)));
    }
    if (rest.children.length) {
      const more = make("details", { className: "more-options" }, make("summary", { textContent: "More options" }), rest);
      box.append(more);
    }
    return box;
  }

  resolve(schema) {
    if (schema.$ref === SECRET) return { kind: "secret" };
    if (schema.$ref) return this.resolve(this.schema.$defs[schema.$ref.split("/").pop()]);
    if (schema.anyOf || schema.oneOf) {
      const options = (schema.anyOf ?? schema.oneOf).filter((one) => one.type !== "null");
      if (options.some((one) => one.$ref === SECRET)) return { kind: "secret", plain: options.find((one) => one.$ref !== SECRET) };
      return options.length === 1 ? this.resolve(options[0]) : this.several(options.map((one) => this.resolve(one)));
    }
    if (schema.enum) return { kind: "choice", choices: schema.enum };
    if (schema.writeOnly || schema.format === "password") return { kind: "secret" };
    const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
    if (type === "object" && schema.properties) return { kind: "object", schema };
    if (type === "object") return { kind: "pairs" };
    if (type === "array" && this.resolve(schema.items ?? {}).kind === "text") return { kind: "list" };
    if (type === "boolean") return { kind: "choice", choices: [true, false] };
    if (type === "integer" || type === "number") return { kind: "number", schema };
    return { kind: type === "string" ? "text" : "json" };
  }

  several(kinds) {
    const names = kinds.map((one) => one.kind);
    if (names.includes("secret")) return { kind: "secret" };
    if (names.includes("text") && names.every((name) => ["text", "list"].includes(name))) return { kind: names.includes("list") ? "list" : "text" };
    return { kind: "json" };
  }

  field(name, schema, path, isRequired) {
    const found = this.resolve(schema);
    const key = path.join(".");
    const id = `field-${key.replaceAll(/[^\w-]/g, "-")}`;
    const wrong = make("p", { className: "problem", id: `${id}-wrong` });
    const note = schema.description ?? "";
    const fallback = schema.default !== undefined && schema.default !== null && schema.default !== "" && typeof schema.default !== "object" ? `Default: ${schema.default}.` : "";
    const help = make("small", { id: `${id}-help`, textContent: [note, fallback].filter(Boolean).join(" ") });
    if (found.kind === "object") {
      const group = make("fieldset", { className: "group" }, make("legend", { textContent: name }), help, this.members(found.schema, path), wrong);
      this.fields.set(key, { wrong });
      return group;
    }
    const control = this[found.kind](found, path, id, isRequired);
    const target = control.matches("input, select, textarea") ? control : control.querySelector("input, select, textarea");
    if (target) {
      target.id = id;
      target.setAttribute("aria-describedby", `${id}-help ${id}-wrong`);
      if (isRequired) target.required = true;
    }
    this.fields.set(key, { wrong, control: target });
    const label = make("label", { textContent: isRequired ? `${name} *` : name });
    label.htmlFor = id;
    return make("div", { className: "field" }, label, control, help, wrong);
  }

  write(path, value) {
    put(this.get(), path, value);
    this.changed();
  }

  // Kinds of fields.

  text(found, path) {
    const value = at(this.get(), path);
    const input = make("input", { value: value === undefined ? "" : String(value), autocomplete: "off", spellcheck: false });
    input.addEventListener("input", () => this.write(path, input.value === "" ? undefined : input.value));
    return input;
  }

  number(found, path) {
    const input = make("input", { type: "number", value: shown(at(this.get(), path)) ?? "", step: "any" });
    input.addEventListener("input", () => {
      const value = input.value === "" ? undefined : number(input.value);
      const isRounded = input.value !== "" && value === undefined;
      input.setCustomValidity(isRounded ? "This browser would round this number: write it in the YAML." : "");
      if (isRounded) input.reportValidity();
      else this.write(path, value);
    });
    return input;
  }

  choice(found, path) {
    const value = at(this.get(), path);
    const options = ["", ...found.choices].map((one) => new Option(one === "" ? "–" : String(one), JSON.stringify(one), false, one === (value ?? "")));
    const select = make("select", {}, ...options);
    select.addEventListener("change", () => {
      const wanted = JSON.parse(select.value);
      this.write(path, wanted === "" ? undefined : wanted);
    });
    return select;
  }

  secret(found, path, id, isRequired) {
    const value = at(this.get(), path);
    const named = value?.$secret ?? "";
    const names = [...new Set([...this.secrets, named].filter(Boolean))];
    const options = names.map((one) => new Option(`secret ${one}`, one, false, one === named));
    const select = make("select", {}, new Option(isRequired ? "Choose a secret" : "–", ""), ...options);
    select.value = named;
    select.addEventListener("change", () => this.write(path, select.value ? { $secret: select.value } : undefined));
    if (typeof value !== "string") return select;
    const input = this.text(found, path);
    return input;
  }

  list(found, path) {
    const value = at(this.get(), path);
    const text = Array.isArray(value) ? value.join(", ") : value ?? "";
    const input = make("input", { value: text, autocomplete: "off", spellcheck: false, placeholder: path.at(-1) === "key" ? "id" : "one, two" });
    input.addEventListener("input", () => {
      const words = input.value.split(",").map((one) => one.trim()).filter(Boolean);
      this.write(path, words.length > 1 || Array.isArray(value) || path.at(-1) !== "key" ? (words.length ? words : undefined) : words[0]);
    });
    return input;
  }

  pairs(found, path) {
    const rows = make("div", { className: "pairs" });
    const read = () => {
      const pairs = [...rows.querySelectorAll(".pair")].map((row) => [...row.querySelectorAll("input")].map((one) => one.value));
      const kept = pairs.filter(([name]) => name.trim());
      const value = Object.fromEntries(kept.map(([name, text]) => [name.trim(), text]));
      this.write(path, kept.length ? value : undefined);
    };
    const add = (name = "", text = "") => {
      const inputs = [[name, "name"], [text, "value or expression"]].map(([value, label]) => {
        const input = make("input", { value: typeof value === "string" ? value : JSON.stringify(value), placeholder: label, autocomplete: "off", spellcheck: false });
        input.setAttribute("aria-label", `${path.join(".")}: ${label}`);
        input.addEventListener("input", read);
        return input;
      });
      const remove = make("button", { type: "button", className: "quiet", textContent: "Remove" });
      remove.setAttribute("aria-label", `Remove ${name || "this field"}`);
      const row = make("div", { className: "pair" }, ...inputs, remove);
      remove.addEventListener("click", () => {
        row.remove();
        read();
      });
      rows.insertBefore(row, more);
      return inputs[0];
    };
    const more = make("button", { type: "button", className: "plain", textContent: "Add a field" });
    more.addEventListener("click", () => add().focus());
    rows.append(more);
    for (const [name, text] of Object.entries(at(this.get(), path) ?? {})) add(name, text);
    return rows;
  }

  json(found, path) {
    const value = at(this.get(), path);
    const area = make("textarea", { value: value === undefined ? "" : JSON.stringify(value, null, 2), rows: 3, spellcheck: false, placeholder: "JSON" });
    area.addEventListener("input", () => {
      try {
        this.write(path, area.value.trim() ? parse(area.value) : undefined);
        area.removeAttribute("aria-invalid");
      } catch {
        area.setAttribute("aria-invalid", "true");
      }
    });
    return area;
  }

  // What is wrong, at its field or at the nearest one above it.
  blame(problems) {
    for (const { wrong, control } of this.fields.values()) {
      wrong.textContent = "";
      control?.removeAttribute("aria-invalid");
    }
    return problems.filter((one) => {
      const parts = one.path.split(".");
      while (parts.length && !this.fields.has(parts.join("."))) parts.pop();
      const field = this.fields.get(parts.join("."));
      if (!field?.wrong.isConnected) return true;
      const rest = one.path.slice(parts.join(".").length).replace(/^\./, "");
      field.wrong.textContent = [field.wrong.textContent, [rest, one.message].filter(Boolean).join(" ") + (one.hint ? ` (${one.hint})` : "")].filter(Boolean).join("; ");
      field.control?.setAttribute("aria-invalid", "true");
      field.wrong.closest("details")?.setAttribute("open", "");
      return false;
    });
  }
}
