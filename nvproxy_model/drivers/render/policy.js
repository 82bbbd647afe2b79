// The policy: rows by table, searched in all that stands in them, and by the capabilities of a sandbox.
const groups = all("table.policy tbody").map((body) => ({
  head: body.rows[0].cells[0], label: body.dataset.label,
  rows: all("tr[data-caps]", body).map((row) => ({row, text: row.textContent.toLowerCase(), caps: row.dataset.caps.split(" ")})),
}));
const boxes = all("[data-cap]");
for (const box of boxes) {
  box.addEventListener("change", () => set({caps: boxes.filter((b) => b.checked).map((b) => b.dataset.cap).join(",")}, true));
}
show = () => {
  const wanted = words(), caps = (state.caps || "").split(",").filter(Boolean);
  if (document.activeElement !== filter) filter.value = state.q || "";
  for (const box of boxes) box.checked = caps.includes(box.dataset.cap);
  let shown = 0, total = 0;
  for (const {head, label, rows} of groups) {
    for (const {row, text, caps: own} of rows) {
      row.hidden = !(wanted.every((word) => word.some((w) => text.includes(w))) && (!caps.length || own.some((cap) => caps.includes(cap))));
    }
    const left = rows.filter(({row}) => !row.hidden).length;
    head.textContent = `${label}: ${left === rows.length ? left : `${left} of ${rows.length}`}`;
    head.parentElement.hidden = !left;
    shown += left;
    total += rows.length;
  }
  one("#count").textContent = `${shown} of ${total} rows shown`;
};
read();
show();
