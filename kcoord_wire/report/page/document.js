// Elements and formats. Strings of peers become text nodes: nothing here parses markup, but backticks in sentences.

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const number = (value) => value.toLocaleString("en-US");
const counted = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;

// The same format as in the terminal's summary.
function duration(ms) {
  if (ms === undefined || ms === null) return "";
  if (ms < 999.5) return ms && ms < 10 ? `${Number(ms.toPrecision(2))} ms` : `${Math.round(ms)} ms`;
  if (ms < 119500) return `${ms < 29950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  for (const [big, small, size, unit] of [[86400, 3600, "d", "h"], [3600, 60, "h", "min"], [60, 1, "min", "s"]]) {
    const rest = Math.floor((seconds % big) / small);
    if (seconds >= big) return `${number(Math.floor(seconds / big))} ${size}${rest ? ` ${rest} ${unit}` : ""}`;
  }
}

// Time after the group's first moment: +1:04.200
function relative(ms) {
  const size = Math.abs(ms);
  const hours = Math.floor(size / 3600000);
  const minutes = Math.floor(size / 60000) % 60;
  const seconds = (Math.floor(size) % 60000 / 1000).toFixed(3).padStart(6, "0");
  return `${ms < 0 ? "−" : "+"}${hours ? `${hours}:${String(minutes).padStart(2, "0")}` : minutes}:${seconds}`;
}

// Time of day in UTC, as precise as the visible span needs.
function clock(ms, span) {
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return "beyond the calendar";
  const text = moment.toISOString();
  if (span > 172800000) return text.slice(0, 16).replace("T", " ");
  return text.slice(11, span > 600000 ? 19 : span > 20000 ? 21 : 23);
}

// A moment of a group in UTC, with its date where that is another day, and how long after the group's first moment.
function moment(group, ms) {
  const at = new Date(group.first + ms);
  if (Number.isNaN(at.getTime())) return relative(ms);
  const text = at.toISOString().replace("T", " ").slice(0, 23);
  return `${group.period.startsWith(text.slice(0, 10)) ? text.slice(11) : text} (${relative(ms)})`;
}

// A sentence: figures keep their units on the same line, a pair of backticks sets code.
function worded(text) {
  const parts = text.replace(/(\d) (ms|s|min|h|d)\b/g, "$1\u00a0$2").split(/`([^`]+)`/);
  return parts.map((part, at) => (at % 2 ? el("code", {}, part) : part)).filter((part) => part !== "");
}

const person = (name, host) => (name ? name + (host ? ` (${host})` : "") : "");

function swatch(cause) {
  const box = el("span", { class: "swatch" });
  box.style.backgroundColor = (page.causes[cause] || { colour: page.other }).colour;
  return box;
}

// A bar that shows a share, beside the number.
function meter(part) {
  const bar = el("span", { class: "meter", "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.width = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  return bar;
}

function head(...columns) {
  return el("thead", {}, el("tr", {}, columns.map((name) =>
    el("th", { scope: "col", class: name.startsWith(">") ? "figure" : "" }, name.replace(">", "")))));
}

function listTo(element, ...children) {
  element.replaceChildren(...children.flat().filter(Boolean));
}

// Follow the system's theme until the button chooses one.
function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const set = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-pressed", String(dark));
  };
  set(system.matches);
  system.addEventListener("change", (event) => set(event.matches));
  $("theme").addEventListener("click", () => set(document.documentElement.dataset.theme !== "dark"));
}
