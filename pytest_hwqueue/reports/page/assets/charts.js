// Charts, drawn by plotly when they are looked at. All figures come from the page's data.
"use strict";

let plotlyLoading = null;
function loadPlotly() {
  plotlyLoading ??= (async () => {
    const packed = document.getElementById("plotly");
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
    return window.Plotly;
  })();
  return plotlyLoading;
}

// Read once for each theme: every reading has the browser compute styles.
const colours = new Map();
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}
// Plotly reads tags in texts; a name that looks like one is no tag.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
function timeUnit(ns) {
  if (ns < 1e6) return { name: "µs", ns: 1e3 };
  return ns < 1e9 ? { name: "ms", ns: 1e6 } : { name: "s", ns: 1e9 };
}
const digits = (value) => Number(value.toPrecision(4)).toString();
const shownTime = (ns, unit = timeUnit(ns)) => `${digits(ns / unit.ns)} ${unit.name}`;

function layout(simulated, extra) {
  const axis = { gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, tickcolor: colour("line") };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 16, t: 8, b: 44 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 12 } }, hovermode: "closest", shapes: [], annotations: [], ...extra,
  };
  for (const name of ["xaxis", "yaxis"]) base[name] = { ...axis, ...base[name] };
  if (simulated) {
    base.annotations = [{ text: "SIMULATED", xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false,
      textangle: -18, font: { size: Math.min(44, innerWidth / 14), color: colour("sim") }, opacity: 0.2 }, ...base.annotations];
  }
  return base;
}
const config = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]] };

// Every drawn chart, so that it is drawn again when the theme changes, and freed when it closes.
const drawn = new Map();
async function draw(element, make) {
  try {
    const Plotly = await loadPlotly();
    if (!element.isConnected) return;
    drawn.set(element, make);
    const { data, layout: given } = make();
    await Plotly.newPlot(element, data, given, config);
  } catch (error) {
    element.textContent = `This chart could not be drawn: ${error.message}`;
    element.classList.add("failed-chart");
    throw error;
  }
}
function closeCharts(within) {
  for (const element of drawn.keys()) {
    if (within.contains(element)) {
      window.Plotly.purge(element);
      drawn.delete(element);
    }
  }
}
document.addEventListener("themechange", () => {
  colours.clear();
  for (const [element, make] of drawn) {
    const { data, layout: given } = make();
    window.Plotly.react(element, data, given, config);
  }
});

function survivalChart({ runs, pooled, behind, lines, simulated }) {
  const all = [...runs.map((run) => run.survival), ...[pooled, behind].filter(Boolean)];
  const unit = timeUnit(lines[0]?.ns ?? all[0].ns[0]);
  const curve = (given, name, line, group) => ({
    type: "scatter", mode: "lines", name: plain(name), x: given.ns.map((ns) => ns / unit.ns), y: given.as_long.map((count) => count / given.n),
    line: { shape: "vh", ...line }, legendgroup: group,
    hovertemplate: `%{x:.4~g} ${unit.name}<br>%{y:.3~p} took at least as long<extra>${plain(name)}, n = ${given.n}</extra>`,
  });
  const data = [];
  if (behind) data.push(curve(behind, `baseline ${behind.label}`, { color: colour("behind"), width: 5 }, "behind"));
  runs.forEach((run, index) => {
    const one = runs.length === 1;
    const trace = curve(run.survival, one ? run.label : `each run (${runs.length})`, { color: colour("c0"), width: one ? 3 : 1 }, "runs");
    trace.hovertemplate = trace.hovertemplate.replace(/<extra>.*/, `<extra>${plain(run.label)}, n = ${run.survival.n}</extra>`);
    data.push({ ...trace, showlegend: index === 0, opacity: one ? 1 : 0.65 });
  });
  if (pooled) data.push(curve(pooled, "all runs pooled", { color: colour("c5"), width: 3.5 }, "pooled"));
  const least = Math.min(...all.map((given) => given.as_long.at(-1) / given.n));
  const ticks = [[1, "all"], [0.5, "P50"], [0.1, "P90"], [0.05, "P95"], [0.01, "P99"], [0.001, "P99.9"], [0.0001, "P99.99"]].filter(([share]) => share >= least / 2);
  const ends = all.flatMap((given) => [given.ns[0], given.ns.at(-1)]);
  const [low, high] = [Math.min(...ends) / unit.ns, Math.max(...ends) / unit.ns];
  return {
    data,
    layout: layout(simulated, {
      xaxis: { type: "log", title: { text: `latency, ${unit.name} (log)` }, ...logTicks(low, high) },
      yaxis: { type: "log", tickvals: ticks.map(([share]) => share), ticktext: ticks.map(([, text]) => text), title: { text: "slower than" } },
      shapes: lines.map((line) => ({ type: "line", x0: line.ns / unit.ns, x1: line.ns / unit.ns, yref: "paper", y0: 0, y1: 1, line: { color: colour("soft"), width: 1, dash: "dot" } })),
      annotations: lines.map((line, index) => ({ x: Math.log10(line.ns / unit.ns), y: 1 - 0.08 * index, yref: "paper", text: `${line.label} ${shownTime(line.ns, unit)}`, showarrow: false, xanchor: "left", xshift: 4, font: { size: 12, color: colour("soft") }, bgcolor: colour("card") })),
    }),
  };
}

