// Puts the form of a new comment below the line that it is on, keeps what was typed there when the
// page is loaded anew, and shows at each comment what became of it. Without this script the form
// stands at the end of the page and asks for the line.
"use strict";
(() => {
  const section = document.getElementById("new-comment");
  if (!section) return;
  const home = section.parentElement;
  const form = section.querySelector("form");
  const title = section.querySelector("h2");
  const where = document.getElementById("new-where");
  const inPlace = [document.getElementById("new-cancel"), document.getElementById("new-keys")];
  const field = (name) => form.elements[name];
  const details = document.getElementById("new-suggestion");
  const KEPT = `comment on ${location.pathname}`;
  let first = null; // the line that was chosen last: with Shift a range begins there

  // A value that its list lacks: a file that was renamed, a state before the page was loaded anew.
  function choice(name, value) {
    const list = field(name);
    if (![...list.options].some((option) => option.value === value)) list.add(new Option(value, value));
    list.value = value;
  }

  function rows(file, side, from, count) {
    return [...file.querySelectorAll(`a.comment-on[data-side="${side}"]`)]
      .filter((link) => link.dataset.line >= from && link.dataset.line < from + count)
      .map((link) => link.closest("tr"));
  }

  function choose(link, range) {
    const file = link.closest("[data-path]");
    const side = link.dataset.side;
    const line = Number(link.dataset.line);
    if (!(range && first && first.file === file && first.side === side)) first = { file, side, line };
    const from = Math.min(first.line, line);
    const count = Math.abs(first.line - line) + 1;
    choice("file", side === "old" ? file.dataset.source : file.dataset.path);
    field("line").value = from;
    field("count").value = count;
    choice("tree", file.dataset[side]);
    field("anchor").value = file.id;
    const named = count === 1 ? `line ${from}` : `lines ${from} to ${from + count - 1}`;
    show(`Comment on ${side === "old" ? "old " : ""}${named}`, link.closest("tr"));
    for (const row of rows(file, side, from, count)) row.classList.add("chosen");
    suggest();
  }

  // Below a row of a diff, or, for none, at the end of the page, where it asks for the line.
  function show(text, row) {
    const holder = section.closest("tr");
    for (const chosen of document.querySelectorAll("tr.chosen")) chosen.classList.remove("chosen");
    title.textContent = text;
    where.hidden = row !== null;
    for (const element of inPlace) element.hidden = row === null;
    if (row) {
      const below = document.createElement("tr");
      const cell = below.insertCell();
      cell.colSpan = 3;
      row.after(below);
      cell.append(section);
      field("text").focus();
    } else {
      home.append(section);
    }
    holder?.remove();
  }

  function cancel() {
    form.reset();
    first = null;
    filled = "";
    show("Comment", null);
  }

  // A suggestion begins with the lines as they are, where all of them are shown. One that says the
  // same is none.
  let filled = "";
  function suggest() {
    const box = field("suggestion");
    if (box.value !== filled) return; // a person has typed
    box.value = filled = "";
    const count = Number(field("count").value);
    if (!details.open || where.hidden === false || !first) return;
    const text = (row) => [...row.querySelector("td.line").childNodes]
      .filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data).join("");
    const chosen = rows(first.file, first.side, Number(field("line").value), count);
    if (chosen.length === count) box.value = filled = chosen.map(text).join("\n");
  }

  // -- what was typed ------------------------------------------------------------------------

  const NAMES = ["file", "line", "count", "tree", "text", "suggestion"];
  const comments = () => document.querySelectorAll(".remark").length;
  const suggestion = () => (field("suggestion").value === filled ? "" : field("suggestion").value);
  form.addEventListener("submit", () => {
    if (!suggestion()) field("suggestion").value = "";
    filled = "";
  });
  addEventListener("pagehide", () => {
    const values = NAMES.map((name) => [name, field(name).value]);
    const kept = { ...Object.fromEntries(values), suggestion: suggestion(), comments: comments() };
    if (kept.text || kept.suggestion) sessionStorage.setItem(KEPT, JSON.stringify(kept));
    else sessionStorage.removeItem(KEPT);
  });

  function restore() {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    sessionStorage.removeItem(KEPT);
    // What was sent is there as a comment, unless the server has refused it.
    const isThere = [...document.querySelectorAll(".remark-text")]
      .some((text) => text.textContent === kept?.text.replaceAll("\r\n", "\n"));
    if (!kept || (isThere && comments() > kept.comments)) return;
    const side = kept.tree.split(" ")[0];
    const name = side === "old" ? "source" : "path";
    const file = [...document.querySelectorAll("[data-path]")]
      .find((one) => one.dataset[name] === kept.file);
    const link = (line) => file?.querySelector(`a.comment-on[data-side="${side}"][data-line="${line}"]`);
    const last = link(Number(kept.line) + Number(kept.count) - 1);
    // Numbers of another state stand at other lines by now.
    if (last && file.dataset[side] === kept.tree) {
      if (link(kept.line)) choose(link(kept.line), false);
      choose(last, true);
    }
    choice("file", kept.file);
    choice("tree", kept.tree);
    for (const each of ["line", "count", "text", "suggestion"]) field(each).value = kept[each];
    details.open = kept.suggestion !== "";
    section.scrollIntoView({ block: "nearest" });
  }

  // -- events --------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.comment-on");
    if (!link) return;
    event.preventDefault();
    choose(link, event.shiftKey);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form?.requestSubmit();
    const isOurs = form.contains(event.target) && !event.isComposing;
    // What was typed goes by the button alone.
    if (event.key === "Escape" && isOurs && !field("text").value && !suggestion()) cancel();
  });

  document.getElementById("new-cancel").addEventListener("click", cancel);
  details.addEventListener("toggle", suggest);

  document.addEventListener("casfs:replaced", ({ detail }) => {
    for (const link of detail.querySelectorAll(".remarks a")) {
      const states = document.querySelector(`${link.hash} .states`);
      states?.replaceWith(link.parentElement.querySelector(".states").cloneNode(true));
    }
  });

  restore();
})();
