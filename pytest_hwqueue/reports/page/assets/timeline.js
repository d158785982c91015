// The timeline of streams: a bar for each kernel; of more than a screen shows, neighbours are one
// bar that says how many they are, until someone zooms in.
"use strict";

const MOST_BARS = 1500, NAMED = 7;

// Kernels of a view as bars. Of too many, short ones that are close become one: so close that
// about twice as many bars are left, however many rows share them.
function barsOf(timeline, from, to) {
  const { row, rows, start, end } = timeline;
  const inside = [];
  for (let at = 0; at < start.length && start[at] < to; at += 1) if (end[at] > from) inside.push(at);
  if (inside.length <= MOST_BARS) return inside.map((at) => ({ row: row[at], from: start[at], to: end[at], kernel: at, count: 1 }));
  const close = ((to - from) * rows.length) / (2 * MOST_BARS), open = new Map(), bars = [];
  for (const at of inside) {
    const joined = open.get(row[at]);
    if (joined && start[at] - joined.to < close && end[at] - start[at] < 2 * close && joined.to - joined.from < 12 * close) {
      joined.to = Math.max(joined.to, end[at]);
      joined.count += 1;
    } else {
      const bar = { row: row[at], from: start[at], to: end[at], kernel: at, count: 1 };
      open.set(row[at], bar);
      bars.push(bar);
    }
  }
  return bars;
}

function timelineChart(timeline, view, simulated) {
  const { names, rows, ready, start, end } = timeline;
  const [from, to] = view;
  const unit = timeUnit(to - from), bars = barsOf(timeline, from, to);
  const tone = (bar) => (bar.count > 1 ? colour("rest") : nameColour(timeline.name[bar.kernel]));
  const exact = (ns) => (ns === null ? "not known" : `${(ns / unit.ns).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit.name}`);
  const text = bars.map((bar) => bar.count > 1
    ? `${bar.count} kernels: zoom in<br>${exact(bar.from)} to ${exact(bar.to)}`
    : `<b>${plain(names[timeline.name[bar.kernel]])}</b><br>${plain(rows[bar.row])}<br>ready ${exact(ready[bar.kernel])}<br>start ${exact(start[bar.kernel])}<br>end ${exact(end[bar.kernel])}`);
  const waits = bars.filter((bar) => bar.count === 1 && ready[bar.kernel] !== null && ready[bar.kernel] < bar.from);
  const trace = (list, given) => ({ type: "bar", orientation: "h", y: list.map((bar) => bar.row), showlegend: false, ...given });
  return {
    bars,
    data: [
      trace(waits, { base: waits.map((bar) => ready[bar.kernel] / unit.ns), x: waits.map((bar) => (bar.from - ready[bar.kernel]) / unit.ns), width: 0.14, marker: { color: colour("soft"), opacity: 0.45 }, hoverinfo: "skip" }),
      trace(bars, { base: bars.map((bar) => bar.from / unit.ns), x: bars.map((bar) => (bar.to - bar.from) / unit.ns), width: 0.7, marker: { color: bars.map(tone), line: { width: 0 } }, hovertext: text, hoverinfo: "text" }),
    ],
    layout: layout(simulated, {
      barmode: "overlay", bargap: 0.2, dragmode: "zoom", height: Math.min(900, 110 + 26 * rows.length),
      xaxis: { range: [from / unit.ns, to / unit.ns], title: { text: `${innerWidth < 600 ? "time" : "time since the first start"}, ${unit.name}` }, zeroline: false },
      yaxis: { tickvals: rows.map((_, at) => at), ticktext: rows.map(plain), tickfont: { size: innerWidth < 600 ? 10 : 12 }, range: [rows.length - 0.4, -0.6], fixedrange: true, zeroline: false, showgrid: false },
    }),
    unit,
  };
}
const nameColour = (at) => colour(at < NAMED ? `c${at}` : "rest");

function drawTimelines(place, timelines, simulated) {
  place.innerHTML = '<div class="tools"><label>Show <select aria-label="Timeline"></select></label>'
    + ["in|+|Zoom in", "out|−|Zoom out", "left|←|Earlier", "right|→|Later", "all|All|Show all"].map((each) => {
      const [act, sign, label] = each.split("|");
      return `<button type="button" data-act="${act}" aria-label="${label}" title="${label}">${sign}</button>`;
    }).join("") + '<span class="where" role="status"></span></div><div class="plot" style="height:auto"></div><ul class="legend"></ul>';
  const select = $("select", place), plot = $(".plot", place), where = $(".where", place), legend = $(".legend", place);
  timelines.forEach((each, at) => select.add(new Option(`${each.title} (${each.kernels} kernels)`, at)));
  let timeline, view, whole, unit;

  // Kernels overlap, and the last to start need not be the last to end.
  const span = (each) => [Math.min(0, ...each.ready.filter((ns) => ns !== null).slice(0, 50)), each.end.reduce((a, b) => Math.max(a, b), 1)];
  const clamp = ([from, to]) => {
    const length = Math.max(10, Math.min(to - from, whole[1] - whole[0]));
    const first = Math.max(whole[0], Math.min(from, whole[1] - length));
    return [first, first + length];
  };
  function make() {
    const made = timelineChart(timeline, view, simulated);
    unit = made.unit;
    const single = made.bars.every((bar) => bar.count === 1);
    where.textContent = `${shownTime(view[1] - view[0])} from ${shownTime(Math.max(0, view[0]))}; ${single ? `${made.bars.length} kernels` : "kernels close to each other are joined"}`;
    return made;
  }
  async function show(next) {
    view = clamp(next);
    const { data, layout: given } = make();
    await window.Plotly.react(plot, data, given, config);
  }
  async function choose() {
    timeline = timelines[select.value];
    whole = span(timeline);
    // A screenful first: everything at once shows no kernel.
    const first = timeline.end[Math.min(timeline.end.length, 400) - 1];
    view = clamp([whole[0], first * 1.02]);
    legend.replaceChildren(...timeline.names.slice(0, NAMED + 1).map((name, at) => {
      const item = document.createElement("li"), mark = document.createElement("i");
      mark.style.background = nameColour(at);
      item.append(mark, at < NAMED ? name : `${timeline.names.length - NAMED} other names`);
      return item;
    }));
    if (drawn.has(plot)) await show(view);
    else {
      await draw(plot, make);
      plot.on?.("plotly_relayout", (event) => {
        if ("xaxis.range[0]" in event) show([event["xaxis.range[0]"] * unit.ns, event["xaxis.range[1]"] * unit.ns]);
        else if (event["xaxis.autorange"]) show(whole);
      });
    }
  }
  place.addEventListener("click", (event) => {
    const act = event.target.dataset.act, length = view[1] - view[0];
    if (act === "in") show([view[0] + length / 4, view[1] - length / 4]);
    if (act === "out") show([view[0] - length / 2, view[1] + length / 2]);
    if (act === "left") show([view[0] - length / 2, view[1] - length / 2]);
    if (act === "right") show([view[0] + length / 2, view[1] + length / 2]);
    if (act === "all") show(whole);
  });
  select.addEventListener("change", choose);
  choose();
}
document.addEventListener("themechange", () => {
  for (const item of $$(".legend i")) item.style.background = nameColour([...item.parentElement.parentElement.children].indexOf(item.parentElement));
});
