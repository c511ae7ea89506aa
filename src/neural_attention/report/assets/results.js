// The plots of the report: drawn by plotly, coloured by the scheme of the browser.
const { runs } = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = [];

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), soft: of("--soft"), line: of("--line"), paper: of("--raised") };
}

// Plotly reads markup in text: what a user named is shown as it is.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function short(text, most) {
  const letters = [...text];
  return plain(letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text);
}

function traces(run, plot, axis, hidden) {
  const scheme = dark.matches ? "dark" : "light";
  const seen = new Set();
  return plot.series
    .filter((one) => !hidden.has(one.arm))
    .map((one) => {
      const arm = run.arms[one.arm];
      const first = !seen.has(one.arm);
      seen.add(one.arm);
      const trace = {
        x: one.x[axis.name],
        y: one.y,
        name: short(arm.name, 40),
        legendgroup: String(one.arm),
        showlegend: first,
        mode: plot.lines ? "lines+markers" : "markers",
        line: { color: arm.style[scheme], dash: arm.style.dash, width: 2 },
        marker: { color: arm.style[scheme], symbol: arm.style.marker, size: plot.lines ? 6 : 11 },
        hovertemplate:
          `${short(arm.name, 60)}<br>${plain(one.label)}<br>` +
          `${plain(axis.label)}: %{x}<br>${plain(plot.y)}: %{y:.4g}<extra></extra>`,
      };
      if (one.low) {
        trace.error_y = {
          type: "data",
          symmetric: false,
          array: one.high.map((value, i) => value - one.y[i]),
          arrayminus: one.low.map((value, i) => one.y[i] - value),
          color: arm.style[scheme],
        };
      }
      return trace;
    });
}

function layout(plot, axis, isLog, isNarrow) {
  const { ink, soft, line, paper } = colours();
  const shared = { gridcolor: line, zeroline: false, linecolor: line, tickfont: { color: soft }, automargin: true };
  return {
    font: { color: ink, family: getComputedStyle(document.body).fontFamily, size: 13 },
    paper_bgcolor: paper,
    plot_bgcolor: paper,
    margin: { l: 56, r: 16, t: 16, b: 48 },
    xaxis: { ...shared, title: { text: plain(axis.label) }, type: axis.log ? "log" : "linear" },
    yaxis: { ...shared, title: { text: plain(plot.y) }, type: isLog ? "log" : "linear" },
    legend: { orientation: "h", y: isNarrow ? -0.25 : -0.2, font: { color: ink } },
    hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink } },
    dragmode: isNarrow ? false : "zoom",
  };
}

function draw(item) {
  const { run, plot, place, hidden } = item;
  const axis = plot.axes[Number(item.axis?.value ?? 0)];
  const isNarrow = place.clientWidth < 520;
  if (!plot.series.length) {
    place.replaceChildren(Object.assign(document.createElement("p"), { className: "soft", textContent: "No run gave a point." }));
    return Promise.resolve();
  }
  const options = { responsive: true, displaylogo: false, displayModeBar: !isNarrow, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  return Plotly.react(place, traces(run, plot, axis, hidden), layout(plot, axis, item.log.checked, isNarrow), options);
}

const all = [];
runs.forEach((run, number) => {
  const hidden = new Set();
  const items = run.plots.map((plot) => {
    const id = `run${number}-${plot.name}`;
    return {
      run, plot, hidden,
      place: document.getElementById(id),
      axis: document.getElementById(`${id}-axis`),
      log: document.getElementById(`${id}-log`),
    };
  });
  for (const item of items) {
    item.axis?.addEventListener("change", () => draw(item));
    item.log.addEventListener("change", () => draw(item));
  }
  document.querySelectorAll(`[data-run="${number}"]`).forEach((box) => {
    box.addEventListener("change", () => {
      const arm = Number(box.value);
      box.checked ? hidden.delete(arm) : hidden.add(arm);
      items.forEach(draw);
    });
  });
  drawn.push(...items);
  all.push(...items.map(draw));
});

function swatches() {
  const scheme = dark.matches ? "dark" : "light";
  document.querySelectorAll(".swatch").forEach((mark) => { mark.style.background = mark.dataset[scheme]; });
}
dark.addEventListener("change", () => { swatches(); drawn.forEach(draw); });
swatches();

document.querySelectorAll("button[data-copies]").forEach((button) => {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copies).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copies));
      button.textContent = "Selected: copy it now";
    }
  });
});
Promise.all(all).then(() => { document.documentElement.dataset.ready = ""; });
