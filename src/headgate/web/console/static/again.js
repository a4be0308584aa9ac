// A page that stays fresh: the node sends what its `main` has become whenever that has changed (`console/live.py`). What an
// action has changed is asked for at once.

import { setLink } from "./link.js";
import { follow } from "./live.js";

// A reader who has selected something, or is on a link, keeps it: a page that has not changed is left alone. So does
// one who writes: elements marked `data-keep` stay as they are, as long as the page has them.
function show(text) {
  const whole = `<main id="main" tabindex="-1">${text}</main>`;
  const fresh = new DOMParser().parseFromString(whole, "text/html").getElementById("main");
  const main = document.getElementById("main");
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

// A page that is not there any more, or not for this reader, is loaded as a whole.
const stream = follow(() => location.pathname + location.search, {
  data: ({ status, main }) => (status === 200 ? show(main) : location.reload()),
  open: () => setLink("live"),
  link: setLink,
  denied: () => location.reload(),
  refused: () => location.reload(),
});

// What is sent from now on was drawn after this was called.
export const look = () => stream.again();

document.addEventListener("acted", look);
