// Charts as SVG: axes with units, gaps where nothing was reported, a reading by mouse or by keyboard.
//
//   import { chart, spark, perSecond } from "/static/chart.js";        // and <link rel="stylesheet" href="/static/chart.css">
//
//   const found = await (await fetch("/api/datasources/orders/history?range=24h")).json();
//   chart(document.getElementById("rate"), {
//     series: [
//       { name: "read", values: perSecond(found.read, found) },
//       { name: "written", values: perSecond(found.written, found) },
//     ],
//     unit: "per_s",                                                   // count, per_s, seconds, bytes or bytes_per_s
//     range: found,                                                    // has from_s, step_s and points
//     label: "Records",                                                // for those who do not see it
//   });
//   spark(document.querySelector("svg.spark"), item.written);          // of GET /api/history
//
// `values` has a number or null for each point; null is a gap. A call with the same element draws the new data in place
// and keeps the reading. The element is a block of any width, whose text is only ever set as text. The colours are the
// tokens of chart.css: the first four series have them in turn. With the focus on a chart, the arrow keys, Home, End and
// Page keys move the reading, and Escape ends it.

import { NOTHING, count, rate, size, span } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 180;
const EDGE = { top: 10, right: 20, bottom: 24, left: 56 };
const WIDE = 84; // Of a label at the bottom, with its distance to the next.
const TICKS = 4; // On the left.
const COLOURS = 4;
const STEPS_S = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800];

const UNITS = {
  count: { tell: count, steps: [1, 2, 5] },
  per_s: { tell: (number) => (number === null ? NOTHING : `${rate(number)}/s`), steps: [1, 2, 5] },
  seconds: { tell: span, steps: [1, 2, 5], above: [60, [1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440, 2880]] },
  bytes: { tell: (number) => (number === null ? NOTHING : size(number)), steps: [1, 2, 5] },
  bytes_per_s: { tell: (number) => (number === null ? NOTHING : `${size(number)}/s`), steps: [1, 2, 5] },
};

// What was counted in each point, as a rate.
export const perSecond = (values, { step_s }) => values.map((one) => (one === null ? null : one / step_s));

