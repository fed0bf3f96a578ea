"use strict";

// Themes: the system's until the reader chooses otherwise.
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const remembered = {
  get() { try { return localStorage.getItem("equipoise-theme"); } catch { return null; } },
  set(theme) { try { localStorage.setItem("equipoise-theme", theme); } catch { /* a page from a file may not remember */ } },
};

function shown() {
  return document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
}

function name() {
  button.textContent = shown() === "dark" ? "Light theme" : "Dark theme";
}

if (["light", "dark"].includes(remembered.get())) document.documentElement.dataset.theme = remembered.get();
button.addEventListener("click", () => {
  document.documentElement.dataset.theme = shown() === "dark" ? "light" : "dark";
  remembered.set(shown());
  name();
});
system.addEventListener("change", name);
button.hidden = false;
name();

// Sorting: the heading of each column becomes a button. What is missing stays last.
function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  return text === "" || text.startsWith("–") ? null : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const before = heads[column].getAttribute("aria-sort");
  const rows = [...table.tBodies[0].rows];
  const numeric = rows.some((row) => typeof valueOf(row, column) === "number");
  // Numbers start with the highest, words with the first.
  const first = numeric ? "descending" : "ascending";
  const second = numeric ? "ascending" : "descending";
  const order = before === first ? second : first;
  rows.sort((one, other) => {
    const a = valueOf(one, column);
    const b = valueOf(other, column);
    if (a === null || b === null) return (a === null) - (b === null);
    return order === "ascending" ? compare(a, b) : compare(b, a);
  });
  heads.forEach((head, at) => head.setAttribute("aria-sort", at === column ? order : "none"));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table[data-sortable]")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sorter = document.createElement("button");
    sorter.type = "button";
    sorter.append(...head.childNodes);
    sorter.addEventListener("click", () => sort(table, column));
    head.append(sorter);
    head.setAttribute("aria-sort", "none");
  });
}

// Paper cannot be clicked: print everything that is folded.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
