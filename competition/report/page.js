// The report works without this script, which adds: tables that sort and filter, large pictures, zoom, cells and points that
// say what they are, and a cue on tables that are cut off. It loads nothing and sends nothing.
"use strict";

function element(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// ----- tables

const SECONDS = { s: 1, min: 60, h: 3600, d: 86400 };

function sortKey(text) {
  const durations = [...text.matchAll(/([\d.,]+) (s|min|h|d)\b/g)];
  if (durations.length && text.startsWith(durations[0][0])) {
    return durations.reduce((sum, part) => sum + parseFloat(part[1].replace(/,/g, "")) * SECONDS[part[2]], 0);
  }
  const number = text.replace(/,(?=\d{3})/g, "").match(/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?/i);
  return number ? parseFloat(number[0]) : NaN;
}

function compared(a, b) {
  const [x, y] = [sortKey(a), sortKey(b)];
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return Number.isNaN(x) ? a.localeCompare(b) : x - y;
}

function sortBy(table, column, header) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row, row.cells[column].textContent.trim()]);
  const isNumeric = rows.some(([, text]) => !Number.isNaN(sortKey(text)));
  const current = header.getAttribute("aria-sort") || (isNumeric ? "ascending" : "descending"); // numbers: the largest first
  const order = current === "descending" ? "ascending" : "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const isEmpty = (text) => text === "" || text === "–" || text === "-";
  rows.sort(([, a], [, b]) => (isEmpty(a) !== isEmpty(b) ? (isEmpty(a) ? 1 : -1) : sign * compared(a, b)));
  body.append(...rows.map(([row]) => row));
}

function addFilter(table, box) {
  const name = table.caption.textContent;
  const count = element("span", { role: "status" });
  const input = element("input", { type: "search", placeholder: "filter rows", ariaLabel: `Filter the rows of: ${name}` });
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  });
  box.before(element("div", { className: "bar" }, input, count));
}

for (const table of document.querySelectorAll("table")) {
  const rows = table.tBodies[0].rows.length;
  if (rows > 1) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      if (!header.textContent.trim()) return;
      const button = element("button", { type: "button", title: "sort" }, ...header.childNodes);
      button.addEventListener("click", () => sortBy(table, column, header));
      header.append(button);
    });
  }
  if (rows > 10) addFilter(table, table.parentElement);
}

// ----- what is cut off at the right says so, and is reached by Tab and scrolled by the arrow keys

function markCut(box, cue) {
  const isCut = box.scrollWidth > box.clientWidth + 1;
  if (isCut) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
  cue.hidden = !isCut || box.scrollLeft + box.clientWidth >= box.scrollWidth - 2;
}

for (const box of document.querySelectorAll(".scroll")) {
  const cue = element("p", { className: "cue", hidden: true }, "more to the right → scroll, or Tab and arrow keys");
  box.after(cue);
  const update = () => markCut(box, cue);
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
}

// ----- zoom

for (const charts of document.querySelectorAll(".zoomable")) {
  const box = charts.parentElement;
  const drawings = [...charts.querySelectorAll("svg")];
  const widths = drawings.map((svg) => svg.viewBox.baseVal.width);
  let scale = 1;
  const show = (wanted) => {
    scale = Math.min(Math.max(wanted, 0.2), 6);
    drawings.forEach((svg, n) => svg.setAttribute("width", Math.round(widths[n] * scale)));
    box.dispatchEvent(new Event("scroll"));
  };
  const tool = (name, label, act) => {
    const button = element("button", { type: "button", className: "tool", ariaLabel: label }, name);
    button.addEventListener("click", act);
    return button;
  };
  const cell = element("span", { role: "status" }, "click a cell to read it");
  charts.addEventListener("click", (event) => {
    const title = event.target.closest("rect.right, rect.wrong")?.querySelector("title");
    if (title) cell.textContent = title.textContent;
  });
  const bar = element("div", { className: "bar" }, "zoom",
    tool("−", "zoom out", () => show(scale / 1.4)),
    tool("+", "zoom in", () => show(scale * 1.4)),
    tool("fit", "fit to the page", () => show(Math.min(1, box.clientWidth / widths[0]))), cell);
  box.before(bar);
}

