"""The live dashboard: pages that read the store, and forms that ask the daemon.

A screen is one module (`board`, …) and one template of the same name, in two halves:

- its view model: plain functions of a `Store` that return dataclasses, tested without a server;
- its handlers: plain functions `handler(call: Call) -> Response`, with a row each in
  `casfs.web.app.PAGES` (GET) or `ACTIONS` (POST). They run in a worker thread, so they may read the
  store; they raise errors of `casfs.errors`, which become error pages.

`call.page("board.html", model=…)` renders a template that extends `base.html`. With
`?fragment=NAME` in the URL only `{% block NAME %}` of it is rendered, so a part of a page can be
fetched again alone; nothing is needed for that in the handler.

An element that shows something live names it:

    <section id="needs" data-live="threads/" data-fragment="/?fragment=needs">

`data-live`: names of heads, or prefixes that end in `/`, with blanks between. When one of them
moves, `casfs.js` fetches `data-fragment` and replaces the element by the one with the same id (so
the block holds the whole element); focus, scroll, open `<details>` with an id and what was typed
into fields with an id stay.

`data-every="2"`: fetched every 2 seconds too, for what no head says (a program's output).
`<details id="…" data-part="URL">`: gets the fragment at URL, which never changes, when it is
unfolded for the first time; what is in it already is for those without the script.

Macros are in `macros.html`, called as `ui.badge(…)`; a block sees what the handler gave, not what a
template `set` outside of it. What an agent said is escaped by the environment, or
goes through `casfs.web.markdown`; no template uses `|safe`. CSS and script come from `/static/`
alone, never inline: the Content-Security-Policy refuses `style=` and `onclick=`.
"""
