// Refreshes the page: fetches it once a second while visible, and applies the differences in place, so that focus, selection,
// scroll position and open details stay. It adds a field that filters by pod, as the parameter "pod" of the page does.
"use strict";

(() => {
  const every = 1000; // ms from one response to the next request
  const patience = 5000;
  const doubt = 2000; // ms without a response until the page reports an outage
  const made = version(document); // of the current document
  const outage = document.getElementById("outage");
  let timer = 0;
  let asking = false;
  let answered = new Date(); // latest response
  let waiting = 0; // ms since the epoch of the first request without a response; 0: none

  // alike reports whether one node can become the other.
  function alike(node, other) {
    const kind = (n) => n.classList?.[0] ?? "";
    return node.nodeName === other.nodeName && (node.id ?? "") === (other.id ?? "") && kind(node) === kind(other);
  }

  // become changes a node into another, with as few changes as possible.
  function become(node, other) {
    if (node.nodeType === Node.TEXT_NODE) {
      if (node.data !== other.data) node.data = other.data;
    } else if (node.nodeType === Node.ELEMENT_NODE) {
      takeAttributes(node, other);
      takeChildren(node, other);
    }
  }

  // move places a node before another one. The focus stays.
  function move(parent, node, before) {
    const focus = document.activeElement;
    if (parent.moveBefore) parent.moveBefore(node, before);
    else parent.insertBefore(node, before);
    if (focus !== document.activeElement) focus.focus({ preventScroll: true });
  }

  function takeAttributes(node, other) {
    for (const { name } of [...node.attributes]) {
      if (!other.hasAttribute(name) && name !== "open") node.removeAttribute(name);
    }
    for (const { name, value } of [...other.attributes]) {
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
  }

  // takeChildren compares both lists of children in order: it moves those with an id, inserts new ones, and removes those before the
  // next match.
  function takeChildren(node, other) {
    if (node.id === "pod-search") return;
    let at = node.firstChild;
    for (const wanted of [...other.childNodes]) {
      const same = wanted.id && document.getElementById(wanted.id);
      if (same && same !== at && same.parentNode === node && alike(same, wanted)) {
        move(node, same, at);
        become(same, wanted);
        continue;
      }
      let match = at;
      while (match && !alike(match, wanted)) match = wanted.nodeType === Node.ELEMENT_NODE ? match.nextSibling : null;
      if (!match) {
        node.insertBefore(document.adoptNode(wanted), at);
        continue;
      }
      at = removeUntil(at, match).nextSibling;
      become(match, wanted);
    }
    removeUntil(at, null);
  }

  function removeUntil(at, end) {
    while (at !== end) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    return end;
  }

  function say(text) {
    if (outage.textContent !== text) outage.textContent = text;
    document.body.classList.toggle("stale", text !== "");
  }

  // version returns podgauge's version on a page. Another version has another style and script.
  function version(page) {
    return page.querySelector(".version")?.textContent;
  }

  function complain() {
    say(`No response from podgauge since ${answered.toLocaleTimeString()}. The page shows the state at that time.`);
  }

  // addSearch adds the field that filters by pod.
  function addSearch() {
    const place = document.getElementById("pod-search");
    if (!place || place.firstChild) return;
    const label = place.appendChild(document.createElement("label"));
    const field = label.appendChild(document.createElement("input"));
    label.prepend("Pod ");
    field.type = "search";
    field.value = new URLSearchParams(location.search).get("pod") ?? "";
    field.addEventListener("input", () => {
      const query = new URLSearchParams(location.search);
      if (field.value.trim()) query.set("pod", field.value.trim());
      else query.delete("pod");
      history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
      clearTimeout(timer);
      timer = setTimeout(look, 150);
    });
  }

  async function look() {
    if (asking) return;
    if (document.hidden) {
      waiting = 0;
      return;
    }
    asking = true;
    const asked = location.search;
    waiting ||= Date.now();
    const late = setTimeout(complain, Math.max(0, waiting + doubt - Date.now())); // for requests that hang
    try {
      const answer = await fetch(location.pathname + asked, { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(patience) });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (version(page) !== made) {
        location.reload(); // another version of podgauge
        return;
      }
      if (asked === location.search) become(document.getElementById("main"), page.getElementById("main"));
      addSearch();
      answered = new Date();
      waiting = 0;
      say("");
    } catch {
      if (Date.now() - waiting >= doubt) complain();
    } finally {
      asking = false;
      clearTimeout(late);
      clearTimeout(timer);
      timer = setTimeout(look, asked === location.search ? every : 0);
    }
  }

  addSearch();
  document.addEventListener("visibilitychange", look);
  timer = setTimeout(look, every);
})();
