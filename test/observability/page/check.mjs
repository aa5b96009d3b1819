// Checks podgauge's page in a real Chromium (docs/reference/page.md). Exits with 1 if a check fails.
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { get } from "node:https";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { close, keyboardFaults, launch, open, overflow, save, violations } from "./browser.mjs";
import { start, viewer } from "./podgauge.mjs";
import { serve } from "./states.mjs";

const root = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const images = join(root, "docs/img");
// parts are the pictures of golden pages: name and selector.
const parts = { mig_failed: ["mig", "#devices"], shared: ["replicas", "#devices"], failed: ["incidents", "[aria-labelledby=incidents-title]"] };
const schemes = ["light", "dark"];
const maxDelay = 3000; // ms between a device's failure and its display
let faultCount = 0;

function report(check, faults, details = "") {
  for (const fault of faults) console.log(`FAIL   ${check}: ${fault}`);
  if (faults.length === 0) console.log(`ok     ${check}${details && ": " + details}`);
  faultCount += faults.length;
}

function until(page, condition, timeout, ...args) {
  return page.waitForFunction(condition, { timeout, polling: 50 }, ...args);
}

// picture writes a picture of the top of a part of the page.
async function picture(page, name, part) {
  await page.evaluate(() => scrollTo(0, 0));
  const box = await (await page.$(part)).boundingBox(), edge = 12;
  const clip = { x: box.x - edge, y: box.y - edge, width: box.width + 2 * edge, height: Math.min(box.height, 1500) + 2 * edge };
  await save(page, join(images, `page-${name}.png`), clip);
}

// layoutFaults returns serious violations of axe-core and an overflow of the page, and logs minor violations.
async function layoutFaults(page) {
  const { serious, minor } = await violations(page);
  for (const violation of minor) console.log(`       ${page.what}: ${violation}`);
  const wider = await overflow(page);
  return wider > 0 ? [...serious, `${wider} pixels wider than the window`] : serious;
}

// failure checks that all variants of the page show a GPU failure.
async function failure(browser, node) {
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
    .map((name) => [name, pages[0].response.headers()[name]]));
  for (const page of pages) {
    await page.evaluate(() => {
      globalThis.notReloaded = true;
      const summary = document.querySelector("#gpu-0 summary");
      summary.focus();
      summary.click();
      const check = () => {
        const unhealthy = document.querySelector(".gpu[data-health=unhealthy]");
        if (unhealthy && !globalThis.seen) globalThis.seen = { at: Date.now(), device: unhealthy.dataset.device, headline: document.querySelector(".headline").textContent };
      };
      new MutationObserver(check).observe(document, { subtree: true, childList: true, attributes: true });
      globalThis.announced = 0; // to screen readers, before the failure
      const announce = () => {
        if (!document.querySelector(".gpu[data-health=unhealthy]")) globalThis.announced++;
      };
      for (const status of document.querySelectorAll("[role=status]")) {
        new MutationObserver(announce).observe(status, { subtree: true, childList: true, characterData: true });
      }
    });
  }
  await Promise.all(pages.map((page) => until(page, () => globalThis.seen, 90000)));
  const failed = node.failures[0];
  for (const page of pages) {
    const now = await page.evaluate(() => ({
      seen: globalThis.seen, notReloaded: globalThis.notReloaded, open: document.querySelector("#gpu-0 details").open,
      first: document.querySelector(".gpu").dataset.device, text: document.querySelector(".gpu").textContent, xid: document.querySelector(".gpu .health-reason a").href,
      focus: document.activeElement.closest("#gpu-0") !== null, announced: globalThis.announced, live: document.querySelectorAll("[aria-live=assertive], [role=alert]").length,
    }));
    const delay = now.seen.at - failed.at;
    report(`${page.what}, GPU failure`, [
      delay > maxDelay && `shown after ${delay} ms, want at most ${maxDelay} ms`,
      now.seen.device !== failed.device && `unhealthy device: got ${now.seen.device}, want ${failed.device}`,
      !/^Unhealthy: /.test(now.seen.headline) && `headline: got ${now.seen.headline}, want Unhealthy`,
      now.first !== failed.device && `first device: got ${now.first}, want ${failed.device}`,
      !/Xid \d+: \w.*Last incident.*Affected: /s.test(now.text) && `text of the failed GPU: got ${now.text}, want Xid, last incident and affected containers`,
      /unallocated|free/.test(now.text) && "the failed GPU is shown as unallocated",
      !now.xid.startsWith("https://docs.nvidia.com/deploy/xid-errors/") && `link of the Xid: got ${now.xid}`,
      !now.notReloaded && "the page was reloaded",
      !now.focus && "the focus is lost",
      !now.open && "the open details are closed",
      now.live && "the page interrupts a screen reader",
      now.announced && `${now.announced} announcements to screen readers before the failure`,
    ].filter(Boolean), `shown after ${delay} ms, in place`);
    report(`${page.what}, with the failed GPU`, await layoutFaults(page), "axe-core, width");
    await page.click("#gpu-0 summary");
    await page.evaluate(() => document.activeElement.blur());
  }
  await Promise.all(pages.map((page) => until(page, () => document.querySelector(".headline.well"), 90000)));
  for (const page of pages) {
    report(page.what, await layoutFaults(page), "axe-core, width");
    await page.reload(); // otherwise Tab continues from the last focus
    report(`${page.what}, keyboard`, await keyboardFaults(page));
    await page.evaluate(() => document.activeElement.blur());
    report(`${page.what}, console and network`, page.faults);
    await close(page);
  }
}

