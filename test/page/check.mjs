// Looks at podgauge's page in a real Chromium (docs/page.md). Exits with 1 where something is wrong.
import { existsSync, mkdirSync } from "node:fs";
import { get } from "node:https";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { byKeyboard, close, launch, open, overflow, violations } from "./browser.mjs";
import { start, viewer } from "./podgauge.mjs";
import { serve } from "./states.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
const images = join(root, "docs/img");
// parts are what there is a picture of, of golden pages.
const parts = { mig: ["mig", "#devices"], shared: ["shared", "#devices"], failed: ["incidents", "[aria-labelledby=incidents-title]"] };
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

// picture is what the window shows, or, as long as that is, what is in a part of the page.
async function picture(page, name, part) {
  await page.evaluate(() => scrollTo(0, 0));
  const box = part && await (await page.$(part)).boundingBox(), edge = 12;
  const clip = box && { x: box.x - edge, y: box.y - edge, width: box.width + 2 * edge, height: box.height + 2 * edge };
  await page.screenshot({ path: join(images, `page-${name}.png`), clip, captureBeyondViewport: Boolean(clip) });
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
      focus: document.activeElement.closest("#gpu-0") !== null, announced: globalThis.announced, live: document.querySelectorAll("[aria-live=assertive], [role=alert]").length,
    }));
    const took = now.seen.at - failure.at;
    report(`${page.what}, a GPU fails`, [
      took > within && `it took ${took} ms to be seen`,
      now.seen.device !== failure.device && `${now.seen.device} is shown, and ${failure.device} failed`,
      !/^Unhealthy: /.test(now.seen.headline) && `the headline says ${now.seen.headline}`,
      !now.mine && "the page was loaded anew",
      !now.focus && "the focus is lost",
      !now.open && "what was folded open is folded",
      now.live && "a screen reader is interrupted",
      now.announced && `a screen reader is told ${now.announced} times that nothing has happened`,
    ].filter(Boolean), `seen after ${took} ms, in place`);
    report(`${page.what}, with the failed GPU`, await looks(page), "axe-core, width");
    await page.click("#gpu-0 summary");
    await page.evaluate(() => document.activeElement.blur());
    if (page.what.startsWith("desktop")) await picture(page, page.what.replace("desktop ", "failed-"));
  }
  await Promise.all(pages.map((page) => until(page, () => document.querySelector(".headline.well"), 90000)));
  for (const page of pages) {
    report(page.what, await looks(page), "axe-core, width");
    await page.reload(); // Tab goes on from where the focus was
    report(`${page.what}, keyboard`, await byKeyboard(page));
    await page.evaluate(() => document.activeElement.blur());
    await picture(page, page.what.replace(" ", "-"));
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
    await is("it does not say so", () => /^No answer/.test(document.getElementById("outage").textContent), 4500);
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

// states looks at the golden pages, in all ways.
async function states(browser) {
  const pages = await serve(root, headers);
  try {
    for (const name of pages.names) {
      const faults = [];
      for (const size of ["desktop", "narrow"]) {
        for (const scheme of schemes) {
          const page = await open(browser, pages.url + name, { size, scheme });
          page.what = `${name}, ${size} ${scheme}`;
          faults.push(...[...await looks(page), ...page.faults].map((fault) => `${size} ${scheme}: ${fault}`));
          if (size === "desktop" && scheme === "light" && parts[name]) await picture(page, ...parts[name]);
          await close(page);
        }
      }
      report(name, faults, "axe-core, width, console and network, in four ways");
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
  for (const part of [live, strangers, atRest, withoutScript, outage, anotherVersion, states]) {
    await part(browser, node).catch((error) => report(part.name, [error.message]));
  }
} finally {
  await browser.close();
  await node.stop();
}
console.log(wrong ? `${wrong} wrong` : "all is well");
process.exitCode = wrong ? 1 : 0;
