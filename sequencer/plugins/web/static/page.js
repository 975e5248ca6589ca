"use strict";
// Live parts, ages, keys and logs. Everything can be read, and every button works, without it.
(() => {
  const body = document.body, address = body.dataset.at;
  if (address === undefined) return;

  // --- ages: "12 min ago" instead of a date, which stays as the tooltip
  const ages = () => {
    for (const time of document.querySelectorAll("time")) {
      const at = Date.parse(time.dateTime);
      if (!time.title) time.title = new Date(at).toLocaleString();
      const ago = Math.round((Date.now() - at) / 1000), s = Math.abs(ago);
      const span = s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + " min"
        : s < 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
      const text = ago < 0 && "due" in time.dataset ? "in " + span : ago < 0 ? "0 s ago" : span + " ago";
      if (time.textContent !== text) time.textContent = text;
    }
  };
  ages();
  setInterval(() => { if (!document.hidden) ages(); }, 1000);

  // --- parts: swapped when they change, but never while a person writes
  const waiting = new Map(), shown = new Map();
  const isBusy = (part) => {
    const here = document.activeElement;
    return part.querySelector(":active") || part.contains(here) && here.matches("textarea, input, select")
      || [...part.querySelectorAll("textarea, input:not([type=hidden]):not([type=search])")].some((f) => f.value !== f.defaultValue);
  };
  // What a link or a button leads to: the focus never passes to one that decides something else.
  const does = (one) => one.getAttribute("href") || one.textContent
    + (one.form ? one.value + one.form.action + new URLSearchParams(new FormData(one.form)) : "");
  const alike = (part, deed) => [...part.querySelectorAll("a, button, summary")].filter((one) => does(one) === deed);
  const swap = (name, html) => {
    const part = document.getElementById("part-" + name);
    if (!part) return location.reload();
    if (isBusy(part)) return void waiting.set(name, html);
    waiting.delete(name);
    const open = [...part.querySelectorAll("details")].map((d) => d.open);
    const scrolls = [...part.querySelectorAll(".scroll, .log")].map((e) => [e.scrollLeft, e.scrollTop]);
    const here = document.activeElement, deed = part.contains(here) && does(here), nth = deed && alike(part, deed).indexOf(here);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((d, n) => { d.open = open[n] || false; });
    part.querySelectorAll(".scroll, .log").forEach((e, n) => { if (scrolls[n]) [e.scrollLeft, e.scrollTop] = scrolls[n]; });
    if (deed) alike(part, deed)[nth]?.focus({ preventScroll: true });
    if (part.querySelector("[data-follow]")) follow(true);
  };
  for (const ended of ["focusout", "pointerup", "pointercancel", "keyup"])
    document.addEventListener(ended, () => setTimeout(() => { for (const [n, h] of [...waiting]) swap(n, h); }, 200));
  const lost = document.getElementById("lost");
  const changed = (event) => {
    const parts = JSON.parse(event.data);
    body.dataset.id = event.lastEventId;
    for (const name in parts) {
      // A log grows by itself; its part is drawn again only when another attempt is shown.
      const log = name === "log" && document.querySelector("#part-log [data-follow]");
      if (log && parts[name].includes('data-follow="' + log.dataset.follow + '"')) continue;
      if (shown.get(name) !== parts[name]) swap(name, parts[name]);
      shown.set(name, parts[name]);
    }
    ages();
  };

  // --- logs: what is written appears below; the reader's place moves only at the end
  const MOST_LINES = 2000;
  let stream = null, following = null;
  const follow = (isNew) => {
    if (following) following.close();
    const log = document.querySelector("[data-follow]");
    if (!log) return;
    // A log's own page is a numbered list, and the window scrolls; elsewhere it is a box.
    const isList = log.tagName === "OL", box = isList ? document.scrollingElement : log;
    if (isNew && !isList) box.scrollTop = box.scrollHeight;
    const pieces = [...(isList ? log.children : log.childNodes)].map((node) => [node, isList ? 1 : node.textContent.split("\n").length]);
    let lines = pieces.reduce((sum, piece) => sum + piece[1], 0);
    const add = (node, count) => { log.append(node); pieces.push([node, count]); lines += count; };
    const addLines = (text) => {
      const parts = text.split("\n");
      if ("open" in log.dataset) log.lastElementChild.append(parts.shift());
      delete log.dataset.open;
      if (parts.length && parts[parts.length - 1] === "") parts.pop();
      else log.dataset.open = "";
      for (const part of parts) {
        const line = document.createElement("li");
        line.textContent = part;
        add(line, 1);
      }
    };
    following = new EventSource(log.dataset.follow + "?from=" + log.dataset.from);
    following.addEventListener("lines", (event) => {
      log.dataset.from = event.lastEventId;
      const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
      const text = JSON.parse(event.data);
      if (isList) addLines(text);
      else add(document.createTextNode(text), text.split("\n").length);
      if (isAtEnd) {
        // Earlier lines are on the log's own page, or on the page before.
        while (lines > MOST_LINES && pieces.length > 1) {
          const [old, count] = pieces.shift();
          old.remove();
          lines -= count;
          if (isList) log.start += 1;
        }
        box.scrollTop = box.scrollHeight;
      }
    });
  };

  // --- streams: a browser has six connections to a server, so a hidden page has none
  const open = (isNew) => {
    if (stream) return;
    stream = new EventSource("/live?at=" + encodeURIComponent(address) + "&id=" + body.dataset.id);
    stream.addEventListener("parts", changed);
    stream.onopen = () => { lost.hidden = true; };
    stream.onerror = () => { lost.hidden = false; };
    follow(isNew);
  };
  const close = () => {
    for (const one of [stream, following]) if (one) one.close();
    stream = following = null;
  };
  if (!document.hidden) open(true);
  let leaving = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(close, 3000);
    else open(false);
  });

  // --- graphs: one that does not fit is shown where something moves, or what was asked for
  for (const box of document.querySelectorAll(".p-graph .scroll")) {
    const asked = document.getElementById("n-" + new URLSearchParams(location.search).get("at"));
    const node = [asked, ...["waiting", "failed", "running", "retrying", "ready"]
      .map((state) => box.querySelector(".node." + state))].find(Boolean);
    if (!node) continue;
    const at = node.getBoundingClientRect(), here = box.getBoundingClientRect();
    box.scrollLeft += at.left + at.width / 2 - here.left - here.width / 2;
    box.scrollTop += at.top + at.height / 2 - here.top - here.height / 2;
  }

  // --- keys: none while a person writes, none that decides anything
  let isGoing = false;
  const rows = () => [...document.querySelectorAll("main a.go")].filter((a) => a.offsetParent);
  const move = (by) => {
    const all = rows(), at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select")) return;
    const pages = { n: "/", r: "/runs", c: "/costs", h: "/health" };
    if (isGoing) {
      isGoing = false;
      if (pages[event.key]) location.href = pages[event.key];
      return;
    }
    const up = document.querySelector("[data-up]"), search = document.querySelector("input[type=search]");
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "g") isGoing = true;
    else if (event.key === "u" && up) location.href = up.href;
    else if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
    else if (event.key === "?") document.getElementById("keys").showModal();
  });

  // --- commands: a click copies
  document.addEventListener("click", (event) => {
    const code = event.target.closest("code.copy");
    if (!code || !navigator.clipboard) return;
    event.preventDefault();  // one that stands in a summary opens nothing
    navigator.clipboard.writeText(code.textContent).then(() => {
      code.classList.add("copied");
      setTimeout(() => code.classList.remove("copied"), 1200);
    });
  });
})();
