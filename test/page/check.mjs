// Looks at podgauge's page in a real Chromium (docs/reference/page.md). Exits with 1 where something is wrong.
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { get } from "node:https";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { byKeyboard, close, launch, open, overflow, save, violations } from "./browser.mjs";
import { start, viewer } from "./podgauge.mjs";
import { serve } from "./states.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
const images = join(root, "docs/img");
// parts are what there is a picture of, of golden pages.
const parts = { mig_failed: ["mig", "#devices"], replicas: ["replicas", "#devices"], failed: ["incidents", "[aria-labelledby=incidents-title]"] };
const schemes = ["light", "dark"];
const within = 3000; // ms from a device's failure to its being seen
let wrong = 0;

function report(what, faults, good = "") {
  for (const fault of faults) console.log(`WRONG  ${what}: ${fault}`);
  if (faults.length === 0) console.log(`ok     ${what}${good && ": " + good}`);
  wrong += faults.length;
}

function until(page, is, timeout, ...args) {
  return page.waitForFunction(is, { timeout, polling: 50 }, ...args);
}

// picture writes a picture of the beginning of a part of the page.
async function picture(page, name, part) {
  await page.evaluate(() => scrollTo(0, 0));
  const box = await (await page.$(part)).boundingBox(), edge = 12;
  const clip = { x: box.x - edge, y: box.y - edge, width: box.width + 2 * edge, height: Math.min(box.height, 1500) + 2 * edge };
  await save(page, join(images, `page-${name}.png`), clip);
}

// looks says why a page is not one that anybody can read. What axe-core finds, and does not
// call serious, is only told.
async function looks(page) {
  const { grave, lesser } = await violations(page);
  for (const one of lesser) console.log(`       ${page.what}: ${one}`);
  const wider = await overflow(page);
  return wider > 0 ? [...grave, `${wider} pixels wider than the window`] : grave;
}

// live opens the page in all ways, has a GPU fail, and wants all of them to show it.
async function live(browser, node) {
  const pages = [];
  for (const size of ["desktop", "phone"]) {
    for (const scheme of schemes) {
      const page = await open(browser, node.url, { size, scheme, user: viewer });
      page.what = `${size} ${scheme}`;
      await until(page, () => document.querySelectorAll(".gpu").length === 8 && document.querySelectorAll(".pod").length > 2, 20000);
      pages.push(page);
    }
  }
  headers = Object.fromEntries(["content-security-policy", "x-content-type-options", "referrer-policy"]
    .map((name) => [name, pages[0].answer.headers()[name]]));
  for (const page of pages) {
    await page.evaluate(() => {
      globalThis.mine = "not loaded anew";
      const folded = document.querySelector("#gpu-0 summary");
      folded.focus();
      folded.click();
      const look = () => {
        const ill = document.querySelector(".gpu[data-health=unhealthy]");
        if (ill && !globalThis.seen) globalThis.seen = { at: Date.now(), device: ill.dataset.device, headline: document.querySelector(".headline").textContent };
      };
      new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
      globalThis.announced = 0; // to who hears the page, before the failure
      const announce = () => {
        if (!document.querySelector(".gpu[data-health=unhealthy]")) globalThis.announced++;
      };
      for (const status of document.querySelectorAll("[role=status]")) {
        new MutationObserver(announce).observe(status, { subtree: true, childList: true, characterData: true });
      }
    });
  }
  await Promise.all(pages.map((page) => until(page, () => globalThis.seen, 90000)));
  const failure = node.failures[0];
  for (const page of pages) {
    const now = await page.evaluate(() => ({
      seen: globalThis.seen, mine: globalThis.mine, open: document.querySelector("#gpu-0 details").open,
      first: document.querySelector(".gpu").dataset.device, card: document.querySelector(".gpu").textContent, xid: document.querySelector(".gpu .health-reason a").href,
      focus: document.activeElement.closest("#gpu-0") !== null, announced: globalThis.announced, live: document.querySelectorAll("[aria-live=assertive], [role=alert]").length,
    }));
    const took = now.seen.at - failure.at;
    report(`${page.what}, a GPU fails`, [
      took > within && `it took ${took} ms to be seen`,
      now.seen.device !== failure.device && `${now.seen.device} is shown, and ${failure.device} failed`,
      !/^Unhealthy: /.test(now.seen.headline) && `the headline says ${now.seen.headline}`,
      now.first !== failure.device && `${now.first} is first, and ${failure.device} failed`,
      !/Xid \d+: \w.*Last incident.*Affected: /s.test(now.card) && `the failed GPU's card is ${now.card}`,
      /unallocated|free/.test(now.card) && "the failed GPU is called unallocated",
      !now.xid.startsWith("https://docs.nvidia.com/deploy/xid-errors/") && `the Xid leads to ${now.xid}`,
      !now.mine && "the page was loaded anew",
      !now.focus && "the focus is lost",
      !now.open && "what was folded open is folded",
      now.live && "a screen reader is interrupted",
      now.announced && `a screen reader is told ${now.announced} times that nothing has happened`,
    ].filter(Boolean), `seen after ${took} ms, in place`);
    report(`${page.what}, with the failed GPU`, await looks(page), "axe-core, width");
    await page.click("#gpu-0 summary");
    await page.evaluate(() => document.activeElement.blur());
  }
  await Promise.all(pages.map((page) => until(page, () => document.querySelector(".headline.well"), 90000)));
  for (const page of pages) {
    report(page.what, await looks(page), "axe-core, width");
    await page.reload(); // Tab goes on from where the focus was
    report(`${page.what}, keyboard`, await byKeyboard(page));
    await page.evaluate(() => document.activeElement.blur());
    report(`${page.what}, console and network`, page.faults);
    await close(page);
  }
}

