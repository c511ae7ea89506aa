// The page: overview, one head, tokens.
const $ = (id) => document.getElementById(id);
const state = { role: 0, arm: 0, layer: 0, head: 0, open: false, query: null, hover: null };
const role = () => data.roles[state.role];
const isSigned = (arm) => data.arms.length > 1 && arm === data.arms.length - 1;
const indexOf = (layer, head) => role().heads.slice(0, layer).reduce((m, n) => m + n, 0) + head;
const arms = () => data.arms.map((_, arm) => arm);
const isImage = (side) => data.image !== null && data.tokens[side].length > data.image.first;

/** A token on one line: spaces around it dropped, line breaks as arrows. */
const shown = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "⇥").trim() || "␣";
const shorten = (text, most) => { const letters = [...text]; return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text; };

/** A canvas at the screen's own resolution, cleared; drawn in CSS pixels. */
function fit(canvas, heightOf) {
  const width = canvas.clientWidth || 320, height = heightOf(width), ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(`--${name}`).trim();
  const family = getComputedStyle(document.body).fontFamily;
  const style = { ink: of("ink"), soft: of("soft"), line: of("line"), paper: of("paper"), ring: of("ring"), font: (size) => `${size}px ${family}` };
  return { context, width, height, style };
}

// Controls and overview.

function choice(fieldset, names, value, change) {
  fieldset.hidden = names.length < 2;
  fieldset.replaceChildren(fieldset.querySelector("legend"), ...names.map((name, n) => {
    const input = make("input", { type: "radio", name: fieldset.id, value: n });
    input.checked = n === value;
    input.onchange = () => change(n);
    return make("label", {}, input, make("span", { title: name }, name));
  }));
}

async function showOverview() {
  const { layers, heads, name, maps } = role(), arm = state.arm;
  const most = Math.max(...heads);
  $("heads").replaceChildren(make("tr", {}, make("td", { class: "corner" }),
    ...Array.from({ length: most }, (_, head) => make("th", { scope: "col" }, make("span", { class: "unseen" }, "head "), String(head + 1)))));
  // A map of few heads needs no whole screen.
  $("heads").closest("table").style.width = `min(100%, ${2.2 + most * 9}rem)`;
  const [rows, columns] = maps[arm].small;
  const steps = new Int8Array(await blob(`small-${name}-${arm}`));
  $("grid").replaceChildren(...layers.map((number, layer) => make("tr", {},
    make("th", { scope: "row" }, make("span", { class: "unseen" }, "layer "), String(number)),
    ...Array.from({ length: heads[layer] }, (_, head) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      const start = indexOf(layer, head) * rows * columns;
      paint(canvas, rows, columns, (cell) => {
        const value = steps[start + cell] / 127;
        return colour(Math.sign(value) * value * value, 1, isSigned(arm));
      });
      const button = make("button", { class: "thumb", "data-layer": layer, "data-head": head, tabindex: -1,
        "aria-label": `Layer ${number}, head ${head + 1}, largest ${isSigned(arm) ? "difference" : "weight"} ${digits(maps[arm].largest[indexOf(layer, head)])}` }, canvas);
      return make("td", {}, button);
    }))));
  markThumb();
  paintLegend($("overview-legend"), isSigned(arm)
    ? `${data.arms[0]} minus ${data.arms[1]}, each map by its own largest difference`
    : "weight, as a share of each map’s largest; colour follows its square root",
  isSigned(arm) ? ["−", "0", "+"] : ["0", "¼", "1"], isSigned(arm));
}

const thumb = () => $("grid").querySelector(`[data-layer="${state.layer}"][data-head="${state.head}"]`);
function markThumb() {
  for (const old of $("grid").querySelectorAll('[tabindex="0"]')) old.tabIndex = -1;
  for (const old of $("grid").querySelectorAll("[aria-current]")) old.removeAttribute("aria-current");
  thumb().tabIndex = 0;
  if (state.open) thumb().setAttribute("aria-current", "true");
}

function move(layers, heads) {
  const { layers: all, heads: counts } = role();
  state.layer = Math.min(all.length - 1, Math.max(0, state.layer + layers));
  state.head = Math.min(counts[state.layer] - 1, Math.max(0, state.head + heads));
  markThumb();
  if (state.open) showDetail();
}

