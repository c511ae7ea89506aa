// What only a score network has: its surface over two channels, and the share of each channel.
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  hardswish: (x) => (x * Math.min(6, Math.max(0, x + 3))) / 6,
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};

function activation(name) {
  const [kind, slope] = name.split(":");
  if (kind !== "leaky_relu") return ACTIVATIONS[kind];
  const negative = slope === undefined ? 0.01 : Number(slope);
  return (x) => (x < 0 ? negative * x : x);
}

// Abramowitz and Stegun 7.1.26: right to 1.5e-7.
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

/** The score of a head as a function of its hidden units before the activation. */
function scoreFunction(score, head) {
  const sigma = activation(score.activation);
  const of = (rows) => rows[rows.length === 1 ? 0 : head];
  const output = of(score.output);
  if (!score.hidden.length) {
    return (units) => units.reduce((sum, unit, c) => sum + output[c] * sigma(unit), 0);
  }
  const [weight, bias] = score.hidden[0].map(of);
  return (units) => {
    const first = units.map(sigma);
    return output.reduce((sum, w, m) =>
      sum + w * sigma(weight[m].reduce((inner, x, c) => inner + x * first[c], bias[m])), 0);
  };
}

const SIDE = 72; // cells of the surface on each side
const surface = { x: null, y: null, distance: 0 };

/** The panel of a head; drawn again for another head, query or arm. */
async function showScore(panel, role, arm, layer, head, query, weights) {
  const score = role.scores[arm][layer];
  panel.hidden = !score;
  if (!score) return;
  const features = await loadFeatures(role, arm, layer);
  const place = [role.name, arm, layer, head].join();
  if (panel.dataset.place !== place) {
    panel.dataset.place = place;
    buildPanel(panel, role, arm, score, head);
  }
  panel.draw = () => drawSurface(panel, role, score, features, head, query, weights);
  panel.draw();
}

function buildPanel(panel, role, arm, score, head) {
  const shares = score.shares[head];
  const order = [...shares.keys()].sort((m, n) => shares[n] - shares[m]);
  surface.x = "b" + order[0];
  surface.y = score.channels > 1 ? "b" + order[1] : "a" + order[0];
  surface.distance = 0;
  const choose = (axis, name) => {
    const select = make("select", {});
    for (const [side, word] of [["b", "key"], ["a", "query"]]) {
      for (let c = 0; c < score.channels; c++) select.append(make("option", { value: side + c }, `${word} channel ${c + 1}`));
    }
    select.value = surface[axis];
    select.onchange = () => { surface[axis] = select.value; panel.draw(); };
    return make("label", {}, name, select);
  };
  const fields = make("div", { class: "fields controls" }, choose("x", "Across"), choose("y", "Up"));
  if (score.slopes) {
    const most = Math.max(...role.size) - 1;
    const range = make("input", { type: "range", min: -most, max: most, step: 1, value: 0 });
    const word = make("span", {}, "Distance: 0");
    range.oninput = () => {
      surface.distance = Number(range.value);
      word.textContent = `Distance: ${range.value.replace("-", "−")}`;
      panel.draw();
    };
    fields.append(make("label", {}, word, range));
  }
  const canvas = make("canvas", { role: "img" });
  const name = score.score === "hybrid" ? "hybrid: a dot product is added to this score" : score.score;
  panel.replaceChildren(
    make("div", { class: "bar" }, make("h2", { id: "score-title" }, "Score network"),
      make("span", { class: "soft" }, `${data.arms.length > 1 ? data.arms[arm] + " · " : ""}${name} · ${score.activation} · ${score.hidden.length ? "two hidden layers" : "one hidden layer"}`)),
    make("div", { class: "surface" },
      make("div", {}, fields, canvas, make("div", { class: "legend" }), make("p", { class: "soft" })),
      make("div", { class: "channels", tabindex: 0, role: "region", "aria-label": "Channels of the score network" }, channelTable(score, head, order))));
}

