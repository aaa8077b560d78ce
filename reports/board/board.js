// Tables that show a hundred rows at a time, and cells that are loaded when they are asked for.

const PAGE = 100;

// --- data: scripts, for a page from a disk may load nothing else ---

const waiting = new Map();

/** What the scripts in `data` call. */
function receive(name, data) {
  waiting.get(name).resolve(data);
}

function load(name) {
  if (!waiting.has(name)) {
    const entry = {};
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    waiting.set(name, entry);
    const script = h("script", { src: `${document.getElementById("task").dataset.folder}${name}.js` });
    script.addEventListener("error", () => entry.reject(new Error(`${name}.js is missing`)));
    document.head.append(script);
  }
  return waiting.get(name).promise;
}

// --- tables ---

const TEXT = {
  text: (value) => (value == null || value === "" ? DASH : String(value)),
  digest: (value) => value.slice(0, 12),
  number: (value, digits) => (value == null ? DASH : digits == null ? value.toLocaleString("en") : format(value, digits)),
  mean: (value, digits) => (value == null ? DASH : format(value[0], digits ?? 2) + (value[1] == null ? "" : ` ± ${format(value[1], digits ?? 2)}`)),
  link: (value) => value[0],
};
const KEY = { mean: (value) => value?.[0] ?? null, link: (value) => value[0] };

function content(kind, value, digits) {
  const text = TEXT[kind](value, digits);
  if (kind === "link") return value[1] ? h("a", { href: value[1] }, text) : text;
  if (kind === "digest") return h("span", { title: value }, text);
  if (kind !== "mean" || value == null) return text;
  const [mean, spread] = text.split(" ± ");
  const parts = [value[2] ? h("b", {}, mean) : mean, spread ? h("span", { class: "spread" }, ` ± ${spread}`) : null];
  return h("span", {}, parts);
}

class Paged {
  constructor(figure, { columns, rows }) {
    this.title = figure.dataset.title;
    this.columns = columns.map((column, place) => ({ ...column, place })).filter((column) => column.kind !== "hidden");
    this.all = rows.map((values, place) => ({ values, place }));
    this.restricted = () => true;
    this.listeners = [];
    this.box = h("input", { type: "search", placeholder: "Filter rows", "aria-label": `Filter the rows of ${this.title}` });
    this.count = h("output");
    this.only = h("button", { type: "button", hidden: true });
    this.more = h("button", { type: "button", class: "more" }, `Show ${PAGE} more`);
    this.selects = this.columns.filter((column) => column.filtered).map((column) => this.select(column)).filter(Boolean);
    this.body = h("tbody");
    const numeric = (column) => ["number", "mean"].includes(column.kind);
    const head = this.columns.map((column) => h("th", { scope: "col", class: numeric(column) ? "n" : "t" }, column.name));
    const table = h("table", {}, h("thead", {}, h("tr", {}, head)), this.body);
    sortable(table, (column, sign) => { this.order = { ...this.columns[column], sign }; this.refresh(); });
    const scroll = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": this.title }, table);
    const searched = rows.length > 10 ? [this.box, ...this.selects] : [];
    figure.append(h("p", { class: "tools" }, searched, this.only, this.count), scroll, this.more);
    this.box.addEventListener("input", () => this.refresh());
    this.only.addEventListener("click", () => this.restrict(null));
    this.more.addEventListener("click", () => this.append());
    this.refresh();
  }

  /** A select with the values of a column; none where there is one alone. */
  select(column) {
    const key = KEY[column.kind] ?? ((value) => value);
    const values = [...new Set(this.all.map((row) => plain(key(row.values[column.place]))))].sort((a, b) => compare(a, b, 1));
    if (values.length < 2 || values.length > 500) return null;
    const select = h("select", {}, h("option", { value: "" }, "all"), values.map((value) => h("option", {}, String(value))));
    select.fits = (row) => !select.value || String(plain(key(row.values[column.place]))) === select.value;
    select.addEventListener("change", () => { select.classList.toggle("set", Boolean(select.value)); this.refresh(); });
    const label = h("label", {}, `${column.name} `, select);
    label.fits = select.fits;
    return label;
  }

  /** Only the rows that a function takes; null: all. */
  restrict(takes, name) {
    this.restricted = takes ?? (() => true);
    this.only.hidden = !takes;
    this.only.textContent = `✕ only ${name}`;
    this.refresh();
  }

  refresh() {
    const matches = matcher(this.box.value);
    const words = (row) => this.columns.map((column) => TEXT[column.kind](row.values[column.place], column.digits)).join(" ");
    this.found = this.all.filter((row) => this.restricted(row.values) && this.selects.every((select) => select.fits(row)) && (!this.box.value || matches(words(row))));
    if (this.order) {
      const key = KEY[this.order.kind] ?? ((value) => value);
      const keys = new Map(this.found.map((row) => [row, key(row.values[this.order.place])]));
      this.found.sort((a, b) => compare(keys.get(a), keys.get(b), this.order.sign));
    }
    this.body.replaceChildren();
    this.append();
    for (const tell of this.listeners) tell(new Set(this.found.map((row) => row.place)), this.found.length < this.all.length);
  }