// strangers must not see anything.
async function strangers(_, node) {
  for (const path of ["", "metrics", "api/v1/devices", "static/page.css"]) {
    const status = await new Promise((resolve, reject) => {
      get(node.url + path, { rejectUnauthorized: false }, (answer) => resolve(answer.resume().statusCode)).on("error", reject);
    });
    report(`/${path} without a password`, status === 401 ? [] : [`${status}`], "401");
  }
}

// atRest wants nothing to move for who asks for that.
async function atRest(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  const moves = () => page.evaluate(() => [...document.querySelectorAll("*")]
    .filter((e) => parseFloat(getComputedStyle(e).transitionDuration) > 0 || getComputedStyle(e).animationName !== "none").length);
  const usually = await moves();
  await page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]);
  const reduced = await moves();
  report("reduced motion", [usually === 0 && "nothing moves anyway", reduced > 0 && `${reduced} elements move`].filter(Boolean), `${usually} bars that would move do not`);
  await close(page);
}

// filters wants the devices of a state and of a pod only: by links and parameters without script, and as somebody types.
async function filters(browser, node) {
  const faults = [];
  const names = (page) => page.$$eval(".gpu .pod", (pods) => pods.map((pod) => pod.textContent));
  const plain = await open(browser, `${node.url}?state=allocated`, { size: "desktop", scheme: "light", script: false, user: viewer });
  const allocated = await plain.$$eval(".gpu", (gpus) => gpus.length), pods = await names(plain);
  if (allocated === 0 || allocated > 8 || pods.length < allocated) faults.push(`${pods.length} pods on ${allocated} allocated GPUs`);
  const pod = pods[0];
  await Promise.all([plain.waitForNavigation(), plain.click(".gpu .pod")]);
  const linked = await names(plain);
  if (linked.length === 0 || linked.some((name) => name !== pod)) faults.push(`the link of ${pod} leads to ${linked}`);
  faults.push(...plain.faults);
  await close(plain);
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  await page.evaluate(() => { globalThis.mine = true; });
  await page.type("#pod-search input", pod);
  const only = (pod) => [...document.querySelectorAll(".gpu .pod")].every((e) => e.textContent.includes(pod)) && document.querySelector(".gpu .pod") && new URL(location).searchParams.get("pod") === pod;
  await until(page, only, 3000, pod).catch(() => faults.push(`typing ${pod} does not leave its GPUs`));
  await new Promise((resolve) => setTimeout(resolve, 2500)); // two refreshes
  if (!await page.evaluate(only, pod)) faults.push("a refresh ends the filter");
  if (!await page.evaluate(() => globalThis.mine && document.activeElement.matches("#pod-search input"))) faults.push("the field is left");
  faults.push(...await looks(page));
  await page.evaluate(() => { document.activeElement.select(); });
  await page.keyboard.press("Backspace");
  await until(page, () => document.querySelectorAll(".gpu").length === 8 && !location.search, 3000).catch(() => faults.push("an empty field does not show all"));
  report("filters", [...faults, ...page.faults], `${pod} by link and as typed`);
  await close(page);
}

