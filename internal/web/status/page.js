// Keeps the page fresh: it is fetched once a second while somebody looks, and what differs
// is changed in place, so that focus, selection, scroll and what was folded open stay.
"use strict";

(() => {
  const every = 1000; // ms from one answer to the next question
  const patience = 5000;
  const doubt = 2000; // ms without an answer, until that is said
  const made = version(document); // of the page that stands here
  const outage = document.getElementById("outage");
  let timer = 0;
  let asking = false;
  let answered = new Date(); // last
  let waiting = 0; // since when it is asked without an answer, in ms; 0: it is not

  // alike tells whether one node can become the other.
  function alike(node, other) {
    const kind = (n) => n.classList?.[0] ?? "";
    return node.nodeName === other.nodeName && (node.id ?? "") === (other.id ?? "") && kind(node) === kind(other);
  }

  // become has a node be like another, with as few changes as there can be.
  function become(node, other) {
    if (node.nodeType === Node.TEXT_NODE) {
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

  // takeChildren goes through both rows of children: what has come is put in, and what stands
  // before the next one that is still wanted has gone.
  function takeChildren(node, other) {
    let at = node.firstChild;
    for (const wanted of [...other.childNodes]) {
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

  // version tells pages apart that were made for another style or script. What the browser's own
  // extensions put on a page is not looked at.
  function version(page) {
    const of = (tag, name) => page.querySelector(`${tag}[${name}*="static/page."]`)?.getAttribute(name);
    return `${of("link", "href")} ${of("script", "src")}`;
  }

  function complain() {
    say(`podgauge has not answered since ${answered.toLocaleTimeString()}: what is shown is from then.`);
  }

  async function look() {
    if (asking) return;
    if (document.hidden) {
      waiting = 0; // nobody asks
      return;
    }
    asking = true;
    waiting ||= Date.now();
    const late = setTimeout(complain, Math.max(0, waiting + doubt - Date.now())); // also where no answer comes, and no refusal
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(patience) });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (version(page) !== made) {
        location.reload(); // another version of podgauge answers
        return;
      }
      become(document.getElementById("main"), page.getElementById("main"));
      answered = new Date();
      waiting = 0;
      say("");
    } catch {
      if (Date.now() - waiting >= doubt) complain();
    } finally {
      asking = false;
      clearTimeout(late);
      clearTimeout(timer);
      timer = setTimeout(look, every);
    }
  }

  document.addEventListener("visibilitychange", look);
  timer = setTimeout(look, every);
})();
