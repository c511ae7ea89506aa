// The plots of the report: drawn by plotly, coloured by the scheme of the browser.
const { runs } = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const drawn = [];
let onPaper = false;
// In CSS pixels, for paper as narrow as A5: what plotly draws does not shrink with the page.
const PRINTED = { width: 500, height: 280 };

function colours() {
  if (onPaper) return { ink: "#000", soft: "#444", line: "#ddd", paper: "#fff" };
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
  const look = dark.matches && !onPaper ? "dark" : "light";
  return plot.series
    .filter((one) => !hidden.has(one.arm))
    .map((one) => {
      const arm = run.arms[one.arm];
      const trace = {
        x: one.x[axis.name],
        y: one.y,
        mode: plot.lines ? "lines+markers" : "markers",
        line: { color: arm.style[look], dash: arm.style.dash, width: 2 },
        marker: { color: arm.style[look], symbol: arm.style.marker, size: plot.lines ? 6 : 11 },
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
          color: arm.style[look],
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
    margin: { l: 56, r: 16, t: onPaper ? 8 : 36, b: 56 },
    // A zoom stays while what an axis shows is the same.
    xaxis: { ...shared, title: { text: plain(axis.label) }, type: axis.log ? "log" : "linear", uirevision: axis.name },
    yaxis: { ...shared, title: { text: plain(plot.y) }, type: isLog ? "log" : "linear", uirevision: isLog },
    ...(onPaper ? PRINTED : { autosize: true }),
    // The boxes above the plots say what is what, with room for any number of arms.
    showlegend: false,
    hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink } },
    dragmode: isNarrow ? false : "zoom",
  };
}

function draw(item) {
  const { run, plot, place, hidden } = item;
  const axis = plot.axes[Number(item.axis?.value ?? 0)];
  const isNarrow = onPaper || place.clientWidth < 520;
  if (!plot.series.length) {
    place.replaceChildren(Object.assign(document.createElement("p"), { className: "soft", textContent: "No run gave a point." }));
    return Promise.resolve();
  }
  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: true,
    // Plotly's button that uploads a chart: this page reaches nothing outside of it.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
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

const redraw = () => drawn.forEach(draw);
dark.addEventListener("change", redraw);
// Before pages are counted, which is before the medium changes. Paper cannot be clicked, so that
// what is folded is printed too.
let unfolded = [];
addEventListener("beforeprint", () => {
  onPaper = true;
  unfolded = [...document.querySelectorAll("details:not([open])")];
  unfolded.forEach((one) => { one.open = true; });
  redraw();
});
addEventListener("afterprint", () => {
  onPaper = false;
  unfolded.forEach((one) => { one.open = false; });
  redraw();
});

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