// One head.

let maps = []; // the open head's values, for each arm
let largest = [];
let showing = 0;

async function showDetail() {
  const turn = ++showing;
  const index = indexOf(state.layer, state.head);
  const loaded = await Promise.all(arms().map((arm) => loadMap(role(), arm, index)));
  if (turn !== showing) return; // another head was opened meanwhile
  maps = loaded;
  largest = arms().map((arm) => role().maps[arm].largest[index]);
  // Two models on one scale.
  if (data.arms.length > 1) largest[0] = largest[1] = Math.max(largest[0], largest[1]);
  state.hover = null;
  if (state.query === null || state.query >= role().size[0]) state.query = isImage(role().sides[0]) ? 0 : role().size[0] - 1;
  $("detail").hidden = false;
  $("main").classList.add("open");
  $("detail-title").textContent = `${data.roles.length > 1 ? role().title + " · " : ""}Layer ${role().layers[state.layer]} · Head ${state.head + 1}`;
  $("maps").classList.toggle("single", data.arms.length === 1);
  $("maps").replaceChildren(...arms().map((arm) => {
    const canvas = make("canvas", { role: "img", "aria-label": `${isSigned(arm) ? "Difference of the weights" : "Attention weights"} of layer ${role().layers[state.layer]}, head ${state.head + 1}: a row for each query, a column for each key` });
    canvas.dataset.arm = arm;
    canvas.onpointermove = (event) => hoverMap(event, arm);
    canvas.onpointerleave = () => hover(null);
    canvas.onclick = (event) => { const cell = cellAt(event, canvas); if (cell) pin(cell.query); };
    return make("figure", {}, ...(data.arms.length > 1 ? [make("figcaption", { title: data.arms[arm] }, data.arms[arm])] : []), canvas);
  }));
  buildReading();
  drawAll();
  markThumb();
}

function closeDetail() {
  showing++;
  state.open = false;
  $("detail").hidden = true;
  $("main").classList.remove("open");
  markThumb();
  thumb().focus();
}

function open(layer, head) {
  Object.assign(state, { layer, head, open: true });
  showDetail().then(() => $("detail-title").focus());
}

const query = () => state.hover?.query ?? state.query;

/** A row of a map: the weight of every key for one query. Blocks stand for all they hold. */
function rowOf(arm, number) {
  const { block, cells: [, columns] } = role().maps[arm];
  const start = Math.floor(number / block) * columns;
  return Array.from({ length: role().size[1] }, (_, key) => maps[arm][start + Math.floor(key / block)]);
}

function drawAll() {
  for (const canvas of $("maps").querySelectorAll("canvas")) drawMap(canvas);
  const ticks = (arm) => (isSigned(arm) ? [-largest[arm], 0, largest[arm]] : [0, largest[arm] / 4, largest[arm]]).map(digits);
  const legend = $("detail-legend");
  legend.replaceChildren();
  for (const arm of data.arms.length > 1 ? [0, data.arms.length - 1] : [0]) {
    const part = make("div", { class: "legend" });
    paintLegend(part, isSigned(arm) ? `${data.arms[0]} minus ${data.arms[1]}` : "weight of a key in its query’s row; rows sum to 1", ticks(arm), isSigned(arm));
    legend.append(part);
  }
  drawReading();
}