  append() {
    const from = this.body.rows.length;
    const rows = this.found.slice(from, from + PAGE).map(({ values }) => h("tr", {}, this.columns.map((column, place) => {
      const kind = place === 0 ? ["th", { scope: "row" }]
        : ["td", { class: ["number", "mean"].includes(column.kind) ? "n" : column.kind === "digest" ? "id" : TEXT[column.kind](values[column.place]).length > 40 ? "long" : "t" }];
      return h(...kind, content(column.kind, values[column.place], column.digits));
    })));
    this.body.append(...rows);
    const shown = this.body.rows.length;
    this.more.hidden = shown >= this.found.length;
    const part = shown < this.found.length ? `, the first ${shown} shown` : "";
    this.count.textContent = this.all.length > 10 || part ? `${this.found.length.toLocaleString("en")} of ${this.all.length.toLocaleString("en")} rows${part}` : "";
  }
}

/** A label without its marks. */
const plain = (value) => (typeof value === "string" ? value.replace(/[ †‡]+$/, "") : value);

const tables = new Map();
for (const figure of $$("figure.paged")) {
  const json = $$("script", figure)[0];
  if (json) tables.set(figure.id, new Paged(figure, JSON.parse(json.textContent)));
}

async function cellsTable() {
  const figure = document.getElementById("cells");
  if (!tables.has("cells")) {
    const data = await load("cells");
    if (!tables.has("cells")) { // two may have asked
      $$("button", figure)[0].parentElement.remove();
      tables.set("cells", new Paged(figure, data));
    }
  }
  return tables.get("cells");
}
$$("#cells button").forEach((button) => button.addEventListener("click", cellsTable));

// --- figures: what a table does not show is pale ---

for (const pictures of $$(".pictures")) {
  const marks = $$(".mark[data-r]", pictures);
  tables.get("leaderboard")?.listeners.push((shown, some) => {
    for (const mark of marks) mark.classList.toggle("off", some && !mark.dataset.r.split(" ").some((place) => shown.has(Number(place))));
  });
}

// --- one cell ---


/** Put back what cells share. */
function whole(value, shared) {
  if (Array.isArray(value)) return value.map((each) => whole(each, shared));
  if (value === null || typeof value !== "object") return value;
  if ("$" in value) return shared[value.$];
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, whole(each, shared)]));
}

/** All that is known of one run. */
function run(version) {
  const attempts = version.attempts ?? [];
  const heads = [...new Set(attempts.flatMap(Object.keys))].filter((name) => attempts.some((a) => a[name] != null));
  const { git, ...environment } = version.environment ?? {};
  const part = (title, inner) => inner && [h("h3", {}, title), inner];
  return [
    version.on_test ? h("div", { class: "warn" }, h("p", {}, "Selected on the test set: these scores are optimistic and stand in no ranking with the others.")) : null,
    part("Where it comes from", facts([
      ["bundle", version.bundles.join(", ")], ["record's sha256", version.sha256], ["code (git)", git ?? "unknown"], ["sweep", version.sweep],
      ...flat(version.data).map(([name, value]) => [`data: ${name}`, value])])),
    part("Scores", version.scores.length ? grid(["score", "value", "unit", "split", "protocol"], version.scores) : null),
    part("Choices", facts(choices(version.choice, {}))),
    part("Cost", facts(flat(version.cost))),
    part("Run again", block(version.command)),
    part("Settings", block(JSON.stringify(version.config, null, 2))),
    part("Environment", facts(flat(environment))),
    part("Attempts", attempts.length ? grid(heads, attempts.map((a) => heads.map((name) => a[name]))) : null),
  ];
}

async function showCell(id) {
  const shared = await load("shared");
  const versions = whole((await load(`cells-${id.slice(0, shared.digits)}`))[id] ?? [], shared.values);
  if (!versions.length) return;
  const [first] = versions;
  const close = h("button", { type: "button", "aria-label": "Close", autofocus: true }, "✕");
  close.addEventListener("click", () => dialog.close());
  const several = versions.length > 1 ? h("div", { class: "warn" }, h("p", {}, `There are ${versions.length} runs of this cell.`), difference(versions)) : null;
  dialog.replaceChildren(
    h("header", {}, h("div", {}, h("h2", { id: "cell-title" }, first.label), h("p", {}, h("span", { class: "id" }, id), `, seed ${first.seed}, ${first.status}`)), close),
    h("div", { class: "inside" }, several, versions.flatMap((version) => [
      versions.length > 1 ? h("h2", {}, version.bundles.join(", ")) : null, ...run(version).flat()])));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** The scores of several runs of a cell beside each other. */
function difference(versions) {
  const value = (version, score) => version.scores.find((other) => other[0] === score[0] && other[3] === score[3])?.[1];
  const rows = versions[0].scores.map((score) => [`${score[0]}, ${score[3]}`, ...versions.map((version) => value(version, score) ?? null)]);
  return grid(["score", ...versions.map((version) => version.bundles.join(", ")), "largest difference"], rows.map(([name, ...values]) => {
    const known = values.filter((each) => each != null);
    return [name, ...values, Math.max(...known) - Math.min(...known)];
  }));
}

// --- addresses: #cell-<id> is a cell, #row-3 the cells of a row of the leaderboard ---

async function route() {
  const cell = location.hash.match(/^#cell-([0-9a-f]{12})$/);
  const row = location.hash.match(/^#row-(\d+)$/);
  if (!document.getElementById("task")) return;
  if (cell) return showCell(cell[1]);
  if (dialog.open) dialog.close();
  if (row) {
    const table = await cellsTable();
    table.restrict((values) => values.at(-1) === Number(row[1]), `row ${Number(row[1]) + 1} of the leaderboard`);
    document.getElementById("cells").scrollIntoView();
  }
}
addEventListener("hashchange", route);
route();
