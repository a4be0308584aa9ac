// A page without a stream of its own: asks the node for the same page again and again, and shows what has changed.

const EVERY_MS = 2000;
const ANSWER_MS = 6000;

const link = document.getElementById("link");

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function setLink(word) {
  link.dataset.link = word;
  link.querySelector("span").textContent = word;
}

// A reader who has selected something, or is on a link, keeps it: a page that has not changed is left alone.
function show(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  const main = document.getElementById("main");
  if (!fresh) return location.reload();
  if (fresh.innerHTML === main.innerHTML) return;
  const address = document.activeElement?.getAttribute("href");
  main.replaceWith(fresh);
  if (address) [...fresh.querySelectorAll("a")].find((one) => one.getAttribute("href") === address)?.focus();
}

async function look() {
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

for (;;) {
  if (!document.hidden) await look();
  await pause(EVERY_MS);
}
