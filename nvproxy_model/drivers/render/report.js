// The report: a heat map that keys move in, a search over all tables, layouts above the map, two releases compared.
const map = one(".map");
const [panel, comparison, status] = ["#layouts", "#comparison", "#status"].map((id) => one(id));
const rows = map ? all("tbody tr[data-n]", map) : [];
const listed = all("table.breaks tr[data-n], table.findings tr[data-n]").map((row) => {
  const cells = row.cells, struct = structs.get(row.dataset.n.split(".")[0]);
  return {row, struct, text: row.textContent.toLowerCase(), release: cells[1].textContent,
    class: all("td[title]", row)[0].textContent};
});
for (const struct of structs.values()) {
  const members = new Set(struct.layouts.flatMap((layout) => layout.members.map((member) => member[3] || "")));
  struct.text = [struct.name, ...members, ...struct.calls.flat()].join(" ").toLowerCase();
  struct.releases = new Set();
  struct.classes = new Set();
}
for (const {struct, release, class: kind} of listed) {
  if (struct) struct.releases.add(release), struct.classes.add(kind);
}

// A release and a class mean themselves; another word may stand anywhere in a name, a field, a call or a release.
function has(word, text, releases, classes) {
  if (facts.classes[word]) return classes.has(word);
  return runOf.has(word) ? releases.has(word) : text.includes(word) || [...releases].some((release) => release.includes(word));
}
const matches = (wanted, struct) => wanted.every((word) => word.some((w) => has(w, struct.text, struct.releases, struct.classes)));

function search() {
  const wanted = words();
  if (document.activeElement !== filter) filter.value = state.q || "";
  const found = new Set([...structs.values()].filter((struct) => matches(wanted, struct)).map((struct) => struct.name));
  for (const row of all(".map tbody tr[data-n], table.constant tr[data-n]")) row.hidden = !found.has(row.dataset.n);
  for (const {row, struct, text, release, class: kind} of listed) {
    const own = (w) => has(w, text, new Set([release]), new Set([kind]));
    const others = (w) => struct && !facts.classes[w] && !runOf.has(w) && struct.text.includes(w);
    row.hidden = !wanted.every((word) => word.some((w) => own(w) || others(w)));
  }
  for (const part of map ? map.tBodies : []) {
    const [head, ...own] = part.rows;
    const left = own.filter((row) => !row.hidden).length;
    head.cells[0].textContent = `${part.dataset.label}: ${left === own.length ? left : `${left} of ${own.length}`}`;
    head.hidden = !left;
  }
  for (const summary of all("details > summary[data-all]")) {
    const own = all("tbody tr", summary.parentElement), left = own.filter((row) => !row.hidden).length;
    summary.textContent = left === own.length ? summary.dataset.all : `${left} of ${summary.dataset.all}`;
  }
  one("#count").textContent = `${found.size} of ${structs.size} structs shown`;
  for (const button of all("[data-class]")) {
    button.setAttribute("aria-pressed", String(wanted.some((word) => word.includes(button.dataset.class))));
  }
  const marked = new Set(wanted.flat().concat(state.a || [], state.b || []));
  for (const head of all("th[data-run]")) {
    head.classList.toggle("here", runs[head.dataset.run].releases.some((release) => marked.has(release)));
  }
}
for (const summary of all("details > summary")) {
  if (one("tr[data-n]", summary.parentElement)) summary.dataset.all = summary.textContent;
}
for (const button of all("[data-class]")) {
  button.addEventListener("click", () => {
    const rest = (state.q || "").split(/\s+/).filter((word) => word && word !== button.dataset.class);
    set({q: [...rest, ...(button.getAttribute("aria-pressed") === "true" ? [] : [button.dataset.class])].join(" ")});
  });
}

