"use strict";
// Everything comes from this server; texts are set as text, never as HTML.
const at = (id) => document.getElementById(id);
const element = (tag, text) => Object.assign(document.createElement(tag), text === undefined ? {} : { textContent: text });

function say(text, isError) {
  at("message").textContent = text;
  at("message").classList.toggle("error", Boolean(isError));
}

function row({ class_name, probability }) {
  const line = element("tr"), cell = element("td"), bar = element("meter");
  bar.value = probability;
  cell.append(bar);
  line.append(element("td", class_name), element("td", `${(100 * probability).toFixed(1)} %`), cell);
  return line;
}

function neighbour({ row, id, class_name }) {
  const item = element("li"), figure = element("figure"), picture = element("img");
  picture.src = `training/${row}.png`;
  picture.alt = `training image ${id}`;
  figure.append(picture, element("figcaption", `${class_name} (${id})`));
  item.append(figure);
  return item;
}

let newest = 0;

async function ask(file) {
  const number = ++newest;
  at("answer").hidden = at("neighbours").hidden = true;
  URL.revokeObjectURL(at("photo").src);
  at("photo").src = URL.createObjectURL(file);
  at("photo").alt = file.name;
  at("photo").hidden = false;
  say("The model is looking at it.");
  try {
    const response = await fetch("photo", {
      method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" },
    });
    const answer = await response.json();
    if (number !== newest) return;
    if (!response.ok) { say(answer.error, true); return; }
    say("");
    at("class").textContent = answer.class_name;
    at("top").replaceChildren(...answer.top.map(row));
    at("similar").replaceChildren(...answer.similar.map(neighbour));
    at("answer").hidden = false;
    at("neighbours").hidden = answer.similar.length === 0;
  } catch (error) {
    if (number === newest) say("The server did not answer; is it still running?", true);
  }
}

const drop = at("drop");
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
drop.addEventListener("drop", (event) => { if (event.dataTransfer.files.length) ask(event.dataTransfer.files[0]); });
at("file").addEventListener("change", (event) => { if (event.target.files.length) ask(event.target.files[0]); });
fetch("v1/models/goldfold/metadata").then((response) => response.json()).then(({ goldfold }) => {
  at("model").textContent = `${goldfold.competition}: ${goldfold.title}, ${goldfold.classes.length} classes`;
});