function channelTable(score, head, order) {
  const of = (rows) => rows[rows.length === 1 ? 0 : head];
  const columns = ["Channel", "Share of the score", ""];
  const weight = score.hidden.length ? null : of(score.output);
  const slopes = score.slopes && of(score.slopes);
  if (weight) columns.push("Weight");
  if (slopes) columns.push("Slope");
  const rows = order.map((c) => {
    const share = score.shares[head][c];
    const bar = make("i", {});
    bar.style.width = `${100 * share}%`;
    const cells = [make("td", { class: "bar-cell" }, make("span", { class: "track", "aria-hidden": "true" }, bar)),
      make("td", { class: "number" }, `${(100 * share).toFixed(1)}%`)];
    if (weight) cells.push(make("td", { class: "number" }, digits(weight[c])));
    if (slopes) cells.push(make("td", { class: "number" }, digits(slopes[c])));
    return make("tr", {}, make("th", { scope: "row" }, String(c + 1)), ...cells);
  });
  const head_ = columns.map((name, n) => name
    ? make("th", { scope: "col", class: n > 2 ? "number" : "", ...(n === 1 ? { colspan: 2 } : {}) }, name) : "");
  return make("table", {}, make("thead", {}, make("tr", {}, ...head_.filter(Boolean))), make("tbody", {}, ...rows));
}

const mean = (count, of) => Array.from({ length: count }, (_, n) => of(n)).reduce((m, n) => m + n, 0) / count;
const closest = (points, index) => points.reduce((best, point, n) =>
  Math.abs(point - index) < Math.abs(points[best] - index) ? n : best, 0);