// Two releases.
const [a, b, only] = ["#a", "#b", "#only"].map((id) => one(id));
for (const input of [a, b]) input.addEventListener("change", () => set({[input.id]: input.value.trim()}, true));
only.addEventListener("change", () => set({only: only.checked ? "breaks" : ""}, true));
function compare() {
  if (document.activeElement !== a) a.value = state.a || "";
  if (document.activeElement !== b) b.value = state.b || "";
  only.checked = state.only === "breaks";
  comparison.hidden = !(state.a && state.b);
  if (comparison.hidden) return;
  const unknown = [state.a, state.b].filter((release) => !runOf.has(release));
  const found = unknown.length ? null : differences(state.a, state.b);
  const close = element("a", {href: "#a=&b=&only=", class: "close"}, "close");
  if (!found) {
    const bad = unknown.length ? unknown : [state.a, state.b].filter((release) => !runs[runOf.get(release)].checked);
    const why = unknown.length ? "not a release of this page" : "not checkable, for no public source exists";
    return comparison.replaceChildren(element("h2", {}, `From ${state.a} to ${state.b}: could not tell `, close),
      element("p", {}, `${bad.join(", ")}: ${why}.`));
  }
  const breaks = found.filter(breaking), left = only.checked ? breaks : found;
  const verdict = breaks.length ? "breaking" : found.length ? "additive" : "same";
  const count = (list, what) => `${list.length} ${what}${list.length === 1 ? "" : "s"}`;
  const touched = [...new Set(left.map((finding) => finding.struct).filter(Boolean))];
  const head = only.checked ? `What breaks from ${state.a} to ${state.b}` : `From ${state.a} to ${state.b}`;
  const line = (finding) => element("tr", {"data-n": finding.name},
    element("td", {}, finding.at ? element("a", {href: `#at=${encodeURIComponent(finding.at)}`}, finding.name) : finding.name),
    element("td", {class: "nowrap", title: facts.classes[finding.class]}, finding.class), element("td", {}, finding.detail));
  comparison.replaceChildren(
    element("h2", {}, `${head}: ${verdict} `, close),
    element("p", {}, `${count(touched, "struct")} and ${count(left.filter((f) => !f.struct), "number")}; headers: `,
      headers(state.a), ", ", headers(state.b), ". Of structs and numbers that are not on this page, nvproxy-differ diff tells."),
    element("div", {class: "box", tabindex: "0", role: "region", "aria-label": "differences"}, element("table", {class: "list compared"},
      element("thead", {}, element("tr", {}, ...["name", "class", "what"].map((text) => element("th", {scope: "col"}, text)))),
      element("tbody", {}, ...left.map(line)))));
}

// A layout, or two side by side: NAME.b or NAME.a-b.
let opener = null;
function selected() {
  const dot = (state.at || "").lastIndexOf(".");
  const struct = structs.get((state.at || "").slice(0, Math.max(dot, 0)));
  if (!struct) return null;
  const pair = state.at.slice(dot + 1).split("-").map((text) => struct.layouts.findIndex((_, index) => letter(index) === text));
  return pair.some((index) => index < 0) || pair.length > 2 ? null : {struct, pair};
}
function open() {
  for (const cell of all("td.at")) cell.classList.remove("at");
  const it = selected();
  panel.hidden = !it;
  if (!it) return;
  const {struct, pair} = it, after = pair[pair.length - 1], before = pair.length > 1 ? pair[0] : null;
  const [was, now] = [struct.layouts[before], struct.layouts[after]];
  const having = (index) => runs.flatMap((run, n) => struct.cells[n] === index ? run.releases : []);
  const [mine, others] = [having(after), before === null ? [] : having(before)];
  const size = was ? `${was.size} bytes (${letter(before)}), then ${now.size} (${letter(after)})` : `${now.size} bytes (${letter(after)})`;
  const calls = struct.calls.map(([where, number, name]) => `${where} ${number} ${name}`);
  const changes = before === null || before === after ? [] : findings(struct, before, after);
  const change = (finding) => element("li", {}, `${finding.class} `, element("code", {}, finding.name.slice(struct.name.length + 1)), ` ${finding.detail}`);
  panel.replaceChildren(
    element("h3", {}, `${struct.name}: ${size} `, element("a", {href: "#at=", class: "close"}, "close")),
    element("p", {class: "soft"}, `${letter(after)}: ${mine[0]} to ${mine[mine.length - 1]}, ${mine.length} releases; `, headers(mine[0]),
      ...(others.length ? ["; ", headers(others[others.length - 1])] : []), "; ", element("a", {href: facts.gvisor}, "gVisor's nvproxy")),
    ...(calls.length ? [element("p", {class: "soft mono"}, calls.join(", "))] : []),
    ...(changes.length ? [element("ul", {class: "changes"}, ...changes.map(change))] : []),
    layoutTable(was, now, was ? [`before (${letter(before)})`, `after (${letter(after)})`] : ["", "member"]));
  const row = rows.find((each) => each.dataset.n === struct.name);
  for (const cell of row ? all("td", row) : []) if (cell.textContent === letter(after)) cell.classList.add("at");
}
function from(struct, run) {
  const after = struct.cells[run];
  // The other layout that stands in this row before it: columns are in order of ancestry.
  let here = run;
  while (here >= 0 && (struct.cells[here] === after || struct.cells[here] === -2)) here = facts.runs[here][2];
  return here >= 0 && struct.cells[here] >= 0 ? `${letter(struct.cells[here])}-${letter(after)}` : letter(after);
}

