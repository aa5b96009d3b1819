// Keeps the page fresh: it is fetched once a second while somebody looks, and what differs
// is changed in place, so that focus, selection, scroll and what was folded open stay.
"use strict";

(() => {
  const every = 1000; // ms from one answer to the next question
  const patience = 5000;
  const doubt = 2000; // ms without an answer, until that is said
  const outage = document.getElementById("outage");
  let timer = 0;
  let asking = false;
  let answered = new Date(); // last
  let failing = 0; // since when, in ms; 0: it is not

  // become has one node be like another, with as few changes as there can be.
  function become(node, other) {
    if (node.nodeName !== other.nodeName || node.id !== other.id) {
      node.replaceWith(document.adoptNode(other));
    } else if (node.nodeType === Node.TEXT_NODE) {
      if (node.data !== other.data) node.data = other.data;
    } else if (node.nodeType === Node.ELEMENT_NODE) {
      takeAttributes(node, other);
      takeChildren(node, other);
    }
  }

  function takeAttributes(node, other) {
    for (const { name } of [...node.attributes]) {
      if (!other.hasAttribute(name) && name !== "open") node.removeAttribute(name);
    }
    for (const { name, value } of [...other.attributes]) {
      if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
  }

  // takeChildren keeps a child that has an id, wherever it comes to stand.
  function takeChildren(node, other) {
    let at = node.firstChild;
    for (const wanted of [...other.childNodes]) {
      const kept = wanted.id && at?.id !== wanted.id ? [...node.children].find((c) => c.id === wanted.id) : null;
      if (kept) {
        node.insertBefore(kept, at);
        become(kept, wanted);
      } else if (at && (at.id || "") === (wanted.id || "")) {
        const next = at.nextSibling;
        become(at, wanted);
        at = next;
      } else {
        node.insertBefore(document.adoptNode(wanted), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function say(text) {
    if (outage.textContent !== text) outage.textContent = text;
    document.body.classList.toggle("stale", text !== "");
  }

  async function look() {
    if (asking || document.hidden) return;
    asking = true;
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(patience) });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (page.querySelector("script")?.getAttribute("src") !== document.querySelector("script").getAttribute("src")) {
        location.reload(); // another version of podgauge answers
        return;
      }
      become(document.getElementById("main"), page.getElementById("main"));
      answered = new Date();
      failing = 0;
      say("");
    } catch {
      failing ||= Date.now();
      if (Date.now() - failing >= doubt) say(`podgauge has not answered since ${answered.toLocaleTimeString()}: what is shown is from then.`);
    } finally {
      asking = false;
      clearTimeout(timer);
      timer = setTimeout(look, every);
    }
  }

  document.addEventListener("visibilitychange", look);
  timer = setTimeout(look, every);
})();
