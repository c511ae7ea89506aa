// What the page embeds, decoded when it is first shown; and colours.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const decoded = new Map();
const KEPT = 64;

/** The bytes of an embedded block, inflated. The last few stay in memory. */
function blob(name) {
  if (!decoded.has(name)) {
    if (decoded.size >= KEPT) decoded.delete(decoded.keys().next().value);
    decoded.set(name, inflate(document.getElementById("blob-" + name).textContent));
  }
  return decoded.get(name);
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** One map: a number for each cell. */
async function loadMap(role, arm, index) {
  const { cells: [rows, columns] } = role.maps[arm];
  const buffer = await blob(`map-${role.name}-${arm}-${index}`);
  const scales = new Float32Array(buffer, 0, rows);
  const steps = new Int8Array(buffer, 4 * rows, rows * columns);
  const values = new Float32Array(rows * columns);
  for (let row = 0, at = 0; row < rows; row++) {
    const scale = scales[row] / 127;
    for (let column = 0; column < columns; column++, at++) values[at] = steps[at] * scale;
  }
  return values;
}

/** The keys of a query's largest weights, where maps are reduced: [[key, weight]…]. */
async function loadStrongest(role, arm, index, query) {
  const buffer = await blob(`top-${role.name}-${arm}-${index}`);
  const [queries] = role.size;
  const each = buffer.byteLength / 4 / queries;
  const keys = new Uint16Array(buffer, 0, queries * each);
  const weights = new Int16Array(buffer, 2 * queries * each, queries * each);
  return Array.from({ length: each }, (_, n) => {
    const at = query * each + n;
    return [keys[at], weights[at] / 32767];
  });
}

/** Features of a layer: for each head and point C numbers, of queries and of keys. */
async function loadFeatures(role, arm, layer) {
  const score = role.scores[arm][layer];
  const heads = role.heads[layer], channels = score.channels;
  const buffer = await blob(`score-${role.name}-${arm}-${layer}`);
  let at = 0;
  const side = (points) => {
    const low = new Float32Array(buffer, at, heads * channels);
    const high = new Float32Array(buffer, at + 4 * heads * channels, heads * channels);
    at += 8 * heads * channels;
    // A view would need an even start, and what stands before may be of any length.
    const steps = new Uint16Array(buffer.slice(at, at + 2 * heads * points * channels));
    at += 2 * heads * points * channels;
    return (head, point, channel) => {
      const place = head * channels + channel;
      const step = steps[(head * points + point) * channels + channel] / 65535;
      return low[place] + step * (high[place] - low[place]);
    };
  };
  return { a: side(score.queries.length), b: side(score.keys.length) };
}

// One hue after another by lightness alone, so that every eye orders them alike; the first is the
// colour of the page.
const RAMPS = {
  light: {
    weight: ["#fbfaf6", "#d5e3ea", "#93bfd6", "#4a90bd", "#1f5f99", "#0c2f5c"],
    signed: ["#0c3f78", "#4a90bd", "#b8d3e2", "#fbfaf6", "#f3cfa6", "#d07a2a", "#7f3c06"],
  },
  dark: {
    weight: ["#16191d", "#1d3247", "#1f5a8a", "#3f8fc4", "#92c9ec", "#f2f8fd"],
    signed: ["#cbe6fa", "#5aa7da", "#1f4a70", "#16191d", "#6b3d12", "#dd8a3a", "#ffe2bd"],
  },
};
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
let colours = {};

function prepareColours() {
  const ramps = RAMPS[darkScheme.matches && !matchMedia("print").matches ? "dark" : "light"];
  for (const [name, stops] of Object.entries(ramps)) {
    const table = new Uint8ClampedArray(256 * 3);
    for (let n = 0; n < 256; n++) {
      const place = (n / 255) * (stops.length - 1);
      const left = Math.min(Math.floor(place), stops.length - 2);
      for (let part = 0; part < 3; part++) {
        const [from, to] = [stops[left], stops[left + 1]].map((stop) =>
          parseInt(stop.slice(1 + 2 * part, 3 + 2 * part), 16));
        table[3 * n + part] = from + (to - from) * (place - left);
      }
    }
    colours[name] = table;
  }
}

/** Place of a value on the ramp, 0 to 255: by its root, so that small weights show. */
function step(value, largest, signed) {
  const root = Math.sqrt(Math.min(1, Math.abs(value) / (largest || 1)));
  return Math.round(signed ? 127.5 + 127.5 * Math.sign(value) * root : 255 * root);
}

function colour(value, largest, signed) {
  const table = colours[signed ? "signed" : "weight"];
  const at = 3 * step(value, largest, signed);
  return [table[at], table[at + 1], table[at + 2]];
}

/** Black or white, whichever is easier to read on a colour. */
function inkOn(rgb) {
  const [r, g, b] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** Values as the pixels of a canvas, one a cell. */
function paint(canvas, rows, columns, colourOf) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let cell = 0; cell < rows * columns; cell++) {
    image.data.set(colourOf(cell), 4 * cell);
    image.data[4 * cell + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintLegend(element, words, ticks, signed) {
  const bar = document.createElement("canvas");
  bar.setAttribute("aria-hidden", "true");
  paint(bar, 1, 256, (n) => colours[signed ? "signed" : "weight"].subarray(3 * n, 3 * n + 3));
  const scale = make("span", { class: "scale" }, bar, make("span", { class: "ticks" }, ...ticks.map((tick) => make("span", {}, tick))));
  element.replaceChildren(scale, make("span", {}, words));
}

/** An element; children that are text stay text. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function digits(value) {
  const size = Math.abs(value);
  const text = size >= 0.0995 || size === 0 ? value.toFixed(2) : value.toPrecision(2);
  return text.replace("-", "−");
}
