"use strict";
const page = document.documentElement;
const table = document.getElementById("runs");
const rows = [...table.tBodies[0].rows];
const filter = document.getElementById("filter");
const count = document.getElementById("count");

function toggleTheme() {
  const dark = page.dataset.theme
    ? page.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = dark ? "light" : "dark";
}

function value(row, column) {
  const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
  return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(head) {
  const turn = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", turn);
  const sign = turn === "ascending" ? 1 : -1;
  const column = head.cellIndex;
  rows.sort((a, b) => {
    const [one, two] = [value(a, column), value(b, column)];
    if (one === "" || two === "") return (one === "") - (two === ""); // missing values come last
    return sign * compare(one, two);
  });
  table.tBodies[0].append(...rows);
}

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  count.textContent = `${shown} of ${rows.length} runs`;
}

const quoted = (cell) => {
  const text = Array.isArray(cell) ? cell.join(" ") : String(cell ?? "");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

function csv(data) {
  const keys = [...new Set(data.flatMap(Object.keys))];
  return [keys, ...data.map((row) => keys.map((key) => row[key]))]
    .map((line) => line.map(quoted).join(",")).join("\n") + "\n";
}

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

function download(button) {
  const { figure, kind } = button.dataset;
  const data = JSON.parse(document.getElementById(`${figure}-data`).textContent);
  if (kind === "csv") save(`${figure}.csv`, "text/csv", csv(data));
  else save(`${figure}.json`, "application/json", JSON.stringify(data, null, 1));
}

document.getElementById("theme").addEventListener("click", toggleTheme);
filter.addEventListener("input", applyFilter);
for (const head of table.tHead.rows[0].cells) {
  head.firstElementChild.addEventListener("click", () => sortBy(head));
}
for (const button of document.querySelectorAll("button[data-figure]")) {
  button.addEventListener("click", () => download(button));
}
applyFilter();