// Latencies seldom span a decade, and plotly then labels an axis with lone digits.
function logTicks(low, high) {
  if (!(low > 0)) return {};
  if (high / low > 30) return { dtick: "D2" };
  const step = 10 ** Math.floor(Math.log10(high - low || low)) / (high / low > 1.5 ? 1 : 2);
  const wide = [1, 2, 5, 10].map((factor) => factor * step).find((each) => (high - low) / each <= 6) ?? step;
  const values = [];
  for (let at = Math.ceil(low / wide); at * wide <= high * 1.001 && values.length < 12; at += 1) values.push(at * wide);
  return values.length > 1 ? { tickvals: values, ticktext: values.map(digits) } : {};
}

function orderChart({ runs, lines, simulated }) {
  const unit = timeUnit(lines[0]?.ns ?? runs[0].order.ns[0]);
  const shapes = [], annotations = [], data = [];
  let offset = 0;
  runs.forEach((run, index) => {
    const { ns, n } = run.order, at = run.order.at ?? ns.map((_, index) => index);
    data.push({
      type: "scatter", mode: "markers", name: plain(run.label), x: at.map((each) => offset + each), y: ns.map((each) => each / unit.ns),
      customdata: at, marker: { size: 4, color: colour(run.shown ? "c5" : "c0"), opacity: 0.7, symbol: run.shown ? "circle" : "circle-open" }, showlegend: false,
      hovertemplate: `%{y:.4~g} ${unit.name}<br>sample %{customdata}<extra>${plain(run.label)}${run.shown ? " (shown)" : ""}</extra>`,
    });
    for (const span of run.throttled) {
      shapes.push({ type: "rect", x0: offset + span.first, x1: offset + span.end, yref: "paper", y0: 0, y1: 1, fillcolor: colour("c1"), opacity: 0.25, line: { width: 0 } });
      annotations.push({ x: offset + span.first, y: 1, yref: "paper", yanchor: "top", xanchor: "left", showarrow: false, text: plain(`throttled: ${span.reasons}`), font: { size: 11, color: colour("warn") } });
    }
    if (run.noise) {
      shapes.push({ type: "rect", x0: offset, x1: offset + n, yref: "paper", y0: 0, y1: 1, fillcolor: colour("c3"), opacity: 0.12, line: { width: 0 } });
      if (runs[index - 1]?.noise !== run.noise) annotations.push({ x: offset, y: 0, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false, text: plain(`noise ${run.noise}`), font: { size: 11, color: colour("sim") } });
    }
    if (index) shapes.push({ type: "line", x0: offset, x1: offset, yref: "paper", y0: 0, y1: 1, line: { color: colour("line"), width: 1 } });
    offset += n;
  });
  for (const line of lines) {
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: line.ns / unit.ns, y1: line.ns / unit.ns, line: { color: colour("soft"), width: 1, dash: "dot" } });
    annotations.push({ xref: "paper", x: 1, xanchor: "right", y: line.ns / unit.ns, yanchor: "bottom", showarrow: false, text: line.label, font: { size: 11, color: colour("soft") } });
  }
  return {
    data,
    layout: layout(simulated, {
      xaxis: { title: { text: "sample" }, zeroline: false },
      yaxis: { title: { text: `latency, ${unit.name}` }, zeroline: false }, shapes, annotations,
    }),
  };
}

function scalingChart({ scaling, simulated }) {
  const { streams, throughput, low, high, unit, saturation, range } = scaling;
  const shapes = [];
  if (saturation !== null) {
    shapes.push({ type: "line", x0: saturation, x1: saturation, yref: "paper", y0: 0, y1: 1, line: { color: colour("c5"), width: 1.5, dash: "dot" } });
    if (range && range[0] !== range[1]) shapes.push({ type: "rect", x0: range[0], x1: range[1], yref: "paper", y0: 0, y1: 1, fillcolor: colour("c5"), opacity: 0.1, line: { width: 0 } });
  }
  return {
    data: [{
      type: "scatter", mode: "lines+markers", x: streams, y: throughput, line: { color: colour("c0") }, marker: { size: 9 }, showlegend: false,
      error_y: { type: "data", symmetric: false, array: high.map((end, i) => (end === null ? 0 : end - throughput[i])), arrayminus: low.map((end, i) => (end === null ? 0 : throughput[i] - end)), color: colour("c0") },
      hovertemplate: `%{x} streams: %{y:.4~s} ${plain(unit)}<extra></extra>`,
    }],
    layout: layout(simulated, {
      xaxis: { type: "log", title: { text: "streams" }, tickvals: streams, ticktext: streams.map(String) },
      yaxis: { title: { text: plain(unit) }, rangemode: "tozero", exponentformat: "SI" }, shapes,
      annotations: saturation === null ? [] : [{ x: Math.log10(saturation), y: 0, yref: "paper", yanchor: "bottom", xanchor: "left", xshift: 4, showarrow: false, text: `saturated from ${saturation}`, font: { size: 12, color: colour("c5") } }],
    }),
  };
}

