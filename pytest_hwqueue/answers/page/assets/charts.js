// Draws the page's charts, which are Vega-Lite descriptions, when somebody looks at them.
"use strict";

let loading = null;
function loadCharts() {
  loading ??= (async () => {
    const packed = document.getElementById("vega");
    const bytes = Uint8Array.from(atob(packed.textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    // A module's text, whose names would meet ours.
    script.textContent = `(() => {${await new Response(stream).text()}})();`;
    document.head.append(script);
    packed.remove();
    return window.vegaEmbed;
  })();
  return loading;
}

// A description names the style sheet's colours.
function coloured(spec) {
  const style = getComputedStyle(document.documentElement);
  return JSON.parse(JSON.stringify(spec).replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim()));
}

// Every drawn chart, so that it is drawn again when the theme changes, and freed when it closes.
const drawn = new Map();
async function draw(element, spec) {
  try {
    const embed = await loadCharts();
    if (!element.isConnected) return null;
    const config = coloured(JSON.parse($("#chart-config").textContent));
    if (element.clientWidth < 500) config.legend.columns = 1;
    // A row for each node, however many there are.
    if (spec.height?.step) element.style.height = "auto";
    // The interpreter does without eval, which the page forbids.
    const { view, finalize } = await embed(element, coloured({ width: "container", height: "container", autosize: { type: "fit", contains: "padding" }, ...spec }), {
      mode: "vega-lite", ast: true, renderer: "svg", config, actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: document.documentElement.classList.contains("dark") ? "dark" : "light" },
    });
    drawn.get(element)?.finalize();
    if (!element.isConnected) {
      finalize();
      return null;
    }
    drawn.set(element, { spec, view, finalize });
    return view;
  } catch (error) {
    element.textContent = `This chart could not be drawn: ${error.message}`;
    element.classList.add("failed-chart");
    throw error;
  }
}
function closeCharts(within) {
  for (const [element, { finalize }] of drawn) {
    if (within.contains(element)) {
      finalize();
      drawn.delete(element);
    }
  }
}
document.addEventListener("themechange", () => {
  for (const [element, { spec, view }] of drawn) {
    if (spec.usermeta) element.dispatchEvent(new Event("redraw"));
    else draw(element, spec);
  }
});

// The timeline of streams: buttons and a drag choose what is shown of it.
let zoom = null;
addEventListener("pointerup", () => {
  zoom?.();
  zoom = null;
});
function drawTimelines(place, timelines) {
  place.innerHTML = '<div class="tools"><label>Show <select aria-label="Timeline"></select></label>'
    + ["in|+|Zoom in", "out|−|Zoom out", "left|←|Earlier", "right|→|Later", "all|All|Show all"].map((each) => {
      const [act, sign, label] = each.split("|");
      return `<button type="button" data-act="${act}" aria-label="${label}" title="${label}">${sign}</button>`;
    }).join("") + '<span class="where" role="status"></span></div><div class="plot"></div><ul class="legend"></ul>';
  const select = $("select", place), plot = $(".plot", place);
  timelines.forEach((each, at) => select.add(new Option(each.description, at)));
  let view, from, to, start, end, unit;
  const short = (value) => Number(value.toPrecision(4)).toString();
  function show(first, last) {
    const length = Math.min(last - first, end - start);
    from = Math.max(start, Math.min(first, end - length));
    to = from + length;
    view.signal("first", from).signal("last", to).runAsync();
    $(".where", place).textContent = `${short(to - from)} ${unit} from ${short(Math.max(0, from))} ${unit}`;
  }
  async function choose(keep) {
    const spec = timelines[select.value];
    ({ start, end, unit } = spec.usermeta);
    plot.style.height = `${spec.usermeta.height}px`;
    $(".legend", place).replaceChildren(...Object.entries(spec.usermeta.legend).map(([name, colour]) => {
      const item = document.createElement("li"), mark = document.createElement("i");
      mark.style.background = colour;
      item.append(mark, name);
      return item;
    }));
    view = await draw(plot, spec);
    if (!view) return;
    if (keep) show(from, to);
    else show(view.signal("first"), view.signal("last"));
    view.addSignalListener("zoom", (_, { start: dragged }) => {
      zoom = dragged && (() => view.signal("zoom_x", [0, 0]).runAsync().then(() => show(...dragged)));
    });
  }
  place.addEventListener("click", (event) => {
    const act = event.target.dataset.act, length = to - from;
    if (act === "in") show(from + length / 4, to - length / 4);
    if (act === "out") show(from - length / 2, to + length / 2);
    if (act === "left") show(from - length / 2, to - length / 2);
    if (act === "right") show(from + length / 2, to + length / 2);
    if (act === "all") show(start, end);
  });
  select.addEventListener("change", () => choose(false));
  plot.addEventListener("redraw", () => choose(true));
  choose(false);
}

// A chart's description stands behind its place.
const description = (element) => JSON.parse(element.nextElementSibling.textContent);
function drawWithin(place) {
  for (const element of $$("[data-chart]", place)) draw(element, description(element));
  for (const element of $$(".timeline", place)) drawTimelines(element, description(element));
}
drawWithin(document);
route();
