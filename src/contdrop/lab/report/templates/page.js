"use strict";
(function () {
  // The hint that a table scrolls is for those that do.
  function nameScrolling() {
    for (const box of document.querySelectorAll(".hint + .scroll")) {
      box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
    }
  }
  addEventListener("resize", nameScrolling);
  nameScrolling();

  // Tables: a cell's data-value decides, or its text in a column that has none. Cells without a value come last.
  const words = new Intl.Collator("en", { numeric: true });
  function valuesOf(rows, place) {
    const cells = rows.map((row) => row.cells[place]);
    const valued = cells.some((cell) => "value" in cell.dataset);
    return cells.map((cell) => {
      const text = valued ? cell.dataset.value : cell.textContent;
      if (text === undefined || text === "" || text === "nan") return null;
      const number = Number(text.replace(/^(-?)inf$/, "$1Infinity"));
      return Number.isNaN(number) ? text : number;
    });
  }
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a < b ? -1 : a > b ? 1 : 0;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return words.compare(a, b);
  }
  function sort(body, place, direction) {
    const rows = Array.from(body.rows);
    const values = valuesOf(rows, place);
    const items = rows.map((row, index) => ({ row, value: values[index] }));
    items.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
      return direction * compare(a.value, b.value);
    });
    body.append(...items.map((item) => item.row));
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = Array.from(table.tHead.rows[0].cells);
    headings.forEach((heading, place) => {
      if (!heading.textContent) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const ascending = heading.getAttribute("aria-sort") !== "ascending";
        headings.forEach((other) => other.setAttribute("aria-sort", "none"));
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table.tBodies[0], place, ascending ? 1 : -1);
      });
    });
  }

  const viewer = document.getElementById("viewer");
  for (const button of document.querySelectorAll("button.enlarge")) {
    button.addEventListener("click", () => {
      const drawing = button.parentElement.querySelector(".drawing").cloneNode(true);
      const title = button.closest("figure").querySelector("figcaption strong").textContent;
      document.getElementById("viewer-stage").replaceChildren(drawing);
      document.getElementById("viewer-title").textContent = title;
      viewer.showModal();
    });
  }
  document.getElementById("viewer-close").addEventListener("click", () => viewer.close());
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });

  if (navigator.clipboard) {
    for (const box of document.querySelectorAll(".copybox")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.textContent = "Copy";
      button.addEventListener("click", () => {
        navigator.clipboard.writeText(box.querySelector("code").textContent).then(
          () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); },
          () => { button.textContent = "Select it"; });
      });
      box.append(button);
    }
  }

  // On a phone the contents would push the verdict down.
  const contents = document.querySelector(".contents details");
  const narrow = matchMedia("(max-width: 68rem)");
  function fold() { contents.open = !narrow.matches; }
  narrow.addEventListener("change", fold);
  fold();

  // While runs are going on; a reload keeps the place on the page, but would close an enlarged figure.
  const seconds = Number(document.body.dataset.refresh);
  if (seconds > 0) setInterval(() => { if (!viewer.open && !document.hidden) location.reload(); }, 1000 * seconds);
})();
