// What makes a page answer: sorting, filters, the table of cells, the dialog of a cell, light and dark.

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

// --- the cells ---

const packed = await fetch("data:application/gzip;base64," + document.getElementById("data").textContent);
const { cells, scores: SCORE_NAMES, probes: PROBES } = await new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).json();
const cellOf = new Map(cells.map((cell) => [cell.id, cell]));
const scoreOf = (cell, name) => cell.scores.find((s) => s.name === name && s.split === "test")?.value;

// --- tables ---

for (const table of $$("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  sortable(table, (column, sign) => {
    const numeric = table.tHead.rows[0].cells[column].classList.contains("n");
    const value = (row) => {
      const text = row.cells[column].textContent;
      return numeric ? number(text) ?? text : text; // a setting may be a word
    };
    const keys = new Map(original.map((row) => [row, value(row)]));
    body.append(...original.toSorted((a, b) => compare(keys.get(a), keys.get(b), sign)));
  });
}

// --- filters ---

const show = (row) => { row.hidden = row.notFound || row.notSelected; };

for (const box of $$("figure.table > .tools input")) {
  const rows = $$("tbody tr", box.closest("figure"));
  box.addEventListener("input", () => {
    const matches = matcher(box.value);
    for (const row of rows) { row.notFound = !matches(row.textContent); show(row); }
    box.nextElementSibling.textContent = box.value ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  });
}

/** What the selects above a task's tables ask for: {method: "VICReg", q: "512"}. */
function selected(section) {
  return Object.fromEntries($$(".filters select", section).filter((select) => select.value).map((select) => [select.name, select.value]));
}

function applySelection(section) {
  const wanted = Object.entries(selected(section));
  const shown = new Set();
  for (const table of $$("table.sortable", section)) {
    const heads = $$("thead th", table).map((head) => head.textContent);
    const columns = wanted.map(([name, value]) => [heads.indexOf(name), value, name]).filter(([column]) => column >= 0);
    for (const row of table.tBodies[0].rows) {
      row.notSelected = !columns.every(([column, value, name]) => {
        if (name === "method") return row.dataset.label === value;
        const text = row.cells[column].textContent;
        return text === value || text === DASH;
      });
      show(row);
      if (!row.notSelected && row.dataset.r && heads[0] === "method") shown.add(row.dataset.r);
    }
  }
  for (const mark of $$(".mark[data-r]", section))
    mark.classList.toggle("off", wanted.length > 0 && !mark.dataset.r.split(" ").some((place) => shown.has(place)));
  $$(".filters select", section).forEach((select) => select.classList.toggle("set", Boolean(select.value)));
}

for (const form of $$(".filters")) {
  const section = form.closest("section");
  const apply = () => { applySelection(section); tables.get(section.id)?.refresh(); };
  form.addEventListener("change", apply);
  form.addEventListener("reset", () => setTimeout(apply));
}

// --- the table of cells ---

const PAGE = 100;
const SETTINGS = { q: "embedding_dim", batch: "batch_size", epochs: "epochs" };
const tables = new Map();

class Cells {
  constructor(figure) {
    this.section = figure.closest("section");
    this.cells = cells.filter((cell) => cell.section === Number(figure.dataset.section));
    const known = Object.keys(SCORE_NAMES).filter((name) => !PROBES.includes(name)); // those have tables of their own
    const measured = known.filter((name) => this.cells.some((cell) => scoreOf(cell, name) !== undefined)).slice(0, 4); // what fits beside each other
    const varies = ([, key]) => new Set(this.cells.map((cell) => cell.config[key])).size > 1;
    this.columns = [
      { name: "method", value: (cell) => cell.label },
      { name: "cell", value: (cell) => cell.id },
      ...Object.entries(SETTINGS).filter(varies).map(([name, key]) => ({ name, numeric: true, whole: true, value: (cell) => cell.config[key] })),
      { name: "seed", numeric: true, value: (cell) => cell.seed },
      { name: "status", value: (cell) => cell.status + (cell.on_test ? ", selected on the test set" : "") },
      ...measured.map((name) => ({ name: SCORE_NAMES[name], numeric: true, digits: 2, value: (cell) => scoreOf(cell, name) })),
      { name: "training (s)", numeric: true, digits: 1, value: (cell) => cell.cost.train_s },
      { name: "git", value: (cell) => cell.environment.git },
    ];
    this.box = h("input", { type: "search", placeholder: "Filter cells", "aria-label": "Filter the cells" });
    this.count = h("output");
    this.onlyRow = h("button", { type: "button", hidden: true });
    this.body = h("tbody");
    this.moreButton = h("button", { type: "button", class: "more" }, `Show ${PAGE} more`);
    const head = this.columns.map((column) => h("th", { scope: "col", class: column.numeric ? "n" : "t" }, column.name));
    const table = h("table", {}, h("thead", {}, h("tr", {}, head)), this.body);
    sortable(table, (column, sign) => { this.order = { ...this.columns[column], sign }; this.refresh(); });
    const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Cells" }, table);
    figure.append(h("p", { class: "tools" }, this.box, this.onlyRow, this.count), scroll, this.moreButton);
    this.box.addEventListener("input", () => this.refresh());
    this.onlyRow.addEventListener("click", () => { this.place = undefined; this.refresh(); });
    this.moreButton.addEventListener("click", () => this.append());
    this.refresh();
  }