function drawMap(canvas) {
  const arm = Number(canvas.dataset.arm), signed = isSigned(arm);
  const { cells: [rows, columns], block } = role().maps[arm];
  const [down, across] = role().sides.map((side) => data.tokens[side]);
  const small = document.createElement("canvas");
  paint(small, rows, columns, (cell) => colour(maps[arm][cell], largest[arm], signed));

  const measure = canvas.getContext("2d");
  const named = Math.max(rows, columns) <= 128 && block === 1;
  const wide = canvas.clientWidth || 320;
  measure.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const room = (tokens) => named ? Math.min(0.24 * wide, 10 + Math.max(...tokens.map((token) => measure.measureText(shorten(shown(token), 14)).width))) : 44;
  const left = room(down), top = room(across);
  const cell = Math.min((wide - left - 2) / columns, named ? 44 : Infinity);
  const box = { x: left, y: top, w: cell * columns, h: cell * rows, cell, block };
  const { context, style } = fit(canvas, () => top + box.h + 2);
  canvas.box = box;
  context.imageSmoothingEnabled = false;
  context.drawImage(small, box.x, box.y, box.w, box.h);
  context.lineWidth = 1;
  context.strokeStyle = style.line;
  context.strokeRect(box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);

  const row = Math.floor(query() / block), column = state.hover?.key === undefined ? null : Math.floor(state.hover.key / block);
  if (state.hover) { // the row under the pointer is lit: the others step back
    context.globalAlpha = 0.6;
    context.fillStyle = style.paper;
    context.fillRect(box.x, box.y, box.w, row * cell);
    context.fillRect(box.x, box.y + (row + 1) * cell, box.w, box.h - (row + 1) * cell);
    context.globalAlpha = 1;
  }
  context.lineWidth = 2;
  context.strokeStyle = style.ring;
  context.strokeRect(box.x - 1, box.y + row * cell - 1, box.w + 2, Math.max(cell, 2) + 2);

  context.textBaseline = "middle";
  const label = (number, isRow) => {
    const tokens = isRow ? down : across;
    const chosen = isRow ? number === row : number === column;
    const from = tokens[Math.min(tokens.length - 1, chosen && isRow ? query() : number * block)];
    context.font = `${chosen ? "600 " : ""}${style.font(12)}`;
    context.fillStyle = chosen ? style.ink : style.soft;
    const text = shorten(shown(from), named ? 14 : 6);
    context.save();
    if (isRow) {
      context.translate(box.x - 6, box.y + (number + 0.5) * cell);
      context.textAlign = "right";
    } else {
      context.translate(box.x + (number + 0.5) * cell, box.y - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
    }
    context.fillText(text, 0, 0, (isRow ? left : top) - 8);
    context.restore();
  };
  const every = Math.max(1, Math.ceil(13 / cell));
  if (named) {
    for (let n = 0; n < rows; n++) if (n === row || (n % every === 0 && Math.abs(n - row) * cell >= 13)) label(n, true);
    for (let n = 0; n < columns; n++) if (n === column || (n % every === 0 && (column === null || Math.abs(n - column) * cell >= 13))) label(n, false);
  } else {
    label(row, true);
    if (column !== null) label(column, false);
  }
}

function cellAt(event, canvas) {
  const bounds = canvas.getBoundingClientRect(), { x, y, cell, block } = canvas.box;
  const row = Math.floor((event.clientY - bounds.top - y) / cell), column = Math.floor((event.clientX - bounds.left - x) / cell);
  const { cells: [rows, columns] } = role().maps[Number(canvas.dataset.arm)];
  if (row < 0 || row >= rows || column >= columns) return null;
  const key = column < 0 ? undefined : Math.min(role().size[1] - 1, column * block);
  return { query: Math.min(role().size[0] - 1, row * block), key };
}

function hoverMap(event, arm) {
  const cell = cellAt(event, event.currentTarget);
  if (cell?.query !== state.hover?.query || cell?.key !== state.hover?.key) hover(cell);
}

let frame = 0;
/** What the pointer is on; drawn once a frame. */
function hover(cell) {
  state.hover = cell;
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    for (const canvas of $("maps").querySelectorAll("canvas")) drawMap(canvas);
    drawReading();
  });
}

function pin(number) {
  state.query = number;
  state.hover = null;
  drawAll();
  // In view in the text, without moving the page.
  const token = strips.queries.tokens[number], text = token.parentElement;
  if (text.classList.contains("text")) text.scrollTop += token.getBoundingClientRect().top - text.getBoundingClientRect().top - text.clientHeight / 2;
}

// Tokens as text, or over the image.