function drawSurface(panel, role, score, features, head, query, weights) {
  const canvas = panel.querySelector("canvas");
  const evaluate = scoreFunction(score, head);
  const slopes = score.slopes ? score.slopes[score.slopes.length === 1 ? 0 : head] : null;
  const points = { a: score.queries, b: score.keys };
  const chosen = query === null ? null : closest(score.queries, query);
  const held = { a: [], b: [] };
  for (let c = 0; c < score.channels; c++) {
    const a = (n) => features.a(head, n, c);
    held.a.push(chosen === null ? mean(points.a.length, a) : a(chosen));
    held.b.push(mean(points.b.length, (n) => features.b(head, n, c)));
  }
  const axes = ["x", "y"].map((name) => {
    const [side, channel] = [surface[name][0], Number(surface[name].slice(1))];
    const values = points[side].map((_, n) => features[side](head, n, channel));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = 0.12 * (high - low) || 1;
    return { side, channel, values, low: low - margin, high: high + margin };
  });
  const [x, y] = axes;
  const scores = new Float64Array(SIDE * SIDE);
  const sides = { a: [...held.a], b: [...held.b] };
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      sides[x.side][x.channel] = x.low + ((column + 0.5) / SIDE) * (x.high - x.low);
      sides[y.side][y.channel] = y.high - ((row + 0.5) / SIDE) * (y.high - y.low);
      const units = sides.a.map((a, c) => a + sides.b[c] + (slopes ? slopes[c] * surface.distance : 0));
      scores[row * SIDE + column] = evaluate(units);
    }
  }
  // What is the same for all keys changes no weight: the middle of the colours is the middle here.
  let [low, high] = [Infinity, -Infinity];
  for (const value of scores) { low = Math.min(low, value); high = Math.max(high, value); }
  const middle = (low + high) / 2, reach = (high - low) / 2 || 1;
  const small = document.createElement("canvas");
  const linear = (value) => {
    const at = 3 * Math.round(127.5 + (127.5 * (value - middle)) / reach);
    return colours.signed.subarray(at, at + 3);
  };
  paint(small, SIDE, SIDE, (cell) => linear(scores[cell]));

  const { context, width, style } = fit(canvas, (wide) => wide);
  const margin = { left: 52, bottom: 44, right: 8, top: 8 };
  const box = { x: margin.left, y: margin.top, w: width - margin.left - margin.right, h: width - margin.top - margin.bottom };
  context.imageSmoothingEnabled = true;
  context.drawImage(small, box.x, box.y, box.w, box.h);
  context.strokeStyle = style.line;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
  context.fillStyle = style.soft;
  context.font = style.font(12);
  const title = (axis) => `${axis.side === "a" ? "query" : "key"} channel ${axis.channel + 1}`;
  context.textBaseline = "top";
  context.textAlign = "center";
  context.fillText(title(x), box.x + box.w / 2, box.y + box.h + 24);
  context.textAlign = "left";
  context.fillText(digits(x.low), box.x, box.y + box.h + 7);
  context.textAlign = "right";
  context.fillText(digits(x.high), box.x + box.w, box.y + box.h + 7);
  context.fillText(digits(y.high), box.x - 7, box.y);
  context.textBaseline = "bottom";
  context.fillText(digits(y.low), box.x - 7, box.y + box.h);
  context.save();
  context.translate(14, box.y + box.h / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(title(y), 0, 0);
  context.restore();

  const sameTokens = role.sides[0] === role.sides[1] || x.side === y.side;
  if (sameTokens) {
    const names = data.tokens[role.sides[x.side === "a" ? 0 : 1]];
    const largest = weights ? Math.max(...weights) : 0;
    const taken = []; // by labels; the tokens of most weight are named first
    const order = [...x.values.keys()].sort((m, n) => (weights ? weights[points[x.side][n]] - weights[points[x.side][m]] : 0));
    const free = (rect) => taken.every((other) => rect[0] > other[2] || rect[2] < other[0] || rect[1] > other[3] || rect[3] < other[1]);
    context.font = style.font(12);
    for (const n of order) {
      const value = x.values[n];
      const token = points[x.side][n];
      const left = box.x + (box.w * (value - x.low)) / (x.high - x.low);
      const top = box.y + box.h - (box.h * (y.values[n] - y.low)) / (y.high - y.low);
      const weight = weights && x.side === "b" && largest ? weights[token] / largest : 0.15;
      context.beginPath();
      context.arc(left, top, 3 + 6 * Math.sqrt(Math.max(0, weight)), 0, 7);
      context.fillStyle = style.paper;
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = token === query && role.sides[0] === role.sides[1] ? style.ring : style.ink;
      context.stroke();
      const flip = left > box.x + 0.75 * box.w;
      const away = 7 + 5 * Math.sqrt(Math.max(0, weight));
      const word = shorten(shown(names[token]), 12);
      const from = left + (flip ? -away : away), long = context.measureText(word).width;
      const rect = [from - (flip ? long : 0), top - 7, from + (flip ? 0 : long), top + 7];
      taken.push([left - away + 4, top - away + 4, left + away - 4, top + away - 4]);
      if (taken.length > 60 || !free(rect)) continue;
      taken.push(rect);
      context.textAlign = flip ? "right" : "left";
      context.textBaseline = "middle";
      context.lineWidth = 3;
      context.strokeStyle = style.paper;
      context.strokeText(word, from, top);
      context.fillStyle = style.ink;
      context.fillText(word, from, top);
    }
  }
  canvas.setAttribute("aria-label", `Score over ${title(x)} and ${title(y)}, from ${digits(low)} to ${digits(high)}`);
  const [legend, words] = [panel.querySelector(".legend"), panel.querySelector("p")];
  paintLegend(legend, "score", [digits(low), digits(high)], true);
  const who = chosen === null ? "the mean query" : `the query “${shown(data.tokens[role.sides[0]][score.queries[chosen]])}”`;
  words.textContent = `How ${who} scores keys${slopes ? ` ${Math.abs(surface.distance)} positions ${surface.distance > 0 ? "after" : "before"} it` : ""}; all other channels are at their mean. ` + (sameTokens
    ? `Points are ${points[x.side].length < data.tokens[role.sides[x.side === "a" ? 0 : 1]].length ? `${points[x.side].length} of the` : "the"} tokens${weights && x.side === "b" ? ", larger with more weight" : ""}.`
    : "Source and target have no points in common here.");
}
