// Layouts: which there are, what differs between two of them or between two releases, and two of them side by side.
const letter = (index) => String.fromCharCode(97 + index % 26) + (index >= 26 ? Math.floor(index / 26) : "");
const runs = facts.runs.map(([releases, checked]) => ({releases, checked}));
const runOf = new Map(runs.flatMap((run, index) => run.releases.map((release) => [release, index])));
const structs = new Map(facts.structs.map(([name, layouts, cells, between, calls]) => [name, {
  name, between, calls, layouts: layouts.map(([size, kind, members]) => ({size, kind, members})),
  cells: cells.length ? cells : runs.map((run) => run.checked ? 0 : -2),
}]));
const breaking = (finding) => !facts.additive.includes(finding.class);
const findings = (struct, before, after) => struct.between[`${before}-${after}`].map(
  ([kind, path, detail]) => ({class: kind, struct: struct.name, name: path ? `${struct.name}.${path}` : struct.name, detail}));
const shown = (value) => value >= 10 ? "0x" + value.toString(16) : String(value);

// Everything that differs from one release to another, as nvproxy-differ diff tells it for these names; null where one of
// them has no public source. Numbers are told by their values alone.
function differences(from, to) {
  const [a, b] = [runOf.get(from), runOf.get(to)];
  if (!runs[a].checked || !runs[b].checked) return null;
  const found = [];
  for (const struct of structs.values()) {
    const [before, after] = [struct.cells[a], struct.cells[b]];
    const at = before === after ? null : before < 0 ? `${struct.name}.${letter(after)}`
      : after < 0 ? `${struct.name}.${letter(before)}` : `${struct.name}.${letter(before)}-${letter(after)}`;
    if (before === after) continue;
    const whole = (index) => `${struct.layouts[index].kind} of ${struct.layouts[index].size} bytes`;
    const own = before < 0 ? [{class: "added", name: struct.name, detail: whole(after)}]
      : after < 0 ? [{class: "removed", name: struct.name, detail: whole(before)}] : findings(struct, before, after);
    found.push(...own.map((finding) => ({...finding, struct: struct.name, at})));
  }
  const {names, values, states} = facts.numbers;
  const [old, now] = [values[states[from]], values[states[to]]];
  names.forEach((name, n) => {
    if (old[n] === now[n]) return;
    const kind = old[n] === null ? "added" : now[n] === null ? "removed" : "renumbered";
    const detail = kind === "added" ? `${name} = ${shown(now[n])}` : kind === "removed" ? `${name} was ${shown(old[n])}`
      : `${shown(old[n])}, then ${shown(now[n])}`;
    found.push({class: kind, name, detail, struct: null, at: null});
  });
  return found;
}

// Two layouts member by member: [mark, left, right] for each line, the longest common run of keys on lines of its own.
function sides(left, right) {
  const old = left ? keyed(left) : [], now = keyed(right);
  if (!left) return now.map((b) => [b.path ? "same" : "hole", null, b]);
  const common = Array.from({length: old.length + 1}, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i][j] = old[i].key === now[j].key ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const [mine, theirs] = [new Set(old.map((m) => m.key)), new Set(now.map((m) => m.key))];
  const lines = [];
  let i = 0, j = 0;
  while (i < old.length || j < now.length) {
    // What stands between two common members: other names for the same place first, then what went, then what came.
    const gone = [], came = [];
    while (i < old.length || j < now.length) {
      if (i < old.length && j < now.length && old[i].key === now[j].key) break;
      if (j >= now.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) gone.push(old[i++]);
      else came.push(now[j++]);
    }
    for (const a of gone) {
      const twin = a.path && came.findIndex((b) => b.path && b.offset === a.offset && b.size === a.size && b.type === a.type);
      if (a.path && twin >= 0) lines.push(["renamed", a, came.splice(twin, 1)[0]]);
      else lines.push([!a.path ? "hole" : theirs.has(a.key) ? "moved" : "removed", a, null]);
    }
    for (const b of came) lines.push([!b.path ? "hole" : mine.has(b.key) ? "moved" : "added", null, b]);
    if (i < old.length && j < now.length) lines.push(paired(old[i++], now[j++]));
  }
  return lines;
}
function keyed(layout) {
  let holes = 0;
  return layout.members.map(([offset, size, type = "", path = "", key = path]) =>
    ({offset, size, type, path, key: path ? key : `<hole ${holes++}>`}));
}
function paired(a, b) {
  const mark = !a.path ? "hole" : a.size !== b.size ? "resized" : a.type !== b.type ? "retyped" : a.offset !== b.offset ? "moved" : "same";
  return [mark, a, b];
}
function half(side, edge = "") {
  if (!side) return ["o" + edge, "s", "t", "p"].map((name) => element("td", {class: name}));
  const hole = side.path ? "" : " hole";
  return [["o" + edge, side.offset], ["s", side.size], ["t", side.type], ["p", side.path || "hole"]].map(
    ([name, text]) => element("td", {class: name + hole}, String(text)));
}
function layoutTable(left, right, labels) {
  const head = (prefix, label) => ["offset", "bytes", "type", label].map((text, n) =>
    element("th", {scope: "col", class: ["o" + prefix, "s", "t", "p"][n]}, text));
  const rows = sides(left, right).map(([mark, a, b]) => element("tr", {class: mark},
    ...(left ? half(a) : []), element("td", {class: "m"}, mark === "same" ? "" : mark), ...half(b, " half")));
  const heads = [...(left ? head("", labels[0]) : []), element("th", {scope: "col", class: "m"}, "change"), ...head(" half", labels[1])];
  return element("div", {class: "wide", tabindex: "0", role: "region", "aria-label": "layout"}, element("table", {class: "sides"},
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}

// NVIDIA's headers at a release, where we know its tag or commit.
function headers(release) {
  const ref = facts.refs[release];
  return ref ? element("a", {href: `${facts.nvidia}/tree/${ref}/src/common/sdk/nvidia/inc`}, `NVIDIA's headers at ${release}`) : release;
}
