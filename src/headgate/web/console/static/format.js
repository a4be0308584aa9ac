// How figures and a datasource's state are put into words. `words.py` says the same on the server; keep them alike.

// Worst first.
export const HEALTHS = ["error", "no_node", "degraded", "starting", "paused", "stopped", "unpublished", "ended", "ok"];
export const ALARMING = ["error", "no_node", "degraded"];
export const HEALTH_WORDS = { no_node: "no node", unpublished: "not published" };
const RESTING = ["paused", "stopped", "unpublished", "ended", "no_node"];
export const NOTHING = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export function count(number) {
  return number === null || number === undefined ? NOTHING : whole.format(number);
}

export function rate(number) {
  if (number === null || number === undefined) return NOTHING;
  return number > 0 && number < 10 ? tenth.format(Math.max(number, 0.1)) : whole.format(number);
}

function wholeSpan(span_s) {
  for (const [size_s, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (span_s >= 2 * size_s) return `${Math.round(span_s / size_s)} ${unit}`;
  }
  return `${Math.round(span_s)} s`;
}

export function span(span_s) {
  if (span_s === null || span_s === undefined) return NOTHING;
  if (span_s < 0.9995) return `${Math.round(Math.max(span_s, 0) * 1000)} ms`;
  return span_s < 9.95 ? `${span_s.toFixed(1)} s` : wholeSpan(span_s);
}

export function ago(span_s) {
  if (span_s === null) return NOTHING;
  return span_s < 1.5 ? "just now" : `${wholeSpan(span_s)} ago`;
}

export function size(bytes) {
  let number = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (number < 999.5) return `${unit === "B" ? Math.round(number) : number.toFixed(1)} ${unit}`;
    number /= 1000;
  }
  return `${tenth.format(number)} TB`;
}

// Records written in a second, as the node that runs a stream compares its totals. Of what does not run there is none.
export const rateOf = (one) => (RESTING.includes(one.health) ? null : one.metrics.written_per_s ?? null);

// Why it is as it is, and when the next try comes.
export function why(one, unix_s) {
  const at_s = one.error?.next_try_at_s;
  if (!at_s) return one.why;
  const back = one.error.awaits_return ? ", or when that is back" : "";
  return `${one.why}; ${at_s - unix_s >= 0.5 ? `tries again in ${wholeSpan(at_s - unix_s)}${back}` : "tries again now"}`;
}

function detail(one) {
  const found = ["unpublished", "ended", "stopped", "paused"].includes(one.health) ? "" : one.detail || "";
  return ["running", "stopped", "not started", one.health].includes(found) ? "" : found;
}

// The cells that change only when the node says so.
export function cells(one) {
  const { published_version: published, running_version: running, metrics } = one;
  return {
    health: HEALTH_WORDS[one.health] ?? one.health,
    detail: detail(one),
    name: one.name,
    route: one.source_type ? `${one.source_type} → ${one.sink_type}` : "",
    version: published ? `v${published}` : NOTHING,
    other_version: running && running !== published ? `v${running} running` : "",
    labels: (one.labels ?? []).join(" "),
    draft: one.has_draft ? "draft" : "",
    rate: rate(rateOf(one)),
    total: count(metrics.records_written),
    read: metrics.records_read === metrics.records_written ? "" : `${count(metrics.records_read)} read`,
    filtered: metrics.records_filtered ? `${count(metrics.records_filtered)} filtered` : "",
    dead: count(metrics.records_dead_lettered),
    backlog: count(metrics.backlog_records),
    backlog_bytes: metrics.backlog_bytes ? size(metrics.backlog_bytes) : "",
    node: one.node ?? NOTHING,
  };
}

export function headline(counts) {
  const total = HEALTHS.reduce((sum, health) => sum + counts[health], 0);
  const wrong = ALARMING.reduce((sum, health) => sum + counts[health], 0);
  if (!total) return "Nothing to run yet";
  if (wrong) return `${count(wrong)} of ${count(total)} ${wrong === 1 ? "needs" : "need"} attention`;
  if (counts.starting) return `${count(counts.starting)} of ${count(total)} starting`;
  return counts.ok ? "All is well" : "Nothing runs";
}

// What to do next: a button that calls the API's path with this last part, or a link.
export function nextStep(one) {
  const at = `/datasources/${encodeURIComponent(one.name)}`;
  if (one.health === "error" && one.published_status === "rejected") return { label: "See versions", href: `${at}/versions` };
  if (one.health === "error") return { label: one.quarantine ? "Restart" : "Try now", act: "restart" };
  if (one.health === "no_node" || one.health === "degraded") return { label: "See why", href: at };
  if (one.health === "stopped") return { label: "Start", act: "start" };
  if (one.health === "paused") return { label: "Go on", act: "start" };
  if (one.health === "unpublished") return { label: "Edit and publish", href: `${at}/draft` };
  return null;
}
