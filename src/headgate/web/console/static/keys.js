// Keys, on every page. What they do is declared in HTML:
//
//   /          goes to the field with `data-search`; Escape empties it, then leaves it.
//   g and a letter   follows the link with `data-go="letter"` (the navigation has them).
//   j k, ↓ ↑   move over the elements with `data-row`, of which one is in the tab order.
//   Enter      on a row opens the first link in it.
//   a letter   presses the visible button or link with `data-key="letter"`; its text says what it does.
//   ?          shows all of these.

const WAIT_MS = 1500; // For the second key.

let prefix_ms = 0;
let current = null;

const isSeen = (element) => element.checkVisibility?.() ?? element.offsetParent !== null;
const rows = () => [...document.querySelectorAll("[data-row]")].filter(isSeen);
const search = () => document.querySelector("[data-search]");
const isWriting = (element) => element.matches?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");

// Rows.

export function setCurrent(row) {
  if (current) current.tabIndex = -1;
  if (row) row.tabIndex = 0;
  current = row;
}

function move(step) {
  const list = rows();
  const at = list.indexOf(document.activeElement);
  const next = at < 0 ? list[0] : list[Math.min(Math.max(at + step, 0), list.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
  return Boolean(next);
}

function open(row) {
  const link = row.querySelector("a[href]");
  link?.click();
  return Boolean(link);
}

// One row is in the tab order, and the others are reached from it.
export function refresh() {
  if (!current?.isConnected || !isSeen(current)) setCurrent(rows()[0] ?? null);
}

// What keys there are.

function help() {
  if (document.querySelector("dialog[open]")) return;
  const known = [["/", "search", search()], ["j  k", "next row, the row before", rows()[0]], ["Enter", "open the row", rows()[0]]];
  const pairs = known.filter(([, , there]) => there).map(([key, text]) => [key, text]);
  for (const link of document.querySelectorAll("[data-go]")) pairs.push([`g  ${link.dataset.go}`, link.textContent.trim()]);
  for (const one of document.querySelectorAll("[data-key]")) pairs.push([one.dataset.key, one.textContent.trim()]);
  const dialog = document.createElement("dialog");
  dialog.className = "ask help";
  dialog.setAttribute("aria-label", "Keys");
  const heading = document.createElement("h2");
  heading.textContent = "Keys";
  const list = document.createElement("dl");
  for (const [key, text] of [...pairs, ["?", "these keys"], ["Esc", "close"]]) {
    const name = document.createElement("dt");
    const what = document.createElement("dd");
    for (const one of key.split("  ")) name.append(Object.assign(document.createElement("kbd"), { textContent: one }), " ");
    what.textContent = text;
    list.append(name, what);
  }
  const close = Object.assign(document.createElement("button"), { textContent: "Close", className: "quiet" });
  close.addEventListener("click", () => dialog.close());
  dialog.append(heading, list, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function go(letter) {
  const link = [...document.querySelectorAll("[data-go]")].find((one) => one.dataset.go === letter);
  link?.click();
  return Boolean(link);
}

function press(letter) {
  const one = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === letter && isSeen(each));
  one?.click();
  return Boolean(one);
}

function inSearch(event, field) {
  if (event.key === "ArrowDown") return move(1);
  if (event.key !== "Escape") return false;
  if (field.value) {
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  } else field.blur();
  return true;
}

function plain(event) {
  const onRow = event.target.matches?.("[data-row]");
  switch (event.key) {
    case "/":
      search()?.focus();
      return Boolean(search());
    case "?":
      help();
      return true;
    case "g":
      prefix_ms = Date.now();
      return true;
    case "j":
      return move(1);
    case "k":
      return move(-1);
    case "ArrowDown":
      return onRow && move(1);
    case "ArrowUp":
      return onRow && move(-1);
    case "Enter":
      return onRow && open(event.target);
    default:
      return press(event.key);
  }
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
  if (event.target === search()) return inSearch(event, event.target);
  if (isWriting(event.target) || document.querySelector("dialog[open]")) return false;
  const isSecond = Date.now() - prefix_ms < WAIT_MS;
  prefix_ms = 0;
  return isSecond ? go(event.key) : plain(event);
}

document.addEventListener("keydown", (event) => pressed(event) && event.preventDefault());
document.addEventListener("focusin", (event) => event.target.matches?.("[data-row]") && setCurrent(event.target));
document.addEventListener("click", (event) => {
  const row = event.target.closest("[data-row]");
  if (row && !event.target.closest("a, button, input, label") && !String(getSelection())) open(row);
});
document.addEventListener("shown", refresh);
refresh();