// The map: one tab stop, the arrows move it.
const heads = map ? map.tHead.rows[1] : null;
let current = null;
const runAt = (cell) => Number(heads.cells[cell.cellIndex].dataset.run);
function describe(cell) {
  const head = heads.cells[cell.cellIndex], name = cell.parentElement.dataset.n;
  if (!name || cell.cellIndex < 1) return name || cell.title || cell.textContent;
  const struct = structs.get(name), {releases} = runs[head.dataset.run], layout = struct.cells[head.dataset.run];
  const when = head.dataset.release || (releases.length > 1
    ? `${releases[0]} to ${releases[releases.length - 1]}, ${releases.length} releases` : releases[0]);
  const what = layout === -2 ? "not checkable: no public source" : layout === -1 ? "no such struct"
    : `layout ${letter(layout)}, ${struct.layouts[layout].size} bytes`;
  return `${name}  ${when}: ${what}`;
}
function go(cell, focus = true) {
  if (current) current.tabIndex = -1;
  current = cell;
  cell.tabIndex = 0;
  if (!focus) return;
  if (cell.parentElement.dataset.n && cell.cellIndex > 0) cell.setAttribute("aria-label", describe(cell));
  cell.focus({preventScroll: true});
  cell.scrollIntoView({block: "nearest", inline: "nearest"});
  status.textContent = describe(cell);
}
function act(cell) {
  const name = cell.parentElement.dataset.n;
  if (!name) return cell.hasAttribute("aria-expanded") ? toggle(cell) : null;
  const struct = structs.get(name);
  const run = cell.cellIndex ? runAt(cell) : struct.cells.reduce((last, layout, index) => layout >= 0 ? index : last, 0);
  if (struct.cells[run] < 0) return null;
  opener = cell;
  set({at: `${name}.${from(struct, run)}`}, true);
  return panel.scrollIntoView({block: "nearest"});
}
// A head stands for a run of releases; opened, each of them has a column.
function toggle(head) {
  const run = head.dataset.run, {releases} = runs[run], wasOpen = head.getAttribute("aria-expanded") === "true";
  const place = head.cellIndex;
  const widened = (row, make) => {
    if (wasOpen) for (let n = 1; n < releases.length; n += 1) row.deleteCell(place + 1);
    else row.cells[place].after(...releases.slice(1).map((release) => make(row.cells[place], release)));
  };
  widened(heads, (_, release) => element("th", {class: "run", scope: "col", "data-run": run, "data-release": release}, element("span", {}, release)));
  for (const row of rows) widened(row, (cell) => element("td", {class: cell.className}, cell.textContent));
  document.getElementById(head.dataset.branch).colSpan += (releases.length - 1) * (wasOpen ? -1 : 1);
  for (const group of all(".group", map)) group.colSpan = heads.cells.length;
  map.style.setProperty("--columns", heads.cells.length - 1);
  head.setAttribute("aria-expanded", String(!wasOpen));
  fit();
}
// The page itself never scrolls sideways; a map that is too wide scrolls in its box, and its head with it.
function fit() {
  const box = one(".scroll");
  if (box) box.classList.toggle("wide", map.scrollWidth > box.clientWidth + 1);
}
window.addEventListener("resize", fit);

const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-10, 0], PageDown: [10, 0]};
if (map) {
  map.setAttribute("role", "grid");
  heads.cells[0].tabIndex = -1;
  go(rows[0].cells[1], false);
  map.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td");
    if (cell) status.textContent = describe(cell);
  });
  map.addEventListener("click", (event) => {
    const cell = event.target.closest("td, th[scope=row], th.run");
    if (!cell) return;
    go(cell);
    act(cell);
  });
  map.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td, th"), lines = [heads, ...rows.filter((row) => !row.hidden)];
    const line = lines.indexOf(cell.parentElement), ends = {Home: 0, End: heads.cells.length - 1};
    if (event.key === "Enter" || event.key === " ") act(cell);
    else if (event.key in STEPS) {
      const [down, right] = STEPS[event.key], within = (value, last) => Math.max(0, Math.min(last, value));
      const row = lines[within(line + down, lines.length - 1)];
      go(row.cells[within(cell.cellIndex + right, row.cells.length - 1)]);
    } else if (event.key in ends) go((event.ctrlKey ? lines[ends[event.key] && lines.length - 1] : cell.parentElement).cells[ends[event.key]]);
    else return;
    event.preventDefault();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || panel.hidden) return;
  set({at: ""}, true);
  if (opener) go(opener);
});

show = () => {
  search();
  compare();
  open();
  // The tab stop of the map is one that can be seen.
  if (current && current.parentElement.hidden) go((rows.find((row) => !row.hidden) || heads).cells[1], false);
  fit();
};
read();
show();
if (state.at) panel.scrollIntoView({block: "nearest"});