function strip(side, isQueries, name) {
  const tokens = data.tokens[side];
  const list = make("div", isQueries ? { role: "listbox", "aria-label": name } : { "aria-label": name, role: "group", class: "keys" });
  const image = isImage(side) ? data.image : null;
  const text = make("div", { class: image ? "specials" : "text" });
  const cells = image && make("div", { class: "cells" });
  if (image) {
    cells.style.gridTemplateColumns = `repeat(${image.columns}, 1fr)`;
    cells.style.gridTemplateRows = `repeat(${image.rows}, 1fr)`;
  }
  // Numbers and other bare labels need room; text brings its own spaces.
  const bare = !image && !tokens.some((token) => /^\s|\s$/.test(token));
  list.tokens = tokens.map((token, number) => {
    const isPatch = image && number >= image.first;
    const element = make("span", { class: "token" + (bare || (image && !isPatch) ? " bare" : ""), "data-token": number });
    if (!isPatch) element.textContent = token.replace(/\n/g, "↵\n") || "␣";
    if (isQueries) {
      element.setAttribute("role", "option");
      element.tabIndex = -1;
      if (isPatch) element.setAttribute("aria-label", `patch ${token}`);
      else if (!token.trim()) element.setAttribute("aria-label", shown(token));
    }
    (isPatch ? cells : text).append(element);
    return element;
  });
  if (!image || image.first) list.append(text);
  if (image) list.append(make("div", { class: "patches" }, make("img", { src: image.source, alt: "" }), cells));
  if (isQueries) {
    list.onpointerover = (event) => { const token = event.target.dataset?.token; if (token !== undefined) hover({ query: Number(token) }); };
    list.onpointerleave = () => hover(null);
    list.onclick = (event) => { const token = event.target.dataset?.token; if (token !== undefined) { pin(Number(token)); list.tokens[state.query].focus({ preventScroll: true }); } };
    list.onkeydown = (event) => {
      const down = image ? image.columns : 1;
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down, Home: -tokens.length, End: tokens.length }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      pin(Math.min(tokens.length - 1, Math.max(0, state.query + by)));
      list.tokens[state.query].focus();
    };
  }
  return list;
}

let strips = {};
function buildReading() {
  const [from, to] = role().sides;
  const names = { input: "Tokens", source: "Source", target: "Target" };
  const queries = strip(from, true, from === to ? "Tokens: choose a query" : `${names[from]}: choose a query`);
  const keys = from === to ? queries : strip(to, false, names[to]);
  strips = { queries, keys };
  const title = isImage(from) ? "Choose a patch: the brighter another, the more weight it has" : `${names[from]}: choose one to see what it attends to`;
  $("reading").replaceChildren(make("h3", {}, title), queries, ...(from === to ? [] : [make("h3", {}, `${names[to]}: shaded by weight`), keys]));
}

function drawReading() {
  const arm = state.arm, signed = isSigned(arm), number = query();
  const weights = rowOf(arm, number);
  const most = Math.max(...weights.map(Math.abs));
  // Over an image the brightest patch is the measure, not a token outside of it.
  const mostSeen = isImage(role().sides[1]) ? Math.max(...weights.slice(data.image.first).map(Math.abs)) : most;
  strips.keys.tokens.forEach((element, key) => {
    const onImage = isImage(role().sides[1]) && key >= data.image.first;
    const rgb = colour(weights[key], most, signed);
    if (onImage && !signed) element.style.background = `rgb(0 0 0 / ${0.82 * (1 - Math.sqrt(weights[key] / (mostSeen || 1)))})`;
    else if (onImage) element.style.background = `rgb(${rgb.join(" ")} / ${0.85 * Math.sqrt(Math.abs(weights[key]) / (mostSeen || 1))})`;
    else {
      element.style.background = `rgb(${rgb.join(" ")})`;
      element.style.color = inkOn(rgb);
    }
  });
  strips.queries.tokens.forEach((element, token) => {
    element.classList.toggle("chosen", token === number);
    element.setAttribute("aria-selected", String(token === state.query));
    element.tabIndex = token === state.query ? 0 : -1;
  });
  showStrongest(arm, number, weights);
  const scored = role().scores.findIndex((layers, n) => layers[state.layer] && (signed || n === arm));
  if (scored < 0) $("score").hidden = true;
  else showScore($("score"), role(), scored, state.layer, state.head, number, rowOf(scored, number));
}

