// Search in the browser. The texts are loaded when somebody first wants to search.
(() => {
  "use strict";

  const MOST = 30; // More nobody reads: another word helps sooner.
  const AROUND = 70; // Characters of text before and after what was found.
  const root = new URL("../", document.currentScript.src);
  const form = document.querySelector(".search");
  const field = document.querySelector("#wanted");
  const list = document.querySelector("#found");
  let loading = null;

  function load() {
    loading ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = new URL("assets/texts.js", root);
      script.addEventListener("load", () => done(prepare(globalThis.headgateTexts)));
      script.addEventListener("error", () => { loading = null; failed(new Error("not loaded")); });
      document.head.append(script);
    });
    return loading;
  }

  function prepare({ pages, sections }) {
    return sections.map(([number, anchor, heading, text]) => {
      const [address, title, kind] = pages[number];
      const low = { title: title.toLowerCase(), heading: heading.toLowerCase(), text: text.toLowerCase() };
      return { address, title, kind, anchor, heading, text, low };
    });
  }

  // Every word must be there. A title counts most, then a heading; the beginning of a word more than its middle.
  function worth(section, words) {
    let sum = 0;
    for (const word of words) {
      const { title, heading, text } = section.low;
      const found = 12 * at(title, word) + 6 * at(heading, word) + at(text, word);
      if (!found) return 0;
      sum += found;
    }
    const isRecord = section.kind === "Decisions" || section.kind === "Project";
    return section.anchor ? sum * (isRecord ? 0.5 : 1) : (sum + 3) * (isRecord ? 0.5 : 1);
  }

  function at(text, word) {
    const place = text.indexOf(word);
    if (place < 0) return 0;
    return place === 0 || /[^\p{L}\p{N}]/u.test(text[place - 1]) ? 2 : 1;
  }

  function find(sections, wanted) {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    return sections
      .map((section) => ({ section, words, worth: worth(section, words) }))
      .filter((one) => one.worth > 0)
      .sort((one, other) => other.worth - one.worth)
      .slice(0, MOST);
  }

  function excerpt({ section, words }) {
    const places = words.map((word) => section.low.text.indexOf(word)).filter((place) => place >= 0);
    const middle = places.length ? Math.min(...places) : 0;
    const begin = Math.max(0, middle - AROUND);
    const text = section.text.slice(begin, middle + 2 * AROUND);
    return `${begin ? "… " : ""}${text}${middle + 2 * AROUND < section.text.length ? " …" : ""}`;
  }

  // Text with the words marked. Nothing of it is read as HTML.
  function marked(text, words) {
    const made = document.createElement("span");
    const quoted = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    for (const [number, piece] of text.split(new RegExp(`(${quoted.join("|")})`, "iu")).entries()) {
      const node = number % 2 ? document.createElement("mark") : document.createElement("span");
      node.textContent = piece;
      made.append(node);
    }
    return made;
  }

  function item(one) {
    const link = document.createElement("a");
    const target = new URL(one.section.address, root);
    target.hash = one.section.anchor;
    link.href = target;
    const title = document.createElement("strong");
    const name = one.section.anchor ? `${one.section.title}: ${one.section.heading}` : one.section.title;
    title.append(marked(name, one.words));
    const kind = document.createElement("small");
    kind.textContent = one.section.kind;
    const text = document.createElement("p");
    text.append(marked(excerpt(one), one.words));
    link.append(title, kind, text);
    link.addEventListener("click", close);
    return link;
  }

  function note(text) {
    const made = document.createElement("p");
    made.className = "note";
    made.textContent = text;
    return made;
  }

  function close() {
    list.hidden = true;
  }

  async function show() {
    const wanted = field.value.trim();
    if (!wanted) return close();
    let sections;
    try {
      sections = await load();
    } catch {
      list.replaceChildren(note("The texts could not be loaded."));
      list.hidden = false;
      return undefined;
    }
    if (wanted !== field.value.trim()) return undefined; // Somebody typed on meanwhile.
    const found = find(sections, wanted);
    list.replaceChildren(...(found.length ? found.map(item) : [note(`Nothing has all of: ${wanted}`)]));
    list.hidden = false;
    return undefined;
  }

  function step(event, by) {
    const links = [...list.querySelectorAll("a")];
    if (list.hidden || !links.length) return;
    event.preventDefault();
    const next = links.indexOf(document.activeElement) + by;
    if (next < 0) field.focus();
    else links[Math.min(next, links.length - 1)].focus();
  }

  form.hidden = false;
  field.addEventListener("focus", () => load().catch(() => {}), { once: true });
  field.addEventListener("input", show);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await show();
    list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(input|textarea|select)$/i.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
      field.select();
    } else if (event.key === "Escape" && !list.hidden) {
      close();
      field.focus();
    } else if (event.key === "ArrowDown" && (document.activeElement === field || list.contains(document.activeElement))) {
      step(event, 1);
    } else if (event.key === "ArrowUp" && list.contains(document.activeElement)) {
      step(event, -1);
    }
  });
  document.addEventListener("click", (event) => {
    if (!list.contains(event.target) && !form.contains(event.target)) close();
  });
})();
