// How figures and a datasource's state are put into words. `words.py` says the same on the server; keep them alike.

export const HEALTHS = ["error", "degraded", "starting", "stopped", "ok"]; // Worst first.
export const NOTHING = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export function count(number) {
  return number === null || number === undefined ? NOTHING : whole.format(number);
}

export function rate(number) {
  if (number === null) return NOTHING;
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

function why(one) {
  const number = one.published_version;
  if (one.quarantine) return `Quarantined: ${one.quarantine}`;
  if (one.health === "stopped") return number ? "" : "Nothing has been published yet.";
  if (one.error) return `${one.error.cause}: ${one.error.message}`;
  if (one.published_status === "rejected") return `Version ${number} was tried and rejected.`;
  if (one.health === "degraded") return "It runs, but no record came within the expected time.";
  return "";
}

function detail(one) {
  const found = one.published_version === null ? "" : one.detail || "";
  return ["running", "stopped", "not started", one.health].includes(found) ? "" : found;
}

// The cells that change only when the node says so.
export function cells(one) {
  const { published_version: published, running_version: running, metrics } = one;
  return {
    health: one.health,
    detail: detail(one),
    name: one.name,
    route: one.source_type ? `${one.source_type} → ${one.sink_type}` : "",
    version: published ? `v${published}` : NOTHING,
    other_version: running && running !== published ? `v${running} running` : "",
    draft: one.has_draft ? "draft" : "",
    total: count(metrics.records_out),
    lag: span(metrics.lag_s),
    node: one.node ?? NOTHING,
    why: why(one),
  };
}

export function headline(counts) {
  const total = HEALTHS.reduce((sum, health) => sum + counts[health], 0);
  const wrong = counts.error + counts.degraded;
  if (!total) return "Nothing to run yet";
  if (wrong) return `${count(wrong)} of ${count(total)} ${wrong === 1 ? "needs" : "need"} attention`;
  if (counts.starting) return `${count(counts.starting)} of ${count(total)} starting`;
  return counts.ok ? "All is well" : "All is stopped";
}
