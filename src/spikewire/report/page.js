const page = document.documentElement;
const filter = document.getElementById("filter");
const tip = document.getElementById("tip");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
// numbers of the runs behind rows of tables, marks in figures and settings; those of each point
// that a line joins
const partsOf = new Map(all("[data-runs]").map((element) => [
  element, element.dataset.runs.split("|").map((part) => part.split(" ").filter(Boolean)),
]));
const runsOf = new Map([...partsOf].map(([element, parts]) => [element, parts.flat()]));

// ---------------------------------------------------------------------- theme

function toggleTheme() {
  const dark = page.dataset.theme
    ? page.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = dark ? "light" : "dark";
  remember({ theme: page.dataset.theme });
}

// ---------------------------------------------------------------------- tables

function value(row, column) {
  const text = row.cells[column].dataset.value;
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(table, column, turn) {
  const heads = [...table.tHead.rows[0].cells];
  if (!heads[column]) return;
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", turn);
  const sign = turn === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [one, two] = [value(a, column), value(b, column)];
    if (one === "" || two === "") return (one === "") - (two === ""); // missing values come last
    return sign * compare(one, two);
  });
  table.tBodies[0].append(...rows);
  remember({ sorts: { ...state.sorts, [table.id]: [column, turn] } });
}

function selectTab(key) {
  for (const tab of all("[data-tab]")) {
    const selected = tab.dataset.tab === key;
    tab.setAttribute("aria-selected", selected);
    document.getElementById(`${tab.dataset.tab}-panel`).hidden = !selected;
  }
  remember({ tab: key });
}

// ---------------------------------------------------------------------- filter

// A run is shown if its row has all words; "seed=1" is a whole cell. Everything else that names
// runs is shown with any of its runs: rows of means, marks in figures, settings.
function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const names = all("#runs thead th").map((head) => head.textContent);
  const rows = all("#runs tbody tr");
  const shown = new Set();
  for (const row of rows) {
    const cells = [...row.cells].map((cell) => cell.textContent.toLowerCase());
    const pairs = cells.map((text, column) => `${names[column]}=${text}`);
    const fits = (word) => pairs.includes(word) || cells.some((text) => text.includes(word));
    if (words.every(fits)) shown.add(runsOf.get(row)[0]);
  }
  for (const [element, parts] of partsOf) {
    const visible = parts.every((part) => !part.length || part.some((run) => shown.has(run)));
    if (element instanceof SVGElement) {
      if (visible) element.removeAttribute("display");
      else element.setAttribute("display", "none");
    } else element.hidden = !visible;
  }
  page.classList.toggle("crowded", all("#means tbody tr").filter((row) => !row.hidden).length > 9);
  tip.hidden = true; // what it points at may have moved
  document.getElementById("count").textContent = `${shown.size} of ${rows.length} runs`;
  remember({ filter: filter.value });
}

// ---------------------------------------------------------------------- figures

function choose(figure, name) {
  const versions = all(".version", figure);
  if (!versions.some((version) => version.dataset.version === name)) return;
  for (const version of versions) version.hidden = version.dataset.version !== name;
  for (const button of all("[data-choose]", figure)) {
    button.setAttribute("aria-pressed", button.dataset.choose === name);
  }
  remember({ choices: { ...state.choices, [figure.id]: name } });
}

function chooseRun(name) {
  const parts = all(".inside");
  if (!parts.some((part) => part.dataset.run === name)) return;
  for (const part of parts) part.hidden = part.dataset.run !== name;
  document.getElementById("chosen").value = name;
  remember({ run: name });
}

// The title of a mark becomes a tip that appears at once, also on touch; marks are small, so the
// nearest within a few pixels counts.
function markNear(x, y) {
  for (const radius of [0, 4, 8]) {
    for (const [dx, dy] of [[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]]) {
      const hit = document.elementFromPoint(x + radius * dx, y + radius * dy)?.closest(".mark");
      if (hit?.dataset.text) return hit;
    }
  }
  return null;
}

let current = null;
function point(event) {
  const inside = event.target.closest?.("figure svg");
  const mark = inside ? markNear(event.clientX, event.clientY) : null;
  const source = mark ?? event.target.closest?.("tr[data-runs]") ?? null;
  if (source !== current) highlight(source);
  current = source;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.text;
  const { offsetWidth: wide, offsetHeight: high } = tip;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - wide - 4))}px`;
  const above = event.clientY - high - 12;
  tip.style.top = `${above > 4 ? above : event.clientY + 18}px`;
}

function highlight(source) {
  const runs = new Set(source ? runsOf.get(source) : []);
  page.classList.toggle("pointing", runs.size > 0);
  for (const [element, names] of runsOf) {
    element.classList.toggle("hot", names.some((name) => runs.has(name)));
  }
}

// ---------------------------------------------------------------------- start

for (const title of all(".mark > title")) {
  title.parentElement.dataset.text = title.textContent;
  title.remove(); // else the browser shows it a second time
}
document.getElementById("theme").addEventListener("click", toggleTheme);
filter.addEventListener("input", applyFilter);
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
for (const tab of all("[data-tab]")) {
  tab.addEventListener("click", () => selectTab(tab.dataset.tab));
}
for (const table of all("table")) {
  for (const head of table.tHead.rows[0].cells) {
    head.firstElementChild.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      sortBy(table, head.cellIndex, down ? "ascending" : "descending");
    });
  }
  if (state.sorts[table.id]) sortBy(table, ...state.sorts[table.id]);
}
for (const figure of all("figure")) {
  for (const button of all("[data-choose]", figure)) {
    button.addEventListener("click", () => choose(figure, button.dataset.choose));
  }
  if (state.choices[figure.id]) choose(figure, state.choices[figure.id]);
}
document.getElementById("chosen")?.addEventListener("change", (event) => {
  chooseRun(event.target.value);
});
if (state.run) chooseRun(state.run);
if (state.tab) selectTab(state.tab);
filter.value = state.filter;
applyFilter();