// Modes that lie on one spot share a label, a line for each, at the first of them.
function sharedLabels(points) {
  const reach = (key) => Math.max(...points.map((p) => p[key])) - Math.min(...points.map((p) => p[key]));
  const [wide, high] = [0.15 * reach("loss"), 0.1 * reach("p99")];
  const labels = new Map();
  for (const point of points) {
    const near = [...labels.keys()].find((other) => Math.abs(other.loss - point.loss) <= wide && Math.abs(other.p99 - point.p99) <= high && labels.get(other));
    labels.set(point, near ? "" : plain(point.case));
    if (near) labels.set(near, `${labels.get(near)}<br>${plain(point.case)}`);
  }
  return labels;
}

function paretoChart(points, simulated) {
  const labels = sharedLabels(points);
  const kinds = { met: ["circle", "good", "all goals met"], missed: ["x", "bad", "a goal missed"], undecided: ["triangle-up", "warn", "a goal undecided"], none: ["square", "soft", "no goals"] };
  const ends = (low, value, high) => ({ type: "data", symmetric: false, thickness: 1, width: 3, color: colour("rest"),
    array: points.map((p) => (p[high] === null ? 0 : p[high] - p[value])), arrayminus: points.map((p) => (p[low] === null ? 0 : p[value] - p[low])) });
  const middle = (Math.min(...points.map((p) => p.loss)) + Math.max(...points.map((p) => p.loss))) / 2;
  const front = points.filter((p) => p.front).sort((a, b) => a.loss - b.loss);
  const data = [{ type: "scatter", mode: "lines", x: front.map((p) => p.loss), y: front.map((p) => p.p99), line: { shape: "hv", color: colour("soft"), width: 1, dash: "dash" }, hoverinfo: "skip", showlegend: false }];
  data.push({ type: "scatter", mode: "markers", x: points.map((p) => p.loss), y: points.map((p) => p.p99), marker: { opacity: 0 }, error_x: ends("loss_low", "loss", "loss_high"), error_y: ends("p99_low", "p99", "p99_high"), hoverinfo: "skip", showlegend: false });
  for (const [kind, [symbol, tone, name]] of Object.entries(kinds)) {
    const those = points.filter((p) => p.together === kind);
    if (!those.length) continue;
    data.push({
      type: "scatter", mode: "markers+text", name, x: those.map((p) => p.loss), y: those.map((p) => p.p99), text: those.map((p) => labels.get(p)), textposition: those.map((p) => (p.loss > middle ? "top left" : "top right")), textfont: { size: 12 },
      marker: { symbol, size: 12, color: colour(tone), line: { width: 1, color: colour("card") } }, cliponaxis: false,
      hovertext: those.map((p) => plain(`${p.case}: P99 ${digits(p.p99)} ms [${p.p99_low === null ? "-∞" : digits(p.p99_low)}, ${p.p99_high === null ? "∞" : digits(p.p99_high)}], loss ${digits(p.loss)} %`) + (p.loss_low === null ? "" : ` [${digits(p.loss_low)}, ${p.loss_high === null ? "∞" : digits(p.loss_high)}]`) + (p.note ? `<br>${plain(p.note)}` : "")),
      hoverinfo: "text",
    });
  }
  return {
    data,
    layout: layout(simulated, {
      xaxis: { title: { text: "throughput lost to native, %" } }, yaxis: { title: { text: "P99 of the urgent tenant, ms (log)" }, type: "log", ...logTicks(Math.min(...points.map((p) => p.p99)), Math.max(...points.map((p) => p.p99))) },
      margin: { l: 64, r: 24, t: 24, b: 44 },
    }),
  };
}

const CHARTS = { survival: survivalChart, order: orderChart, scaling: scalingChart };
function drawCell(within, data) {
  for (const element of $$("[data-chart]", within)) draw(element, () => CHARTS[element.dataset.chart](data));
  const timeline = $(".timeline", within);
  if (timeline && data.timelines.length) drawTimelines(timeline, data.timelines, data.simulated);
}
$$(".pareto").forEach((element) => {
  const points = JSON.parse(document.getElementById(`which-data-${element.dataset.which}`).textContent)[element.dataset.pareto];
  draw(element, () => paretoChart(points, element.closest(".which").classList.contains("simulated")));
});
route();
