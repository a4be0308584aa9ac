// A counter's last minute: its rate now, and the line that shows how the rate went.

const KEPT_S = 66;
const WINDOW_S = 5; // Other nodes report every five seconds; a shorter window would show spikes that are not there.

export class History {
  #samples = []; // [time, total], oldest first.

  add(now_s, total) {
    const samples = this.#samples;
    // A counter starts again when another node takes the stream. What it counted before is no rate.
    if (samples.length && total < samples[samples.length - 1][1]) samples.length = 0;
    samples.push([now_s, total]);
    while (samples.length > 2 && samples[1][0] < now_s - KEPT_S) samples.shift();
  }

  // Records a second, or null as long as there is nothing to compare with.
  rate() {
    const samples = this.#samples;
    return samples.length < 2 ? null : this.#rateAt(samples.length - 1);
  }

  #rateAt(index) {
    const samples = this.#samples;
    const [now_s, total] = samples[index];
    let first = index;
    while (first > 0 && now_s - samples[first][0] < WINDOW_S - 0.25) first -= 1;
    const passed_s = now_s - samples[first][0];
    return passed_s > 0 ? (total - samples[first][1]) / passed_s : 0;
  }

  // Path data for the line and the area under it, in a box of 60 x 20: a second is a unit wide.
  paths(now_s) {
    const samples = this.#samples;
    const points = [];
    for (let index = 1; index < samples.length; index += 1) {
      const x = 60 - (now_s - samples[index][0]);
      if (x >= 0) points.push([x, this.#rateAt(index)]);
    }
    const most = Math.max(0, ...points.map((point) => point[1])) * 1.15;
    if (points.length < 2 || !most) return ["", ""];
    const at = ([x, y]) => `${x.toFixed(1)} ${(19.5 - (18 * y) / most).toFixed(1)}`;
    const line = `M${points.map(at).join("L")}`;
    return [line, `${line}L${points[points.length - 1][0].toFixed(1)} 20L${points[0][0].toFixed(1)} 20Z`];
  }
}
