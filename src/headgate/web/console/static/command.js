// Commands to copy: `<code data-command>headgate ds stop orders</code>` gets a button that copies its text. Pages that
// draw some later call `dress(element)`, or dispatch the event `shown` on the document.

import { failed, told } from "./act.js";

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    told("Copied.");
  } catch {
    failed("The browser does not let this page copy; select the text instead."); // As over plain HTTP on a network.
  }
}

export function dress(within = document) {
  for (const code of within.querySelectorAll("code[data-command]:not([data-dressed])")) {
    code.dataset.dressed = "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${code.textContent}`);
    button.addEventListener("click", () => copy(code.textContent));
    code.after(button);
  }
}

document.addEventListener("shown", () => dress());
dress();