  /** Only the cells of one row of the leaderboard. */
  only(place) {
    this.place = place;
    this.box.value = "";
    this.refresh();
  }

  refresh() {
    const matches = matcher(this.box.value);
    const wanted = Object.entries(selected(this.section));
    const fits = (cell) => wanted.every(([name, value]) => {
      const own = name === "method" ? cell.label : cell.config[SETTINGS[name]];
      return own == null || String(own) === value;
    });
    this.found = this.cells.filter((cell) =>
      (this.place === undefined || cell.row === this.place) && fits(cell)
      && (!this.box.value || matches(this.columns.map((column) => column.value(cell)).join(" "))));
    if (this.order) {
      const keys = new Map(this.found.map((cell) => [cell, this.order.value(cell)]));
      this.found.sort((a, b) => compare(keys.get(a), keys.get(b), this.order.sign));
    }
    this.body.replaceChildren();
    this.append();
    this.onlyRow.hidden = this.place === undefined;
    if (this.place !== undefined)
      this.onlyRow.textContent = `✕ only those of ${this.found[0]?.label ?? "one row"}`;
  }

  append() {
    const from = this.body.rows.length;
    for (const cell of this.found.slice(from, from + PAGE)) {
      const [method, , ...others] = this.columns;
      const link = h("a", { href: `#cell-${cell.id}` }, cell.id);
      this.body.append(h("tr", { class: "link", "data-m": cell.key },
        h("th", { scope: "row" }, method.value(cell)), h("td", { class: "t id" }, link),
        others.map((column) => h("td", { class: column.numeric ? "n" : "t" }, column.whole ? String(column.value(cell) ?? DASH) : format(column.value(cell), column.digits)))));
    }
    const shown = this.body.rows.length;
    this.moreButton.hidden = shown >= this.found.length;
    this.count.textContent = `${this.found.length.toLocaleString("en")} of ${this.cells.length.toLocaleString("en")} cells`
      + (shown < this.found.length ? `, the first ${shown} shown` : "");
  }
}

for (const figure of $$("figure[data-section]")) tables.set(figure.closest("section").id, new Cells(figure));

for (const section of $$("section.task")) {
  for (const link of $$(`tbody th a[href="#${section.id}-cells"]`, section)) {
    link.href = `#${section.id}-row${link.closest("tr").dataset.r}`;
    link.closest("tr").classList.add("link");
  }
}
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr.link");
  if (row && !event.target.closest("a") && !String(getSelection())) row.querySelector("a").click();
});

// --- one cell ---

/** All that is known of one run. */
function about(run) {
  const attempts = run.attempts ?? [];
  const names = [...new Set(attempts.flatMap(Object.keys))].filter((name) => attempts.some((a) => a[name] != null));
  const { git, ...environment } = run.environment ?? {};
  const others = cells.filter((other) => other.section === run.section && other.group === run.group).sort((a, b) => a.seed - b.seed);
  const seeds = h("span", {}, others.flatMap((other, k) => [k ? ", " : "", other.id === run.id ? h("b", {}, String(run.seed)) : h("a", { href: `#cell-${other.id}` }, String(other.seed))]));
  const part = (title, content) => (content ? [h("h3", {}, title), content] : []);
  return [
    run.on_test ? h("div", { class: "warn" }, h("p", {}, "Selected on the test set: these scores are optimistic and stand in no ranking with the others.")) : null,
    ...part("Run it again", run.command && block(run.command)),
    ...part("Where it comes from", facts([
      ["record", h("code", {}, run.path)], ["record's sha256", run.sha256], ["code (git)", git ?? "unknown"], ["sweep", run.sweep], ["seeds of this configuration", seeds],
      ...flat(run.data).map(([name, value]) => [`data: ${name}`, value])])),
    ...part("Scores", run.scores?.length && grid(["score", "value", "unit", "split", "protocol"], run.scores.map((s) => [SCORE_NAMES[s.name] ?? s.name, s.value, s.unit, s.split, s.protocol]))),
    ...part("Choices", run.choice && facts(choices(run.choice, SCORE_NAMES))),
    ...part("Cost", run.cost && facts(flat(run.cost))),
    ...part("Settings", block(JSON.stringify(run.config, null, 2))),
    ...part("Environment", facts(flat(environment))),
    ...part("Attempts", attempts.length && grid(names, attempts.map((a) => names.map((name) => (typeof a[name] === "object" && a[name] ? JSON.stringify(a[name]) : a[name])))))];
}