// unauthorized checks that all paths require the password.
async function unauthorized(_, node) {
  for (const path of ["", "metrics", "api/v1/devices", "static/page.css"]) {
    const status = await new Promise((resolve, reject) => {
      get(node.url + path, { rejectUnauthorized: false }, (response) => resolve(response.resume().statusCode)).on("error", reject);
    });
    report(`/${path} without a password`, status === 401 ? [] : [`status: got ${status}, want 401`], "401");
  }
}

// reducedMotion checks that no element moves with prefers-reduced-motion.
async function reducedMotion(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  const countMoving = () => page.evaluate(() => [...document.querySelectorAll("*")]
    .filter((e) => parseFloat(getComputedStyle(e).transitionDuration) > 0 || getComputedStyle(e).animationName !== "none").length);
  const moving = await countMoving();
  await page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]);
  const reduced = await countMoving();
  report("reduced motion", [moving === 0 && "no moving elements without the preference", reduced > 0 && `${reduced} elements move`].filter(Boolean), `${moving} moving bars, none with the preference`);
  await close(page);
}

// filters checks the filters by state and pod: by links and parameters without script, and while typing.
async function filters(browser, node) {
  const faults = [];
  const names = (page) => page.$$eval(".gpu .pod", (pods) => pods.map((pod) => pod.textContent));
  const plain = await open(browser, `${node.url}?state=allocated`, { size: "desktop", scheme: "light", script: false, user: viewer });
  const [allocated, pods] = await plain.evaluate(() => // at once: the page reloads
    [document.querySelectorAll(".gpu").length, [...document.querySelectorAll(".gpu .pod")].map((pod) => pod.textContent)]);
  if (allocated === 0 || allocated > 8 || pods.length < allocated) faults.push(`got ${pods.length} pods on ${allocated} allocated GPUs`);
  const pod = pods[0];
  await Promise.all([plain.waitForNavigation(), plain.click(".gpu .pod")]);
  const linked = await names(plain);
  if (linked.length === 0 || linked.some((name) => name !== pod)) faults.push(`link of ${pod}: got pods ${linked}`);
  faults.push(...plain.faults);
  await close(plain);
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  await page.evaluate(() => { globalThis.notReloaded = true; });
  await page.type("#pod-search input", pod);
  const only = (pod) => [...document.querySelectorAll(".gpu .pod")].every((e) => e.textContent.includes(pod)) && document.querySelector(".gpu .pod") && new URL(location).searchParams.get("pod") === pod;
  await until(page, only, 3000, pod).catch(() => faults.push(`typing ${pod} does not select its GPUs`));
  await new Promise((resolve) => setTimeout(resolve, 2500)); // two refreshes
  if (!await page.evaluate(only, pod)) faults.push("a refresh ends the filter");
  if (!await page.evaluate(() => globalThis.notReloaded && document.activeElement.matches("#pod-search input"))) faults.push("the field loses the focus");
  faults.push(...await layoutFaults(page));
  await page.evaluate(() => { document.activeElement.select(); });
  await page.keyboard.press("Backspace");
  await until(page, () => document.querySelectorAll(".gpu").length === 8 && !location.search, 3000).catch(() => faults.push("an empty field does not show all GPUs"));
  report("filters", [...faults, ...page.faults], `${pod} by link and as typed`);
  await close(page);
}

