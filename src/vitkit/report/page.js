for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = row => row.cells[column].textContent;
      const number = row => Number(row.cells[column].dataset.value);
      const rows = [...table.tBodies[0].rows].sort((one, other) =>
        number(one) - number(other) || text(one).localeCompare(text(other), undefined, {numeric: true}));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
for (const picture of document.querySelectorAll(".side img")) {
  picture.tabIndex = 0;
  picture.addEventListener("click", () => picture.classList.toggle("large"));
  picture.addEventListener("keydown", event => { if (event.key === "Enter") picture.click(); });
}
addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  document.querySelectorAll(".large").forEach(picture => picture.classList.remove("large"));
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => part.open = true));