function open(cell) {
  const close = h("button", { type: "button", "aria-label": "Close", autofocus: true }, "✕");
  close.addEventListener("click", () => dialog.close());
  const method = document.getElementById(`method-${cell.key}`) ? h("a", { href: `#method-${cell.key}` }, "about the method") : null;
  method?.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(
    h("header", {},
      h("div", {}, h("h2", { id: "cell-title" }, cell.label), h("p", {}, h("span", { class: "id" }, cell.id), `, seed ${cell.seed}, ${cell.status}, sweep ${cell.sweep} `, method)),
      close),
    h("div", { class: "inside" }, about(cell)));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

// --- addresses: #cell-<id> is a cell, #s1-row3 the cells of a row of the leaderboard ---

function route() {
  const cell = location.hash.match(/^#cell-(.+)$/);
  const row = location.hash.match(/^#(s\d+)-row(\d+)$/);
  if (cell && cellOf.has(cell[1])) return open(cellOf.get(cell[1]));
  if (dialog.open) dialog.close();
  if (row && tables.has(row[1])) {
    tables.get(row[1]).only(Number(row[2]));
    document.getElementById(`${row[1]}-cells`).scrollIntoView();
  }
}
addEventListener("hashchange", route);
route();

// --- while cells are on their way, the page loads itself again, and stays as it was left ---

const RELOAD_MS = 30_000;
const A_DAY_MS = 86_400_000;
const LEFT = `regbench ${location.pathname}`;
const named = (element) => `${element.closest("[id]").id} ${element.name || element.ariaLabel || (element.querySelector("summary") ?? element).textContent}`;

function reload() {
  if (document.hidden || dialog.open || !getSelection().isCollapsed || document.activeElement.matches("input, select")) return;
  const all = (selector, value) => $$(selector).map((element) => [named(element), value(element)]);
  const left = {
    values: all("select, input", (control) => control.value),
    orders: all("th[aria-sort]", (head) => head.ariaSort),
    opened: all("details", (details) => details.open),
    places: all(".scroll", (table) => [table.scrollLeft, table.scrollTop]),
    y: scrollY,
  };
  try { sessionStorage.setItem(LEFT, JSON.stringify(left)); } catch { return; }
  location.reload();
}

/** Puts back what `reload` wrote down. */
function restore({ values, orders, opened, places, y }) {
  const each = (entries, selector, put) => {
    const known = new Map(entries);
    for (const element of $$(selector)) if (known.has(named(element))) put(element, known.get(named(element)));
  };
  each(values, "select, input", (control, value) => {
    control.value = value;
    for (const name of ["input", "change"]) control.dispatchEvent(new Event(name, { bubbles: true }));
  });
  each(orders, "thead th", (head, order) => { for (let n = 0; n < 2 && head.ariaSort !== order; n++) head.click(); });
  each(opened, "details", (details, open) => { details.open = open; });
  each(places, ".scroll", (table, [x, y]) => table.scrollTo({ left: x, top: y, behavior: "instant" }));
  scrollTo({ top: y, behavior: "instant" });
}

let left = null;
try { left = sessionStorage.getItem(LEFT); sessionStorage.removeItem(LEFT); } catch {}
if (left) restore(JSON.parse(left));
const age_ms = Date.now() - Date.parse(document.lastModified);
if (document.querySelector("#unfinished[data-waiting]") && age_ms < A_DAY_MS) { // an older one is of a sweep that was given up
  history.scrollRestoration = "manual";
  setInterval(reload, RELOAD_MS);
}
