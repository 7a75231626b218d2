// ---------------------------------------------------------------------- saving

const PNG_SCALE = 3;

function save(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

function saveText(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  save(name, url);
  URL.revokeObjectURL(url);
}

const quoted = (cell) => {
  const text = Array.isArray(cell) ? cell.join(" ") : String(cell ?? "");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csvOf = (lines) => lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";

// The rows that the filter shows, as numbers, in the order shown.
function tableCsv(table) {
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  return csvOf([names, ...rows.map((row) => [...row.cells].map((cell) => cell.dataset.value))]);
}

// An SVG file of a figure as it is shown: colours instead of the page's variables, titles back.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", `${width}pt`);
  copy.setAttribute("height", `${height}pt`);
  copy.setAttribute("font-family", "system-ui, sans-serif");
  for (const mark of all(".mark[data-text]", copy)) {
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = mark.dataset.text;
    mark.prepend(title);
  }
  for (const mark of all(".mark", copy)) {
    for (const name of ["class", "data-runs", "data-text"]) mark.removeAttribute(name);
  }
  const colours = getComputedStyle(svg);
  return new XMLSerializer().serializeToString(copy)
    .replaceAll(/var\((--\w+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
}

async function savePng(name, svg) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(standalone(svg))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = PNG_SCALE * image.width;
  canvas.height = PNG_SCALE * image.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(name, canvas.toDataURL("image/png"));
}

// The browser's own PDF: the print dialogue, with the figure alone on a page of its size.
function printFigure(svg) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  const sheet = document.createElement("div");
  sheet.id = "sheet";
  sheet.dataset.theme = "light";
  const size = document.createElement("style");
  size.textContent = `@page { size: ${width}pt ${height}pt; margin: 0 }`;
  sheet.append(size, svg.cloneNode(true));
  document.body.append(sheet);
  addEventListener("afterprint", () => sheet.remove(), { once: true });
  print();
}

function download(figure, kind) {
  const version = figure.querySelector(".version:not([hidden])");
  const { key } = version.dataset;
  const svg = version.querySelector("svg");
  const { keys, rows } = JSON.parse(figure.querySelector("script").textContent);
  const named = () => rows.map((row) => Object.fromEntries(row.map((x, i) => [keys[i], x])));
  const kinds = {
    svg: () => saveText(`${key}.svg`, "image/svg+xml", standalone(svg)),
    png: () => savePng(`${key}.png`, svg),
    pdf: () => printFigure(svg),
    csv: () => saveText(`${key}.csv`, "text/csv", csvOf([keys, ...rows])),
    json: () => saveText(`${key}.json`, "application/json", JSON.stringify(named(), null, 1)),
  };
  kinds[kind]();
}

for (const figure of all("figure")) {
  for (const button of all("[data-kind]", figure)) {
    button.addEventListener("click", () => download(figure, button.dataset.kind));
  }
}
document.getElementById("table-csv").addEventListener("click", () => {
  const key = document.querySelector('[data-tab][aria-selected="true"]').dataset.tab;
  saveText(`${key}.csv`, "text/csv", tableCsv(document.getElementById(key)));
});