// withoutScript checks that the page has its data and reloads without script.
async function withoutScript(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", script: false, user: viewer });
  const first = await page.$$eval(".gpu", (gpus) => gpus.length);
  const reloaded = await new Promise((resolve) => {
    const timeout = setTimeout(() => resolve(false), 10000);
    page.once("load", () => {
      clearTimeout(timeout);
      resolve(true);
    });
  });
  report("without script", [first !== 8 && `got ${first} GPUs, want 8`, !reloaded && "no reload within 10 s", ...page.faults].filter(Boolean), "8 GPUs, and a reload");
  await close(page);
}

// columns checks that a wide window has four GPUs in a row, each with history lines.
async function columns(browser, node) {
  const page = await open(browser, node.url, { size: "wide", scheme: "light", user: viewer });
  const { inRow, lines, gpuCount } = await page.evaluate(() => {
    const gpus = [...document.querySelectorAll(".gpu")], top = (gpu) => gpu.getBoundingClientRect().top;
    return { inRow: gpus.filter((gpu) => top(gpu) === top(gpus[0])).length, lines: document.querySelectorAll(".gpu .past path").length, gpuCount: gpus.length };
  });
  const faults = [inRow !== 4 && `got ${inRow} GPUs in a row, want 4`, gpuCount !== 8 && `got ${gpuCount} GPUs, want 8`, lines < 3 * gpuCount - 3 && `got ${lines} history lines`].filter(Boolean);
  report("a wide window", [...faults, ...await layoutFaults(page), ...page.faults], `four columns, ${lines} history lines`);
  await close(page);
}

// outages interrupt the responses; each returns a function that ends the outage.
const outages = {
  offline: async (page) => {
    await page.setOfflineMode(true);
    return () => page.setOfflineMode(false);
  },
  silent: async (page) => {
    const pending = [];
    let silent = true;
    page.on("request", (request) => silent ? pending.push(request) : request.continue());
    await page.setRequestInterception(true);
    return async () => {
      silent = false;
      await Promise.all(pending.map((request) => request.abort().catch(() => {}))); // the page may have aborted the request
    };
  },
};

// outage checks that a page without responses shows the outage, and its end.
async function outage(browser, node) {
  for (const [kind, begin] of Object.entries(outages)) {
    const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
    const faults = [];
    const check = async (fault, condition, timeout) => until(page, condition, timeout).catch(() => faults.push(fault));
    const end = await begin(page);
    await check("the page does not show the outage", () => /^No response/.test(document.getElementById("outage").textContent), 4500);
    await end();
    await check("the page does not show the end of the outage", () => document.getElementById("outage").textContent === "", 15000);
    report(`outage, ${kind}`, faults, "the page shows the outage and its end");
    await close(page);
  }
}

// anotherVersion checks that the page reloads for another version, with its style.
async function anotherVersion(browser, node) {
  const page = await open(browser, node.url, { size: "desktop", scheme: "light", user: viewer });
  const other = (text) => text.replace(/class="brand">/, '$&<span class="version">another</span>');
  await page.evaluate(() => { globalThis.notReloaded = true; });
  const real = await page.evaluate(() => document.documentElement.outerHTML);
  let fetches = 0;
  page.on("request", (request) => {
    if (request.resourceType() !== "fetch" || fetches++ > 0) return request.continue();
    return request.respond({ contentType: "text/html; charset=utf-8", body: "<!DOCTYPE html>" + other(real) });
  });
  await page.setRequestInterception(true);
  const reloaded = await until(page, () => !globalThis.notReloaded && document.querySelectorAll(".gpu").length === 8, 10000).catch(() => null);
  report("another version", reloaded ? [] : ["the page does not reload"], "the page reloads");
  await close(page);
}