// ----- a map: the point at the pointer, or nearest to a tap, says what it is and shows its picture

for (const map of document.querySelectorAll(".map")) {
  const svg = map.querySelector("svg");
  const points = [...svg.querySelectorAll("circle")];
  const places = points.map((point) => [point.cx.baseVal.value, point.cy.baseVal.value]);
  const pictures = [...map.querySelectorAll("figure img")];
  const ring = document.createElementNS(svg.namespaceURI, "circle");
  const image = element("img", { hidden: true });
  const text = element("p", {}, "Point at a row, or tap it, to see what it is.");
  svg.parentElement.append(element("div", { className: "spot", role: "status" }, image, text));
  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const distances = places.map(([a, b]) => Math.hypot(a - x, b - y));
    const nearest = distances.reduce((best, distance, n) => (distance < distances[best] ? n : best), 0);
    if (distances[nearest] > 14 * scale) return;
    for (const [key, value] of [["class", "ring"], ["cx", places[nearest][0]], ["cy", places[nearest][1]], ["r", 9]]) ring.setAttribute(key, value);
    svg.append(ring);
    const picture = pictures[points[nearest].dataset.picture];
    text.textContent = points[nearest].querySelector("title").textContent;
    image.hidden = !picture;
    if (picture) [image.src, image.alt, image.className] = [picture.src, picture.alt, picture.className];
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("click", show);
}

// ----- pictures open large

const pictures = [...document.querySelectorAll("figure img")];
if (pictures.length) {
  const image = element("img");
  const caption = element("div", { id: "viewer-text", role: "status" });
  let shown = 0;
  const show = (n) => {
    shown = (n + pictures.length) % pictures.length;
    const source = pictures[shown];
    image.src = source.src;
    image.alt = source.alt;
    image.className = source.className;
    caption.textContent = [...source.closest("figure").querySelectorAll(".first, .other")].map((line) => line.textContent).join(" · ");
  };
  const tool = (name, act) => {
    const button = element("button", { type: "button", className: "tool" }, name);
    button.addEventListener("click", act);
    return button;
  };
  const viewer = element("dialog", { id: "viewer", ariaLabel: "picture" });
  viewer.append(image, caption, element("div", { className: "bar" },
    tool("← previous", () => show(shown - 1)), tool("next →", () => show(shown + 1)), tool("close (Esc)", () => viewer.close())));
  viewer.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(shown - 1);
    if (event.key === "ArrowRight") show(shown + 1);
  });
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  document.body.append(viewer);
  pictures.forEach((picture, n) => {
    const button = element("button", { type: "button", className: "picture", ariaLabel: `open large: ${picture.alt}` });
    picture.replaceWith(button);
    button.append(picture);
    button.addEventListener("click", () => { show(n); viewer.showModal(); });
  });
}

// ----- sections fold

const folds = [...document.querySelectorAll("section > details")];
const all = (open) => () => { for (const details of folds) details.open = open; };
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.querySelector("details");
  if (details) details.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
for (const link of links.values()) link.addEventListener("click", () => setTimeout(openTarget)); // also if the address stays
let wasClosed = [];
addEventListener("beforeprint", () => { wasClosed = folds.filter((one) => !one.open); all(true)(); });
addEventListener("afterprint", () => { for (const details of wasClosed) details.open = false; });

// ----- the sidebar marks the section that is read

const current = () => {
  const sections = [...document.querySelectorAll("section")];
  const read = sections.filter((one) => one.getBoundingClientRect().top < innerHeight / 3).pop() || sections[0];
  for (const [key, link] of links) {
    if (read && key === read.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
};
addEventListener("scroll", current, { passive: true });
current();
const [foldAll, openAll] = [["fold all sections", false], ["open all", true]].map(([name, open]) => {
  const button = element("button", { type: "button", className: "tool" }, name);
  button.addEventListener("click", all(open));
  return button;
});
document.querySelector("nav").append(element("div", { className: "bar" }, foldAll, openAll));
document.documentElement.dataset.ready = "yes";
