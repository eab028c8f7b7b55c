"use strict";
// Everything comes from this server; texts are set as text, never as HTML.
const at = (id) => document.getElementById(id);
const element = (tag, text) => Object.assign(document.createElement(tag), text === undefined ? {} : { textContent: text });

function row({ class_name, probability }) {
  const line = element("tr"), cell = element("td"), bar = element("div");
  bar.className = "bar";
  bar.style.width = `${100 * probability}%`;
  cell.append(bar);
  line.append(element("td", class_name), element("td", `${(100 * probability).toFixed(1)} %`), cell);
  return line;
}

// The pixels of an image that is shown larger than it is stay visible; a larger image is reduced smoothly.
function sharpen({ target }) { target.classList.toggle("enlarged", target.naturalWidth < target.clientWidth); }

function neighbour({ row, id, class_name }) {
  const item = element("li"), figure = element("figure"), picture = element("img");
  picture.addEventListener("load", sharpen);
  picture.src = `training/${row}.png`;
  picture.alt = `training image ${id}`;
  figure.append(picture, element("figcaption", class_name));
  item.title = id;
  item.append(figure);
  return item;
}

function cardOf(file) {
  const card = at("answer").content.cloneNode(true).firstElementChild, photo = card.querySelector(".photo");
  photo.alt = file.name;
  photo.addEventListener("load", (event) => { sharpen(event); URL.revokeObjectURL(photo.src); });
  photo.addEventListener("error", () => { photo.hidden = true; }); // no image, or a format that only the server reads
  photo.src = URL.createObjectURL(file);
  card.querySelector(".name").textContent = file.name;
  return card;
}

function show(card, answer) {
  const part = (name) => card.querySelector(`.${name}`);
  part("class").textContent = answer.class_name;
  part("top").replaceChildren(...answer.top.map(row));
  part("compared").textContent = `Nearest in the features of the network, among ${answer.compared.toLocaleString("en")} training images.`;
  part("similar").replaceChildren(...answer.similar.map(neighbour));
  part("result").hidden = false;
  part("neighbours").hidden = answer.similar.length === 0;
}

async function ask(file, card) {
  const problem = card.querySelector(".problem");
  try {
    const response = await fetch("photo", {
      method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" },
    });
    const answer = await response.json();
    if (response.ok) { show(card, answer); return; }
    problem.textContent = answer.error;
  } catch (error) {
    problem.textContent = "The server did not answer; is it still running?";
  }
  problem.hidden = false;
}

// Files of a folder and its folders; a browser lists at most 100 entries at once.
async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((done, failed) => entry.file(done, failed))];
  const reader = entry.createReader(), files = [];
  for (;;) {
    const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!entries.length) return files;
    for (const inner of entries) files.push(...await filesOf(inner));
  }
}

async function dropped(transfer) { // what is dropped is known only during the event: entries are taken before the first await
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry);
  const isFolder = entries.some((entry) => entry.isDirectory);
  const files = (await Promise.all(entries.map(filesOf))).flat();
  return isFolder ? photosOf(files) : files;
}

// A folder also has other files; the server says what is wrong with a chosen one.
const photosOf = (files) => files.filter((file) => file.type.startsWith("image/"));

async function askAll(files) {
  const cards = files.map(cardOf);
  at("answers").prepend(...cards);
  for (const [number, card] of cards.entries()) { // one after the other: the server limits the images that wait
    at("message").textContent = `The model is looking at photo ${number + 1} of ${files.length}.`;
    await ask(files[number], card);
  }
  at("message").textContent = files.length ? "" : "There is no photo in this folder.";
}

// The Markdown that the model card has (model_card.md.jinja): headings, lists, tables, indented code, paragraphs and `code`.
const blocksOf = (markdown) => markdown.trim().split(/\n{2,}/).flatMap((block) => {
  const lines = block.split("\n");
  if (block.startsWith("#")) return withCode(element("h2"), block.replace(/^#+ /, ""));
  if (block.startsWith("|")) return tableOf(lines.map((line) => line.slice(1, -1).split("|").map((cell) => cell.trim())));
  if (block.startsWith("    ")) return element("pre", lines.map((line) => line.slice(4)).join("\n"));
  if (!block.startsWith("- ")) return withCode(element("p"), lines.join(" "));
  const list = element("ul"), items = block.slice(2).replace(/\n +/g, " ").split("\n- ");
  list.append(...items.map((item) => withCode(element("li"), item)));
  return list;
});

function withCode(node, text) {
  node.append(...text.split("`").map((part, number) => number % 2 ? element("code", part) : part));
  return node;
}

function tableOf([columns, , ...rows]) { // the second line separates the header
  const table = element("table"), wide = element("div");
  for (const [cells, kind] of [[columns, "th"], ...rows.map((row) => [row, "td"])]) {
    const line = element("tr");
    line.append(...cells.map((cell) => withCode(element(kind), cell)));
    table.append(line);
  }
  Object.assign(wide, { className: "wide", tabIndex: 0 }); // scrolled by keys too
  wide.append(table);
  return wide;
}

const drop = at("drop");
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
drop.addEventListener("drop", async (event) => askAll(await dropped(event.dataTransfer)));
at("file").addEventListener("change", (event) => askAll([...event.target.files]));
at("folder").addEventListener("change", (event) => askAll(photosOf([...event.target.files])));
fetch("card").then((response) => response.text()).then((text) => at("card-text").replaceChildren(...blocksOf(text)));
fetch("v1/models/goldfold/metadata").then((response) => response.json()).then(({ goldfold }) => {
  at("model").textContent = `${goldfold.competition}: ${goldfold.title}, ${goldfold.classes.length} classes`;
});