// order checks that failed GPUs move to the front, with the focus and open details.
async function order(browser) {
  const pages = await serve(root, headers);
  const failed = readFileSync(join(root, "internal/web/status/testdata/failed.html"), "utf8"), faults = [];
  try {
    for (const focus of ["gpu-2", "gpu-0"]) { // a GPU that moves, and a GPU that does not
      const page = await open(browser, pages.url + "h100", { size: "desktop", scheme: "light" });
      await page.evaluate((id) => {
        globalThis.before = [...document.querySelectorAll(".gpu")];
        for (const gpu of ["gpu-4", "gpu-7", id]) document.querySelector(`#${gpu} summary`).click();
        document.querySelector(`#${id} summary`).focus();
      }, focus);
      page.on("request", (request) => request.resourceType() === "fetch"
        ? request.respond({ contentType: "text/html; charset=utf-8", body: failed }) : request.continue());
      await page.setRequestInterception(true);
      await until(page, () => document.querySelector(".headline.bad"), 5000).catch(() => faults.push("the page does not show the failure"));
      const now = await page.evaluate(() => ({
        order: [...document.querySelectorAll(".gpu")].map((gpu) => gpu.id).join(" "), kept: globalThis.before.every((gpu) => gpu.isConnected),
        focus: document.activeElement.closest(".gpu")?.id, open: [...document.querySelectorAll(".gpu details[open]")].map((d) => d.closest(".gpu").id).sort().join(" "),
      }));
      const opened = [...new Set(["gpu-4", "gpu-7", focus])].sort().join(" ");
      faults.push(...[
        now.order !== "gpu-2 gpu-7 gpu-6 gpu-5 gpu-0 gpu-1 gpu-3 gpu-4" && `order: got ${now.order}`,
        !now.kept && "elements of GPUs are replaced",
        now.focus !== focus && `focus: got ${now.focus}, want ${focus}`,
        now.open !== opened && `open details: got ${now.open}, want ${opened}`,
        ...page.faults,
      ].filter(Boolean));
      await close(page);
    }
  } finally {
    await pages.stop();
  }
  report("unhealthy first", faults, "GPUs move, with focus and open details");
}

// states checks the golden pages in all sizes and color schemes.
async function states(browser) {
  const pages = await serve(root, headers);
  try {
    for (const name of pages.names) {
      const faults = [];
      for (const size of ["desktop", "narrow", "wide"]) {
        for (const scheme of schemes) {
          const page = await open(browser, pages.url + name, { size, scheme });
          page.what = `${name}, ${size} ${scheme}`;
          faults.push(...[...await layoutFaults(page), ...page.faults].map((fault) => `${size} ${scheme}: ${fault}`));
          if (size === "desktop" && scheme === "light" && parts[name]) await picture(page, ...parts[name]);
          await close(page);
        }
      }
      report(name, faults, "axe-core, width, console and network, in six variants");
    }
  } finally {
    await pages.stop();
  }
}

if (!existsSync(images)) mkdirSync(images, { recursive: true });
const node = await start(join(root, "bin/podgauge-sim"));
const browser = await launch();
let headers = {}; // of podgauge's page
try {
  console.log(`${await browser.version()}, ${node.url.replace(/:\d+\/$/, "")}`);
  for (const check of [failure, unauthorized, reducedMotion, filters, columns, withoutScript, outage, anotherVersion, order, states]) {
    await check(browser, node).catch((error) => report(check.name, [error.message]));
  }
} finally {
  await browser.close();
  await node.stop();
}
console.log(faultCount ? `${faultCount} faults` : "no faults");
process.exitCode = faultCount ? 1 : 0;
