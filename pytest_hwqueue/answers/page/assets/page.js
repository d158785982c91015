// The table (sorting, filtering), the way into a cell's details and back, and light and dark.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// Light and dark: the system's, until the button is pressed.
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
function applyTheme() {
  document.documentElement.classList.toggle("dark", chosen ?? dark.matches);
  document.dispatchEvent(new Event("themechange"));
}
dark.addEventListener("change", applyTheme);
$("#theme").addEventListener("click", () => {
  chosen = !document.documentElement.classList.contains("dark");
  applyTheme();
});
applyTheme();

// The table of cells.
const table = $("#table");
if (table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const buttons = $$("thead button", table);
  const select = $("#sort");
  let sorted = { at: -1, descending: false };

  // What was refused has no number, and comes last in either direction.
  function sortBy(at, descending) {
    const numeric = buttons[at].dataset.kind === "number";
    const key = (row) => row.cells[at]?.dataset.v ?? "";
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = numeric ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return descending ? -order : order;
    };
    rows.sort(compare);
    body.append(...rows);
    buttons.forEach((button, index) => {
      const head = button.parentElement;
      if (index === at) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    sorted = { at, descending };
    select.value = `${at} ${descending}`;
  }
  buttons.forEach((button, at) => {
    button.addEventListener("click", () =>
      sortBy(at, sorted.at === at ? !sorted.descending : button.dataset.kind === "number"));
    for (const descending of [false, true]) {
      select.add(new Option(`${button.textContent} ${descending ? "↓" : "↑"}`, `${at} ${descending}`));
    }
  });
  select.selectedIndex = -1;
  select.addEventListener("change", () => {
    const [at, descending] = select.value.split(" ");
    sortBy(Number(at), descending === "true");
  });

  const input = $("#filter");
  const states = $$("[data-state]", $(".states"));
  function filter() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(states.filter((b) => b.getAttribute("aria-pressed") === "false").map((b) => b.dataset.state));
    let shown = 0;
    for (const row of rows) {
      const found = words.every((word) => row.dataset.find.includes(word)) && !off.has(row.dataset.state);
      row.hidden = !found;
      shown += found;
    }
    $("#count").textContent = shown === rows.length ? `${shown} cells` : `${shown} of ${rows.length} cells`;
  }
  input.addEventListener("input", filter);
  for (const button of states) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
      filter();
    });
  }
  filter();
}

// A cell's details stand in a template until someone opens them: #cell-12.
const overview = $("#overview"), details = $("#details"), title = document.title;
let scrolled = 0, last = null;
function neighbour(link, row, step) {
  const shown = $$("#table tbody tr:not([hidden])");
  const next = shown[shown.indexOf(row) + step];
  if (shown.includes(row) && next) link.href = `#cell-${next.dataset.key}`;
}
function route() {
  const key = /^#cell-(\d+)$/.exec(location.hash)?.[1];
  const template = key && document.getElementById(`cell-${key}-view`);
  closeCharts(details);
  if (!template) {
    const back = !details.hidden;
    details.replaceChildren();
    details.hidden = true;
    overview.hidden = false;
    document.title = title;
    if (back) {
      scrollTo(0, scrolled);
      $(`#table a[href="#cell-${last}"]`)?.focus({ preventScroll: true });
    }
    return;
  }
  if (details.hidden) scrolled = scrollY;
  last = key;
  details.replaceChildren(template.content.cloneNode(true));
  details.hidden = false;
  overview.hidden = true;
  const row = $(`#table tr[data-key="${key}"]`);
  neighbour($(".previous", details), row, -1);
  neighbour($(".next", details), row, 1);
  const head = $("h1", details);
  document.title = `${head.textContent} · ${title}`;
  scrollTo(0, 0);
  head.focus({ preventScroll: true });
  drawWithin(details);
}
addEventListener("hashchange", route);
// Whoever points at a cell may open it: by then the charts' library is there.
for (const event of ["pointerover", "focusin"]) {
  overview.addEventListener(event, ({ target }) => {
    if (target.closest('a[href^="#cell-"]')) loadCharts();
  });
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !details.hidden && event.target === event.target.closest("body, h1, a, button")) location.hash = "";
});
details.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const code = $("code", button.parentElement);
  getSelection().selectAllChildren(code);
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    // A page from disk may have no clipboard: the text is selected, Ctrl-C copies it.
    button.textContent = "Selected: press Ctrl-C";
  }
});
