// Puts the form of a new comment below the line that it is on. Without this script the form stands
// at the end of the page and asks for the line.
"use strict";
(() => {
  const section = document.getElementById("new-comment");
  if (!section) return;
  const form = section.querySelector("form");
  const field = (name) => form.elements[name];
  let first = null; // the number that was chosen last: with Shift a range begins there

  // A value that its list lacks: a file that was renamed, a state before the page was loaded anew.
  function choice(name, value) {
    const list = field(name);
    if (![...list.options].some((option) => option.value === value)) list.add(new Option(value, value));
    list.value = value;
  }

  function choose(link, range) {
    const file = link.closest("[data-path]");
    const side = link.dataset.side;
    const line = Number(link.dataset.line);
    const begins = range && first && first.file === file && first.side === side;
    if (!begins) first = { file, side, line };
    const from = Math.min(first.line, line);
    choice("file", side === "old" ? file.dataset.source : file.dataset.path);
    field("line").value = from;
    field("count").value = Math.abs(first.line - line) + 1;
    choice("tree", file.dataset[side]);
    field("anchor").value = file.id;
    section.querySelector("h2").textContent =
      `Comment on ${side === "old" ? "old " : ""}line ${from}` + (from === line && !begins ? "" : ` and ${field("count").value - 1} more`);
    const row = document.createElement("tr");
    const cell = row.insertCell();
    cell.colSpan = 3;
    const holder = section.closest("tr");
    link.closest("tr").after(row);
    cell.append(section);
    holder?.remove();
    field("text").focus();
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.comment-on");
    if (!link) return;
    event.preventDefault();
    choose(link, event.shiftKey);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form?.requestSubmit();
  });
})();
