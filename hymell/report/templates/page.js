"use strict";
const value = (row, column) => row.cells[column].dataset.value;
const order = (a, b) => {
  const [x, y] = [Number(a), Number(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return a.localeCompare(b, "en", { numeric: true });
};
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      const numbers = head.classList.contains("right");
      const fresh = head.getAttribute("aria-sort") === "none";
      const ascending = fresh ? !numbers : down;
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      // A cell without a value comes last either way.
      rows.sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return (ascending ? 1 : -1) * order(x, y);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
for (const input of document.querySelectorAll("input[data-filter]")) {
  const table = document.getElementById(input.dataset.filter);
  const shown = document.querySelector(`output[data-count="${input.dataset.filter}"]`);
  const narrow = () => {
    const wanted = input.value.trim().toLowerCase();
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      count += row.hidden ? 0 : 1;
    }
    shown.textContent = `${count} of ${table.tBodies[0].rows.length} rows`;
  };
  input.addEventListener("input", narrow);
  narrow();
}
