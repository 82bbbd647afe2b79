"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");
  const status = document.getElementById("status");

  // Rows of every table that carry a name; the panels are found through the rows.
  function apply() {
    const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of all("tr[data-n]")) {
      const name = row.dataset.n.toLowerCase();
      row.hidden = !words.every((word) => name.includes(word));
      if (!row.hidden && row.closest(".map, .constant")) shown += 1;
    }
    count.textContent = shown + " structs shown";
  }
  filter.addEventListener("input", apply);

  // A column header stands for a run of releases; a click shows one column for each of them.
  function toggle(button) {
    const head = button.closest("th");
    const run = head.dataset.run;
    const names = head.dataset.releases.split(" ");
    const open = button.getAttribute("aria-expanded") === "true";
    const table = head.closest("table");
    if (open) {
      for (const extra of all(`[data-extra="${run}"]`, table)) extra.remove();
    } else {
      for (const cell of all(`td[data-r="${run}"]`, table)) {
        for (let i = names.length - 1; i > 0; i -= 1) {
          const copy = cell.cloneNode(true);
          copy.removeAttribute("data-r");
          copy.dataset.extra = run;
          copy.dataset.release = names[i];
          cell.after(copy);
        }
      }
      for (let i = names.length - 1; i > 0; i -= 1) {
        const extra = document.createElement("th");
        extra.className = "run";
        extra.dataset.extra = run;
        const label = document.createElement("span");
        label.textContent = names[i];
        extra.append(label);
        head.after(extra);
      }
    }
    const branch = document.getElementById(head.dataset.branch);
    branch.colSpan += (names.length - 1) * (open ? -1 : 1);
    const columns = all("thead .run", table).length;
    // The page itself never scrolls sideways; a map that has grown too wide scrolls in its box.
    const box = table.closest(".scroll");
    table.style.minWidth = 340 + columns * 20 + "px";
    box.classList.toggle("wide", 340 + columns * 20 > box.clientWidth);
    button.setAttribute("aria-expanded", String(!open));
  }
  for (const button of all(".run button")) button.addEventListener("click", () => toggle(button));

  const heads = new Map(all("th[data-run]").map((head) => [head.dataset.run, head]));
  function describe(cell) {
    const row = cell.closest("tr");
    const head = heads.get(cell.dataset.r || cell.dataset.extra);
    const releases = head.dataset.releases.split(" ");
    const first = releases[0], last = releases[releases.length - 1];
    const when = cell.dataset.release || (releases.length > 1 ? `${first} to ${last}, ${releases.length} releases` : first);
    const sizes = row.dataset.sizes.split(" ");
    const index = cell.dataset.l;
    const what = cell.classList.contains("u") ? "not checkable: no public source"
      : cell.classList.contains("n") ? "no such struct" : `layout ${cell.textContent}, ${sizes[index]} bytes`;
    status.textContent = `${row.dataset.n}  ${when}: ${what}`;
  }
  for (const table of all(".map")) {
    table.addEventListener("mouseover", (event) => {
      const cell = event.target.closest("td");
      if (cell) describe(cell);
    });
    table.addEventListener("focusin", (event) => {
      const cell = event.target.closest("td");
      if (cell) describe(cell);
    });
  }

  function mark() {
    for (const cell of all("td.at")) cell.classList.remove("at");
    const wanted = decodeURIComponent(location.hash.slice(1));
    if (!wanted) return;
    for (const link of all("td a")) {
      if (decodeURIComponent(link.hash.slice(1)) === wanted && link.closest(".map")) link.closest("td").classList.add("at");
    }
  }
  window.addEventListener("hashchange", mark);
  mark();
  apply();
})();