// withoutScript wants the page to have its data, and to come anew.
async function withoutScript(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", script: false, user: viewer });
  const first = await page.$$eval(".gpu", (gpus) => gpus.length);
  const again = await new Promise((resolve) => {
    const late = setTimeout(() => resolve(false), 10000);
    page.once("load", () => {
      clearTimeout(late);
      resolve(true);
    });
  });
  report("without script", [first !== 8 && `${first} GPUs`, !again && "it does not come anew", ...page.faults].filter(Boolean), "8 GPUs, and it comes anew");
  await close(page);
}

// columns wants four GPUs beside each other where there is room, each with lines of the past.
async function columns(browser, node) {
  const page = await open(browser, node.url, { size: "wide", scheme: "light", user: viewer });
  const { inRow, lines, cards } = await page.evaluate(() => {
    const gpus = [...document.querySelectorAll(".gpu")], top = (gpu) => gpu.getBoundingClientRect().top;
    return { inRow: gpus.filter((gpu) => top(gpu) === top(gpus[0])).length, lines: document.querySelectorAll(".gpu .past path").length, cards: gpus.length };
  });
  const faults = [inRow !== 4 && `${inRow} GPUs in a row`, cards !== 8 && `${cards} GPUs`, lines < 3 * cards - 3 && `${lines} lines`].filter(Boolean);
  report("a wide window", [...faults, ...await looks(page), ...page.faults], `four columns, ${lines} lines`);
  await close(page);
}

// outages are ways to get no answer: each returns how it ends.
const outages = {
  refused: async (page) => {
    await page.setOfflineMode(true);
    return () => page.setOfflineMode(false);
  },
  silent: async (page) => {
    const asked = [];
    let silent = true;
    page.on("request", (request) => silent ? asked.push(request) : request.continue());
    await page.setRequestInterception(true);
    return async () => {
      silent = false;
      await Promise.all(asked.map((request) => request.abort().catch(() => {}))); // or the page has given it up
    };
  },
};

// outage wants a page that gets no answer to say so, and to say when it gets one again.
async function outage(browser, node) {
  for (const [how, begin] of Object.entries(outages)) {
    const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
    const faults = [];
    const is = async (what, test, within) => until(page, test, within).catch(() => faults.push(what));
    const end = await begin(page);
    await is("it does not say so", () => /^No response/.test(document.getElementById("outage").textContent), 4500);
    await end();
    await is("it does not say that it is over", () => document.getElementById("outage").textContent === "", 15000);
    report(`without an answer, ${how}`, faults, "the page says so, and when it is over");
    await close(page);
  }
}

// anotherVersion wants a page of another version to be loaded anew, with its style.
async function anotherVersion(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  const other = (text) => text.replace(/class="brand">/, '$&<span class="version">another</span>');
  await page.evaluate(() => { globalThis.mine = true; });
  const real = await page.evaluate(() => document.documentElement.outerHTML);
  let asked = 0;
  page.on("request", (request) => {
    if (request.resourceType() !== "fetch" || asked++ > 0) return request.continue();
    return request.respond({ contentType: "text/html; charset=utf-8", body: "<!DOCTYPE html>" + other(real) });
  });
  await page.setRequestInterception(true);
  const anew = await until(page, () => !globalThis.mine && document.querySelectorAll(".gpu").length === 8, 10000).catch(() => null);
  report("another version", anew ? [] : ["the page keeps the old one"], "the page is loaded anew");
  await close(page);
}