async function showStrongest(arm, number, weights) {
  const index = indexOf(state.layer, state.head);
  const pairs = role().maps[arm].block > 1
    ? await loadStrongest(role(), arm, index, number)
    : weights.map((weight, key) => [key, weight]).sort((m, n) => Math.abs(n[1]) - Math.abs(m[1])).slice(0, 5);
  if (number !== query() || index !== indexOf(state.layer, state.head)) return;
  const [down, across] = role().sides.map((side) => data.tokens[side]);
  const found = pairs.filter(([, weight]) => weight !== 0);
  $("strongest-title").textContent = `“${shorten(shown(down[number]), 24)}” (${number + 1}) ${isSigned(arm) ? "differs most at" : "attends most to"}`;
  $("strongest").replaceChildren(...found.map(([key, weight]) => {
    const bar = make("i", {});
    bar.style.width = `${100 * Math.min(1, Math.abs(weight))}%`;
    return make("li", {}, make("b", { title: across[key] }, `${shown(across[key])}`, make("span", { class: "soft" }, ` ${key + 1}`)),
      make("span", { class: "track", "aria-hidden": "true" }, bar), make("span", { class: "number" }, (isSigned(arm) && weight > 0 ? "+" : "") + digits(weight)));
  }));
  if (!state.hover) $("said").textContent = `${shown(down[number])}: ` + found.slice(0, 3).map(([key, weight]) => `${shown(across[key])} ${digits(weight)}`).join(", ");
}

// The whole page.

function facts() {
  const lengths = Object.entries(data.tokens).map(([side, tokens]) => `${tokens.length.toLocaleString("en")} ${data.image ? "positions" : "tokens"}${side === "input" ? "" : ` of ${side}`}`);
  const sizes = [...new Set(data.roles.map(({ layers, heads }) => `${layers.length} layer${layers.length > 1 ? "s" : ""} of ${Math.max(...heads)} head${Math.max(...heads) > 1 ? "s" : ""}`))];
  return [...(data.arms.length > 1 ? [`${data.arms[0]} against ${data.arms[1]}`] : []), ...sizes, ...lengths].join(" · ");
}

function notes() {
  const lines = ["Tokens are shaded by their share of the largest weight of the query’s row. Weights are kept in steps of 1/127 of that weight."];
  for (const { title, maps } of data.roles) {
    const { block } = maps[maps.length - 1];
    if (block > 1) lines.push(`${title}: to keep this file small, a cell of a map stands for ${block} × ${block} pairs and shows the largest weight among them, and so does the shading of the tokens. The list of strongest keys is exact to 1/32767.`);
  }
  return lines;
}

function chooseRole(number) {
  Object.assign(state, { role: number, layer: 0, head: 0, query: null });
  return refresh();
}

async function refresh() {
  await showOverview();
  if (state.open) await showDetail();
}

$("title").textContent = document.title;
$("facts").textContent = facts();
$("notes").replaceChildren(...notes().map((line) => make("p", {}, line)));
choice($("roles"), data.roles.map(({ title }) => title), 0, chooseRole);
choice($("arms"), data.arms, 0, (arm) => { state.arm = arm; refresh(); });
$("grid").onclick = (event) => {
  const button = event.target.closest("button");
  if (button) open(Number(button.dataset.layer), Number(button.dataset.head));
};
$("grid").onkeydown = (event) => {
  const by = stepOf(event.key);
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  move(...by);
  thumb().focus();
};
const STEPS = { left: [0, -1], right: [0, 1], up: [-1, 0], down: [1, 0] };
const stepOf = (key) => STEPS[key.replace("Arrow", "").toLowerCase()];
for (const [name, by] of Object.entries(STEPS)) $(name).onclick = () => move(...by);
$("close").onclick = closeDetail;
document.onkeydown = (event) => {
  if (!state.open || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input, .channels")) return;
  const by = stepOf(event.key);
  if (by) { event.preventDefault(); move(...by); }
};
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.open) closeDetail(); });

let width = 0;
new ResizeObserver(() => {
  if (state.open && $("maps").clientWidth !== width) { width = $("maps").clientWidth; requestAnimationFrame(drawAll); }
}).observe($("maps"));
const recolour = () => { prepareColours(); showOverview(); if (state.open) drawAll(); };
darkScheme.onchange = recolour;
matchMedia("print").onchange = recolour;
prepareColours();
showOverview().then(() => document.documentElement.setAttribute("data-ready", ""));
