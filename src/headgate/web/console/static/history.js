// A rate's last minute, and the line that shows how it went.

const KEPT_S = 66;

export class History {
  #samples = []; // [time, rate], oldest first.

  add(now_s, rate) {
    const samples = this.#samples;
    samples.push([now_s, rate]);
    while (samples.length > 2 && samples[1][0] < now_s - KEPT_S) samples.shift();
  }

  // Path data for the line and the area under it, in a box of 60 x 20: a second is a unit wide.
  paths(now_s) {
    const points = [];
    for (const [at_s, rate] of this.#samples) {
      const x = 60 - (now_s - at_s);
      if (x >= 0) points.push([x, rate]);
    }
    const most = Math.max(0, ...points.map((point) => point[1])) * 1.15;
    if (points.length < 2 || !most) return ["", ""];
    const at = ([x, y]) => `${x.toFixed(1)} ${(19.5 - (18 * y) / most).toFixed(1)}`;
    const line = `M${points.map(at).join("L")}`;
    return [line, `${line}L${points[points.length - 1][0].toFixed(1)} 20L${points[0][0].toFixed(1)} 20Z`];
  }
}