// order wants the GPUs that fail to move to the front as they are: with the focus, and with what is folded open.
async function order(browser) {
  const pages = await serve(root, headers);
  const failed = readFileSync(join(root, "internal/web/status/testdata/failed.html"), "utf8"), faults = [];
  try {
    for (const focus of ["gpu-2", "gpu-0"]) { // one that moves, one that stays
      const page = await open(browser, pages.url + "h100", { size: "desktop", scheme: "light" });
      await page.evaluate((id) => {
        globalThis.before = [...document.querySelectorAll(".gpu")];
        for (const gpu of ["gpu-4", "gpu-7", id]) document.querySelector(`#${gpu} summary`).click();
        document.querySelector(`#${id} summary`).focus();
      }, focus);
      page.on("request", (request) => request.resourceType() === "fetch"
        ? request.respond({ contentType: "text/html; charset=utf-8", body: failed }) : request.continue());
      await page.setRequestInterception(true);
      await until(page, () => document.querySelector(".headline.bad"), 5000).catch(() => faults.push("the failure is not shown"));
      const now = await page.evaluate(() => ({
        order: [...document.querySelectorAll(".gpu")].map((gpu) => gpu.id).join(" "), kept: globalThis.before.every((gpu) => gpu.isConnected),
        focus: document.activeElement.closest(".gpu")?.id, open: [...document.querySelectorAll(".gpu details[open]")].map((d) => d.closest(".gpu").id).sort().join(" "),
      }));
      const unfolded = [...new Set(["gpu-4", "gpu-7", focus])].sort().join(" ");
      faults.push(...[
        now.order !== "gpu-2 gpu-7 gpu-6 gpu-5 gpu-0 gpu-1 gpu-3 gpu-4" && `the order is ${now.order}`,
        !now.kept && "GPUs are made anew",
        now.focus !== focus && `the focus of ${focus} is on ${now.focus}`,
        now.open !== unfolded && `${now.open} are open, and ${unfolded} were`,
        ...page.faults,
      ].filter(Boolean));
      await close(page);
    }
  } finally {
    await pages.stop();
  }
  report("unhealthy first", faults, "GPUs move, with focus and open details");
}

// states looks at the golden pages, in all ways.
async function states(browser) {
  const pages = await serve(root, headers);
  try {
    for (const name of pages.names) {
      const faults = [];
      for (const size of ["desktop", "narrow", "wide"]) {
        for (const scheme of schemes) {
          const page = await open(browser, pages.url + name, { size, scheme });
          page.what = `${name}, ${size} ${scheme}`;
          faults.push(...[...await looks(page), ...page.faults].map((fault) => `${size} ${scheme}: ${fault}`));
          if (size === "desktop" && scheme === "light" && parts[name]) await picture(page, ...parts[name]);
          await close(page);
        }
      }
      report(name, faults, "axe-core, width, console and network, in six ways");
    }
  } finally {
    await pages.stop();
  }
}

if (!existsSync(images)) mkdirSync(images, { recursive: true });
const node = await start(join(root, "bin/podgauge-sim"));
const browser = await launch();
let headers = {}; // of podgauge's own page
try {
  console.log(`${await browser.version()}, ${node.url.replace(/:\d+\/$/, "")}`);
  for (const part of [live, strangers, atRest, filters, columns, withoutScript, outage, anotherVersion, order, states]) {
    await part(browser, node).catch((error) => report(part.name, [error.message]));
  }
} finally {
  await browser.close();
  await node.stop();
}
console.log(wrong ? `${wrong} wrong` : "all is well");
process.exitCode = wrong ? 1 : 0;
