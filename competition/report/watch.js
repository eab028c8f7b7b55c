
// ----- a watched page (`make report WATCH=1`) reloads itself; the place that is read, what is open and the order of tables stay

const RELOAD_SECONDS = 5;
const keyed = (selector) => [...document.querySelectorAll("section")].flatMap((section) =>
  [...section.querySelectorAll(selector)].map((one, n) => [`${section.id} ${n}`, one]));

function view() {
  const sections = [...document.querySelectorAll("section")];
  const read = sections.filter((one) => one.getBoundingClientRect().top <= 1).pop();
  return {
    open: Object.fromEntries(keyed("details").map(([key, one]) => [key, one.open])),
    sorted: Object.fromEntries(keyed("th[scope=col]").flatMap(([key, one]) => (one.ariaSort ? [[key, one.ariaSort]] : []))),
    read: read ? read.id : "",
    offset: read ? read.getBoundingClientRect().top : -scrollY, // results above it may have become longer
  };
}

function restore({ open, sorted, read, offset }) {
  for (const [key, one] of keyed("details")) one.open = open[key] ?? one.open;
  for (const [key, header] of keyed("th[scope=col]")) {
    for (let n = 0; n < 2 && sorted[key] && header.ariaSort !== sorted[key]; n++) header.querySelector("button")?.click();
  }
  const anchor = document.getElementById(read) || document.body;
  scrollTo(0, scrollY + anchor.getBoundingClientRect().top - offset);
}

if (history.state?.read !== undefined) restore(history.state);
history.replaceState(null, ""); // a reload by hand starts anew
addEventListener("load", () => setTimeout(() => { history.scrollRestoration = "auto"; })); // earlier, it would scroll as well

const isUsed = () => document.hidden || document.querySelector("dialog[open]") || getSelection().toString()
  || [...document.querySelectorAll("input")].some((input) => input.value);
setInterval(() => {
  if (isUsed()) return;
  history.scrollRestoration = "manual";
  history.replaceState(view(), "");
  location.reload();
}, 1000 * RELOAD_SECONDS);
