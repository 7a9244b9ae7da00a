// Keeps a page live. Without it every page works by links and forms.
//
// One tab of the browser, the leader (Web Locks), reads /events; the others hear of it through a
// BroadcastChannel, since a browser opens six connections to a server at most. An element with
// data-live is replaced by its data-fragment when one of the names that it shows moves.
"use strict";
(() => {
  const LOST_MS = 1500; // without an answer until the page says so
  const RETRY_MS = 500;
  const REFRESH_MS = 75; // between two fetches of one element
  const AGES = [[86400e3, "d"], [3600e3, "h"], [60e3, "min"], [1e3, "s"]];
  const banner = document.getElementById("connection");
  const noDaemon = document.getElementById("no-daemon");
  const channel = new BroadcastChannel("casfs");
  let seq = Number(document.body.dataset.seq);
  let leading = false;
  let stale = false; // a fragment could not be fetched

  // -- fragments ---------------------------------------------------------------------------

  const states = new WeakMap(); // element -> {busy, again, at}

  function shows(element, name) {
    return element.dataset.live.split(" ").some(
      (one) => one === name || (one.endsWith("/") && name.startsWith(one)));
  }

  function changed(names) {
    for (const element of document.querySelectorAll("[data-live]")) {
      if (names === null || names.some((name) => shows(element, name))) refresh(element);
    }
  }

  // `fresh`: not what another viewer was given after the same move.
  async function refresh(element, fresh = false) {
    const state = states.get(element) ?? { busy: false, again: false, at: 0 };
    states.set(element, state);
    if (state.busy) { state.again = true; return; }
    state.busy = true;
    const wait = state.at + REFRESH_MS - performance.now();
    if (wait > 0) await new Promise((done) => setTimeout(done, wait));
    state.again = false;
    state.at = performance.now();
    let now = element;
    try {
      const headers = { Accept: "text/html", ...(fresh ? {} : { "Casfs-Seq": seq }) };
      const answer = await fetch(element.dataset.fragment, { headers });
      if (answer.ok) now = replace(element, await answer.text());
    } catch {
      stale = true; // the server is away: the connection's return refreshes all
      state.busy = false;
      return;
    }
    state.busy = false;
    states.set(now, state);
    if (state.again && now.isConnected) refresh(now);
  }

  function replace(element, html) {
    const parsed = new DOMParser().parseFromString(html, "text/html");
    const fresh = parsed.getElementById(element.id);
    if (!fresh || !element.isConnected) return element;
    if (fresh.isEqualNode(element)) return element;
    document.adoptNode(fresh);
    keep(element, fresh);
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const place = focused && "selectionStart" in focused && focused.selectionStart !== null
      ? [focused.selectionStart, focused.selectionEnd] : null;
    const scrolled = [...element.querySelectorAll("[id]")]
      .filter((one) => one.scrollTop || one.scrollLeft)
      .map((one) => [one.id, one.scrollTop, one.scrollLeft]);
    const [x, y] = [scrollX, scrollY];
    element.replaceWith(fresh);
    for (const [id, top, left] of scrolled) document.getElementById(id)?.scrollTo(left, top);
    scrollTo(x, y);
    if (focused) focusAgain(focused, fresh, place);
    document.dispatchEvent(new CustomEvent("casfs:replaced", { detail: fresh }));
    return fresh;
  }

  // What a person did to the old element stays: open parts and what was typed, by id.
  function keep(old, fresh) {
    const find = (one) => fresh.querySelector(`#${CSS.escape(one.id)}`);
    for (const one of old.querySelectorAll("details[id]")) {
      const other = find(one);
      if (!other) continue;
      other.open = one.open;
      if ("loaded" in one.dataset && other.dataset.part === one.dataset.part) {
        other.dataset.loaded = "";
        other.append(one.lastElementChild);
      }
    }
    for (const one of old.querySelectorAll("input[id], textarea[id], select[id]")) {
      const other = find(one);
      if (!other) continue;
      if (one.type === "checkbox" || one.type === "radio") other.checked = one.checked;
      else if (one.value !== one.defaultValue) other.value = one.value;
    }
  }

  function focusAgain(focused, fresh, place) {
    let target = focused.id ? document.getElementById(focused.id) : null;
    if (!target) {
      const holder = focused.parentElement.closest("[id]");
      const inside = holder && document.getElementById(holder.id);
      target = [...(inside ?? fresh).querySelectorAll(focused.tagName)]
        .find((one) => one.textContent === focused.textContent) ?? null;
    }
    target?.focus({ preventScroll: true });
    if (target && place) target.setSelectionRange(...place);
  }

  const fetching = new Set();

  // What never changes is fetched when its details are unfolded for the first time.
  async function unfold({ target }) {
    const part = target.dataset.part;
    if (!target.open || !part || "loaded" in target.dataset || fetching.has(part)) return;
    fetching.add(part);
    try {
      const answer = await fetch(part);
      if (!answer.ok) throw new Error(answer.statusText);
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      // The page may have replaced it meanwhile.
      const now = (target.id && document.getElementById(target.id)) || target;
      if (now.dataset.part !== part || "loaded" in now.dataset) return;
      now.append(document.adoptNode(parsed.body.firstElementChild));
      now.dataset.loaded = "";
    } catch {
      // It is fetched again when it is unfolded again.
    } finally {
      fetching.delete(part);
    }
  }
  document.addEventListener("toggle", unfold, true);

  // -- events ------------------------------------------------------------------------------

  function hear(message) {
    if (message.kind === "hello") {
      if (leading) channel.postMessage({ kind: "at", seq });
    } else if (message.kind === "lost") {
      banner.hidden = false;
    } else {
      if (message.daemon !== undefined) noDaemon.hidden = message.daemon;
      const away = stale || !banner.hidden;
      stale = false;
      banner.hidden = true;
      if (message.seq === undefined) return;
      const missed = message.kind === "at" && message.seq !== seq;
      seq = message.seq;
      if (message.kind === "moved") changed(message.names);
      if (message.kind === "reload" || missed || away) changed(null);
    }
  }

  function tell(message) {
    channel.postMessage(message);
    hear(message);
  }

  // The leader's stream. It resumes after the last number by itself, so a restart loses nothing.
  function follow() {
    const source = new EventSource(`/events?after=${seq}`);
    let timer = setTimeout(lost, LOST_MS);
    let failed = false;
    function lost() { tell({ kind: "lost" }); }
    source.onopen = () => {
      clearTimeout(timer);
      tell({ kind: "open", seq });
    };
    source.onmessage = (event) => {
      tell({ kind: "moved", seq: Number(event.lastEventId), ...JSON.parse(event.data) });
    };
    source.addEventListener("reload", (event) => {
      tell({ kind: "reload", seq: Number(event.lastEventId), ...JSON.parse(event.data) });
    });
    source.onerror = () => {
      if (failed) return;
      failed = true;
      source.close();
      clearTimeout(timer);
      timer = setTimeout(lost, LOST_MS - RETRY_MS);
      setTimeout(() => retry(timer), RETRY_MS);
    };
  }

  // EventSource alone waits for seconds, and for ever after an error page.
  async function retry(timer) {
    try {
      const answer = await fetch("/events?probe", { method: "HEAD", cache: "no-store" });
      if (answer.status === 403) { location.reload(); return; }
      clearTimeout(timer);
      follow();
    } catch {
      setTimeout(() => retry(timer), RETRY_MS);
    }
  }

  channel.onmessage = (event) => hear(event.data);
  channel.postMessage({ kind: "hello" });
  navigator.locks.request("casfs-events", () => {
    leading = true;
    follow();
    return new Promise(() => {}); // until the tab is closed
  });

  // -- ages --------------------------------------------------------------------------------

  function ages() {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const past = Math.max(Date.now() - Date.parse(time.dateTime), 0);
      const unit = AGES.find(([size]) => past >= size);
      const text = unit ? `${Math.floor(past / unit[0])}${unit[1]}` : "now";
      if (time.textContent !== text) time.textContent = text;
    }
  }
  setInterval(ages, 1000);

  // What a program prints moves no head: such a part is fetched every so many seconds as well.
  let second = 0;
  setInterval(() => {
    second += 1;
    for (const element of document.querySelectorAll("[data-every]")) {
      if (!document.hidden && second % Number(element.dataset.every) === 0) refresh(element, true);
    }
  }, 1000);
})();