function make(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function block(name, className, ...children) {
  const element = document.createElement(name);
  element.className = className;
  element.append(...children);
  return element;
}

// Scales.

// A round number that is at least this one, times 1, 2 or 5.
function roundUp(least, steps) {
  const power = 10 ** Math.floor(Math.log10(least));
  return (steps.find((step) => step * power >= least * 0.999999) ?? 10) * power;
}

// What a step is at least: counts of things have no half ones, and rates are told in tenths.
const LEAST = { count: 1, per_s: 0.1 };

// From zero to a little above the greatest value, in a few round steps.
export function scaleOf(most, unit) {
  const { steps, above } = UNITS[unit];
  const least = (most > 0 ? most : 1) / TICKS;
  const isLong = above && most > above[0];
  let step = isLong ? (above[1].find((one) => one * above[0] >= least) ?? 0) * above[0] : roundUp(least, steps);
  if (isLong && !step) step = roundUp(least / 86400, steps) * 86400;
  step = Math.max(LEAST[unit] ?? 0, step);
  const number = Math.max(1, Math.ceil((most || step) / step - 1e-9));
  return Array.from({ length: number + 1 }, (_, index) => index * step);
}

// Round times of the reader's own clock, as many as there is room for.
export function timesOf({ from_s, step_s, points }, width) {
  const whole_s = step_s * points;
  const room = Math.max(1, Math.floor(width / WIDE));
  const every_s = STEPS_S.find((one) => whole_s / one <= room) ?? STEPS_S.at(-1);
  const east_s = -60 * new Date(from_s * 1000).getTimezoneOffset();
  const first_s = Math.ceil((from_s + east_s) / every_s) * every_s - east_s;
  const found = [];
  for (let at_s = first_s; at_s <= from_s + whole_s; at_s += every_s) found.push(at_s);
  return found;
}

const two = (number) => String(number).padStart(2, "0");
const clock = (at_s) => {
  const at = new Date(at_s * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}`;
};
const days = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const day = (at_s) => days.format(new Date(at_s * 1000)).replace(",", ""); // Browsers differ in that comma.

// 24:00 is a day's name: charts of a week have nothing else.
const timeText = (at_s) => (clock(at_s) === "00:00" ? day(at_s) : clock(at_s));

function moment(at_s, step_s) {
  return `${day(at_s)}, ${clock(at_s)}${step_s > 60 ? `–${clock(at_s + step_s)}` : ""}`;
}

// Runs of neighbours that are numbers, as [[index, value], …]; a gap ends one.
export function runsOf(values) {
  const runs = [];
  let run = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) run = null;
    else if (run) run.push([index, value]);
    else runs.push((run = [[index, value]]));
  });
  return runs;
}

// The points at which no series has anything: [first, after the last].
function gapsOf(series, points) {
  const gaps = [];
  for (let index = 0; index < points; index += 1) {
    if (series.some(({ values }) => values[index] !== null && values[index] !== undefined)) continue;
    if (gaps.at(-1)?.[1] === index) gaps.at(-1)[1] = index + 1;
    else gaps.push([index, index + 1]);
  }
  return gaps;
}

class Chart {
  #element;
  #data = null;
  #width = 0;
  #at = null; // The point that is read.
  #plot = make("svg", { class: "chart-plot", "aria-hidden": "true" });
  #legend = block("div", "chart-legend");
  #reading = block("div", "chart-reading");

  constructor(element) {
    this.#element = element;
    element.classList.add("chart");
    element.tabIndex = 0;
    element.setAttribute("role", "slider"); // One moves along it, and hears what is there.
    element.replaceChildren(this.#legend, this.#plot, this.#reading);
    this.#reading.hidden = true;
    this.#plot.addEventListener("pointermove", (event) => this.#read(this.#pointAt(event)));
    this.#plot.addEventListener("pointerdown", (event) => this.#read(this.#pointAt(event)));
    this.#plot.addEventListener("pointerleave", () => this.#read(null));
    element.addEventListener("keydown", (event) => this.#press(event));
    element.addEventListener("blur", () => this.#read(null));
    new ResizeObserver(() => this.#draw()).observe(element);
  }

  show(data) {
    this.#data = data;
    this.#width = 0;
    this.#draw();
  }

  // Places.

  #x(index) {
    return EDGE.left + ((index + 0.5) * (this.#width - EDGE.left - EDGE.right)) / this.#data.range.points;
  }

  #edge(index) {
    return EDGE.left + (index * (this.#width - EDGE.left - EDGE.right)) / this.#data.range.points;
  }

  #y(value, most) {
    return HEIGHT - EDGE.bottom - (value * (HEIGHT - EDGE.top - EDGE.bottom)) / most;
  }

  #pointAt(event) {
    const { points } = this.#data.range;
    const across = event.clientX - this.#plot.getBoundingClientRect().left - EDGE.left;
    const index = Math.floor((across * points) / (this.#width - EDGE.left - EDGE.right));
    return Math.min(points - 1, Math.max(0, index));
  }

  // Drawing.

  #draw() {
    const width = Math.max(220, Math.floor(this.#element.clientWidth));
    if (!this.#data || width === this.#width) return;
    this.#width = width;
    const { series, unit, range, label } = this.#data;
    const scale = scaleOf(Math.max(0, ...series.flatMap(({ values }) => values.map((one) => one ?? 0))), unit);
    const most = scale.at(-1);
    this.#plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#plot.setAttribute("width", width);
    this.#plot.setAttribute("height", HEIGHT);
    this.#plot.replaceChildren(
      ...gapsOf(series, range.points).map((gap) => this.#gap(gap)),
      ...scale.flatMap((value) => this.#level(value, most, unit)),
      ...timesOf(range, width - EDGE.left - EDGE.right).flatMap((at_s) => this.#time(at_s)),
      ...series.flatMap((one, index) => this.#line(one, index, most)),
      make("g", { class: "chart-cursor" }),
    );
    this.#legend.replaceChildren(...series.map((one, index) => this.#key(one, index)));
    this.#element.setAttribute("aria-label", `${label ? `${label}: ` : ""}${series.map(({ name }) => name).join(", ")}`);
    this.#element.setAttribute("aria-valuemin", 0);
    this.#element.setAttribute("aria-valuemax", range.points - 1);
    this.#read(this.#at === null ? null : Math.min(this.#at, range.points - 1));
  }

  #gap([first, after]) {
    const x = this.#edge(first);
    const height = HEIGHT - EDGE.top - EDGE.bottom;
    return make("rect", { class: "chart-gap", x, y: EDGE.top, width: this.#edge(after) - x, height });
  }

  #level(value, most, unit) {
    const y = this.#y(value, most);
    const line = make("line", { class: "chart-level", x1: EDGE.left, x2: this.#width - EDGE.right, y1: y, y2: y });
    const place = { class: "chart-text", x: EDGE.left - 8, y: y + 4, "text-anchor": "end" };
    return [line, make("text", place, value ? UNITS[unit].tell(value) : "0")];
  }

  #time(at_s) {
    const { from_s, step_s } = this.#data.range;
    const x = this.#edge((at_s - from_s) / step_s);
    const y = HEIGHT - EDGE.bottom;
    const mark = make("line", { class: "chart-mark", x1: x, x2: x, y1: y, y2: y + 4 });
    const text = timeText(at_s);
    if (x + text.length * 3.4 > this.#width) return [mark]; // There is no room for it.
    return [mark, make("text", { class: "chart-text", x, y: y + 17, "text-anchor": "middle" }, text)];
  }

  // A line for each run; a point without neighbours is a dot. The area below is for a series that stands alone.
  #line({ values }, index, most) {
    const colour = `chart-${(index % COLOURS) + 1}`;
    return runsOf(values.slice(0, this.#data.range.points)).flatMap((run) => {
      const at = ([place, value]) => `${this.#x(place).toFixed(1)} ${this.#y(value, most).toFixed(1)}`;
      if (run.length === 1) {
        const [place, value] = run[0];
        return [make("circle", { class: `chart-dot ${colour}`, cx: this.#x(place), cy: this.#y(value, most), r: 2 })];
      }
      const line = `M${run.map(at).join("L")}`;
      const drawn = [make("path", { class: `chart-line ${colour}`, d: line })];
      if (this.#data.series.length > 1) return drawn;
      const ground = HEIGHT - EDGE.bottom;
      const area = `${line}L${this.#x(run.at(-1)[0])} ${ground}L${this.#x(run[0][0])} ${ground}Z`;
      return [make("path", { class: `chart-area ${colour}`, d: area }), ...drawn];
    });
  }

  #key({ name }, index) {
    return block("span", "chart-key", block("i", `chart-swatch chart-${(index % COLOURS) + 1}`), name);
  }

  // Reading.

  #press(event) {
    const last = this.#data.range.points - 1;
    const at = this.#at ?? last + 1;
    const page = Math.max(1, Math.round(last / 10));
    const moves = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: this.#at === null ? 0 : at + 1,
      ArrowUp: this.#at === null ? 0 : at + 1,
      PageDown: at - page,
      PageUp: this.#at === null ? 0 : at + page,
      Home: 0,
      End: last,
      Escape: null,
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#read(moves[event.key] === null ? null : Math.min(last, Math.max(0, moves[event.key])));
  }

  #read(at) {
    this.#at = at;
    const cursor = this.#plot.querySelector(".chart-cursor");
    this.#reading.hidden = at === null;
    if (!cursor) return;
    cursor.replaceChildren();
    const { range } = this.#data;
    this.#element.setAttribute("aria-valuenow", at ?? range.points - 1);
    this.#element.setAttribute("aria-valuetext", this.#words(at ?? range.points - 1).join(", "));
    if (at === null) return;
    const x = this.#x(at);
    cursor.append(make("line", { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    const [time, ...figures] = this.#words(at);
    this.#reading.replaceChildren(
      block("b", "", time),
      ...figures.map((text, index) => block("span", "", this.#swatch(figures, index), text)),
    );
    const wide = this.#reading.offsetWidth; // On the side where there is more room.
    const left = x < this.#width / 2 ? Math.min(x + 10, this.#width - wide) : Math.max(x - wide - 10, 0);
    this.#reading.style.left = `${left}px`; // Set by script, which the policy allows; a style in the page is not.
  }

  #swatch(figures, index) {
    const isFigure = figures.length === this.#data.series.length && figures[0] !== SILENCE;
    return block("i", isFigure ? `chart-swatch chart-${(index % COLOURS) + 1}` : "");
  }

  // The time of a point, and what each series has there.
  #words(at) {
    const { series, unit, range } = this.#data;
    const time = moment(range.from_s + at * range.step_s, range.step_s);
    if (series.every(({ values }) => (values[at] ?? null) === null)) return [time, SILENCE];
    return [time, ...series.map(({ name, values }) => `${name} ${UNITS[unit].tell(values[at] ?? null)}`)];
  }
}

const SILENCE = "nothing was reported";

const charts = new WeakMap();

// Draw these series into a block, or draw them there in place of others.
export function chart(element, data) {
  if (!charts.has(element)) charts.set(element, new Chart(element));
  charts.get(element).show(data);
}

// A line without axes, in an <svg> of any size. What is next to it says the same in numbers, so it is for the eye only.
export function spark(element, points) {
  const most = Math.max(0, ...points.map((one) => one ?? 0)) * 1.1 || 1;
  const width = Math.max(1, points.length - 1);
  const at = ([index, value]) => `${index} ${(19.5 - (19 * value) / most).toFixed(2)}`;
  element.setAttribute("viewBox", `0 0 ${width} 20`);
  element.setAttribute("preserveAspectRatio", "none");
  element.setAttribute("aria-hidden", "true");
  element.replaceChildren(
    ...runsOf(points).flatMap((run) => {
      const ends = run.length > 1 ? run : [run[0], [run[0][0] + 0.5, run[0][1]]];
      const line = `M${ends.map(at).join("L")}`;
      const area = `${line}L${ends.at(-1)[0]} 20L${ends[0][0]} 20Z`;
      return [make("path", { class: "spark-area", d: area }), make("path", { class: "spark-line", d: line })];
    }),
  );
}
