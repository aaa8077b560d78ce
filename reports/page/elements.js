// What the pages share: elements, numbers, sorting, light and dark.

const DASH = "–";
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element; properties whose names have a dash become attributes. Text stays text. */
function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    name.includes("-") || !(name in element) ? element.setAttribute(name, value) : (element[name] = value);
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

// --- numbers and text ---

const format = (value, digits) =>
  value == null ? DASH : typeof value !== "number" ? String(value)
  : value.toLocaleString("en", digits === undefined ? { maximumSignificantDigits: 6 } : { minimumFractionDigits: digits, maximumFractionDigits: digits });

function number(text) {
  const found = text.replaceAll(",", "").replaceAll("−", "-").match(/^[<>≤≥]?\s*([+-]?[\d.]+(?:e[+-]?\d+)?)/i);
  return found ? Number(found[1]) : null;
}

/** Ascending, or descending for sign −1; what is not there comes last either way. */
function compare(a, b, sign) {
  const [none_a, none_b] = [a == null || a === DASH || a === "", b == null || b === DASH || b === ""];
  if (none_a || none_b) return none_a - none_b;
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

/** Commas stand for "or", spaces for "and". */
function matcher(text) {
  const choices = text.toLowerCase().split(",").map((part) => part.split(/\s+/).filter(Boolean)).filter((words) => words.length);
  return (candidate) => !choices.length || choices.some((words) => words.every((word) => candidate.toLowerCase().includes(word)));
}

// --- light and dark ---

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("regbench-theme", root.dataset.theme); } catch {}
});

/** Makes the heads of a table buttons. `sort(column, sign)` puts its rows in order. */
function sortable(table, sort) {
  const heads = $$("thead th", table);
  heads.forEach((head, column) => {
    // The button is for the keyboard and for screen readers; a click anywhere in the cell does the same.
    head.replaceChildren(h("button", { type: "button" }, ...head.childNodes));
    head.title = "Sort";
    head.addEventListener("click", () => {
      const first = head.classList.contains("n") ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const next = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      sort(column, next === "ascending" ? 1 : -1);
    });
  });
}

// --- facts and grids ---

function facts(entries) {
  const shown = entries.filter(([, value]) => value != null && value !== "");
  return h("dl", { class: "facts" }, shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value instanceof Node ? value : format(value))]));
}

function grid(heads, rows) {
  const numeric = heads.map((_, column) => rows.length && rows.every((row) => row[column] == null || typeof row[column] === "number"));
  const cell = (tag) => (value, column) => h(tag, { class: numeric[column] ? "n" : String(value).length > 40 ? "long" : "t" }, value instanceof Node ? value : format(value));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": heads.join(", ") }, h("table", {}, h("thead", {}, h("tr", {}, heads.map(cell("th")))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))));
}

/** Nested settings as one level of [name, value]. */
function flat(value, prefix = "") {
  return Object.entries(value ?? {}).flatMap(([key, v]) =>
    v && typeof v === "object" && !Array.isArray(v) ? flat(v, `${prefix}${key}.`) : [[prefix + key, Array.isArray(v) ? v.join(", ") : typeof v === "boolean" ? String(v) : v]]);
}

function copyButton(text) {
  const button = h("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // where the browser gives pages from disk no clipboard
      const area = h("textarea", { value: text });
      button.after(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

const block = (text) => h("div", { class: "command" }, h("pre", { tabindex: 0 }, text), copyButton(text));

/** In words, what was chosen on which split among how many; `names` are the scores' titles. */
function choices(choice, names) {
  return Object.entries(choice ?? {}).map(([what, c]) => {
    const where = c.selected_on === "given" ? "given, not chosen here"
      : `chosen on the ${c.selected_on} split` + (c.score ? ` by ${names[c.score] ?? c.score}` : "") + (c.budget ? `, among ${c.budget} configurations` : "");
    const among = c.candidates ? `; candidates ${Object.entries(c.candidates).map(([value, score]) => `${value} (${format(score)})`).join(", ")}` : "";
    const kept = c.record ? `; the choice is in ${c.record}` + (c.sha256 ? ` (sha256 ${c.sha256})` : "") : "";
    const edges = Object.entries(c.edges ?? {}).map(([key, side]) => `${side} ${key}`).join(", ");
    const edge = edges ? `; at the edge of what was tried: ${edges}` : "";
    return [what.replaceAll("_", " "), (c.chosen !== undefined && c.chosen !== null ? `${format(c.chosen)}, ` : "") + where + edge + among + kept];
  });
}

// --- figures: what belongs to one method lights up together ---

for (const pictures of $$(".pictures")) {
  const light = (key) => {
    pictures.classList.toggle("light", Boolean(key));
    for (const each of $$("[data-m]", pictures)) each.classList.toggle("on", each.dataset.m === key);
  };
  const enter = (event) => light(event.target.closest("[data-m]")?.dataset.m);
  for (const name of ["mouseover", "focusin", "click"]) pictures.addEventListener(name, enter);
  for (const name of ["mouseleave", "focusout"]) pictures.addEventListener(name, () => light());
}

// --- the dialog of a cell, whose address is #cell-<id> ---

const dialog = document.getElementById("cell");
dialog.addEventListener("close", () => {
  if (location.hash.startsWith("#cell-")) history.replaceState(null, "", location.pathname + location.search);
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
