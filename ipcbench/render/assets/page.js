"use strict";
// What a page does besides its charts: sections fold, tables sort, commands are copied. Without it all is there to read.
(() => {
  const folds = [...document.querySelectorAll(".fold")];

  // On a phone the answer and its chart are the page; each section opens on demand, and so does what a link leads to.
  if (matchMedia("(max-width: 620px)").matches) for (const fold of folds) fold.open = false;

  function unfold(hash) {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    for (let fold = target.closest(".fold") || target.querySelector(":scope > .fold"); fold; fold = fold.parentElement.closest(".fold")) fold.open = true;
    target.scrollIntoView();
  }
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => unfold(link.hash));
  addEventListener("hashchange", () => unfold(location.hash));
  unfold(location.hash);

  // Paper has no folds: all sections are open while the page is printed.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed.splice(0)) fold.open = false; });

  // A column sorts up, then down, then back to the order of the ranks. Cells without a figure are always last.
  const ORDERS = ["ascending", "descending", "none"];

  function figure(text) {
    const found = /^[^\d-]{0,2}(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text.trim());
    return found ? Number(found[1].replace(/,/g, "")) : null;
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const ranked = [...body.rows];
    if (ranked.length < 2) return;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = ORDERS[(ORDERS.indexOf(head.getAttribute("aria-sort")) + 1) % ORDERS.length];
        for (const one of heads) one.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order);
        body.append(...sorted(ranked, column, order));
      });
    });
  }

  function sorted(rows, column, order) {
    if (order === "none") return rows;
    const sign = order === "ascending" ? 1 : -1;
    const texts = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
    const numeric = rows.some((row) => row.cells[column].classList.contains("right") && figure(texts.get(row)) !== null);
    const values = new Map(rows.map((row) => [row, numeric ? figure(texts.get(row)) : texts.get(row) || null]));
    const compared = (a, b) => (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    return [...rows].sort((a, b) => {
      const [one, other] = [values.get(a), values.get(b)];
      if (one === null || other === null) return (one === null) - (other === null);
      return sign * compared(one, other);
    });
  }
  document.querySelectorAll("table.sortable").forEach(sortable);

  // A table that is wider than its place says so, unless only the margin of its last column, of 12 px, lies outside.
  const watcher = new ResizeObserver((entries) => {
    for (const { target } of entries) target.nextElementSibling.hidden = target.scrollWidth <= target.clientWidth + 12;
  });
  for (const region of document.querySelectorAll(".scroll")) {
    if (region.nextElementSibling && region.nextElementSibling.classList.contains("hint")) watcher.observe(region);
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = button.dataset.copied;
      } catch {
        button.textContent = button.dataset.selected;  // a page from a file may not be allowed to copy
      }
    });
  }
})();
