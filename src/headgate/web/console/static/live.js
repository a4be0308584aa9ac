// A stream of server-sent events that says honestly whether it is alive. The node sends at least a comment every second.
// EventSource hides comments and statuses, so it would call a frozen node alive; reading the stream ourselves does not.

import { parse } from "./exact.js";

const SILENT_MS = 6000;
const RETRIES_MS = [500, 1000, 2000, 3000];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Calls `on.data(value, skew_ms)` for each event, `on.link(word)` when the link changes, `on.denied()` for a 401, and
// `on.refused(problem)` for any other 4xx, after which it is over; `on.open()`, if there is one, when the node has begun
// to answer. `url` is an address, or a function that returns one: what has been seen changes.
// A hidden page lets go of its connection: browsers allow six to a node, over all tabs. Returns what ends it, and what
// asks again at once, of another address.
export function follow(url, on) {
  const stream = { isOver: false, abort: null };
  run(url, on, stream);
  return {
    stop: () => { stream.isOver = true; stream.abort?.abort("stopped"); },
    again: () => stream.abort?.abort("again"),
  };
}

async function run(url, on, stream) {
  let failures = 0;
  while (!stream.isOver) {
    await shown();
    const address = typeof url === "function" ? url() : url;
    const heard = { ...on, data: (...args) => { failures = 0; on.link?.("live"); on.data(...args); } };
    const ended = await read(address, heard, stream);
    if (ended === "hidden" || ended === "again") continue;
    if (ended === "denied") return on.denied?.();
    if (ended === "refused" || stream.isOver) return;
    on.link?.(ended === "unavailable" ? "unavailable" : "reconnecting");
    await pause(RETRIES_MS[Math.min(failures, RETRIES_MS.length - 1)]);
    failures += 1;
  }
}

function shown() {
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

// Reads until the stream ends, and says how it did.
async function read(url, on, stream) {
  const abort = new AbortController();
  stream.abort = abort;
  const hide = () => document.hidden && abort.abort("hidden");
  let timer = 0;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort("silent"), SILENT_MS);
  };
  document.addEventListener("visibilitychange", hide);
  try {
    heard();
    const response = await fetch(url, { headers: { accept: "text/event-stream" }, signal: abort.signal });
    if (response.status === 401 || response.status === 403) return "denied";
    if (response.status >= 400 && response.status < 500 && response.status !== 429) {
      on.refused?.(await response.json().catch(() => ({})));
      return "refused";
    }
    if (!response.ok) return response.status === 503 ? "unavailable" : "broken";
    on.open?.();
    const skew_ms = Date.parse(response.headers.get("date")) - Date.now() || 0;
    await events(response.body, heard, (data) => {
      const value = parse(data);
      if (!abort.signal.aborted) queueMicrotask(() => on.data(value, skew_ms)); // A mistake in there is no fault of the link, and must be seen.
    });
    return "over";
  } catch {
    return abort.signal.aborted ? abort.signal.reason : "broken";
  } finally {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", hide);
    abort.abort("over");
  }
}

async function events(body, heard, act) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const blocks = (rest + value.replaceAll("\r", "")).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      const text = data.join("\n");
      if (text) act(text); // As the standard has it, an event without data is none.
    }
  }
}
