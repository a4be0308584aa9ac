// A page without a live stream: asks the node for the same page again and again, and shows what has changed. What an
// action has changed is asked for at once.

import { setLink } from "./link.js";

const EVERY_MS = 2000;
const ANSWER_MS = 6000;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// A reader who has selected something, or is on a link, keeps it: a page that has not changed is left alone. So does
// one who writes: elements marked `data-keep` stay as they are, as long as the page has them.
function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  const main = document.getElementById("main");
  if (!fresh) return location.reload();
  if (fresh.innerHTML === main.innerHTML) return;
  const active = document.activeElement;
  const again = active && main.contains(active) ? twin(active) : null;
  for (const kept of main.querySelectorAll("[data-keep]")) fresh.querySelector(`#${kept.id}`)?.replaceWith(kept);
  main.replaceWith(fresh);
  document.dispatchEvent(new Event("shown"));
  if (again) (fresh.contains(active) ? active : fresh.querySelector(again))?.focus();
}

// How the same element is found in the next page.
function twin(element) {
  if (element.id) return `#${element.id}`;
  if (element.dataset.act) return `[data-act="${CSS.escape(element.dataset.act)}"]`;
  if (element.dataset.do) return `[data-do="${element.dataset.do}"]`;
  const address = element.getAttribute("href");
  return address && `a[href="${CSS.escape(address)}"]`;
}

export async function look() {
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(ANSWER_MS) });
    if ([401, 404].includes(answer.status)) return location.reload();
    if (!answer.ok) return setLink("unavailable");
    show(await answer.text());
    setLink("live");
  } catch {
    setLink("reconnecting");
  }
}

async function follow() {
  for (;;) {
    if (!document.hidden) await look();
    await pause(EVERY_MS);
  }
}

document.addEventListener("acted", look);
follow();
