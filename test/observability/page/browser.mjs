// Chromium and checks of a page.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import puppeteer from "puppeteer-core";
import sharp from "sharp";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const sizes = {
  wide: { width: 1920, height: 1080 },
  desktop: { width: 1280, height: 800 },
  phone: { width: 390, height: 844, isMobile: true, hasTouch: true },
  narrow: { width: 360, height: 640, isMobile: true, hasTouch: true },
};

export function launch() {
  const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => path && existsSync(path));
  return puppeteer.launch({
    executablePath, acceptInsecureCerts: true, // the certificate is self-signed
    args: process.getuid() === 0 ? ["--no-sandbox"] : [], // Chromium's sandbox does not run as root
  });
}

// open opens an address in a new window. faults has the page's console messages, errors, failed requests and requests to other
// origins.
export async function open(browser, url, { size, scheme, script = true, user }) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.faults = [];
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && page.faults.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => page.faults.push(`error: ${error.message}`));
  page.on("requestfailed", (request) => {
    const error = request.failure()?.errorText ?? "";
    if (error !== "net::ERR_ABORTED") page.faults.push(`failed: ${request.url()} ${error}`); // aborted by a navigation
  });
  page.on("request", (request) => new URL(request.url()).origin !== new URL(url).origin && page.faults.push(`other origin: ${request.url()}`));
  page.on("response", (response) => {
    if (response.status() >= 400) page.faults.push(`${response.status()}: ${response.url()}`);
  });
  await page.setViewport({ deviceScaleFactor: 1, ...sizes[size] });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setJavaScriptEnabled(script);
  if (user) await page.authenticate(user);
  page.response = await page.goto(url, { waitUntil: "load" });
  return page;
}

// save writes a compressed image of the window or of a part of the page.
export async function save(page, file, clip) {
  const captureBeyondViewport = Boolean(clip) && clip.y + clip.height > page.viewport().height; // this draws tables again
  const picture = await page.screenshot({ clip, captureBeyondViewport });
  writeFileSync(file, await sharp(picture).png({ palette: true, colours: 128, dither: 0, compressionLevel: 9, effort: 10 }).toBuffer());
}

export async function close(page) {
  await page.browserContext().close();
}

// violations returns axe-core's violations: serious are serious or critical, minor are all others.
export async function violations(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const format = (v) => `${v.impact}: ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")}`;
  const isSerious = (v) => ["serious", "critical"].includes(v.impact);
  return { serious: violations.filter(isSerious).map(format), minor: violations.filter((v) => !isSerious(v)).map(format) };
}

// overflow returns the width of the page beyond its window, in pixels.
export function overflow(page) {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

// keyboardFaults checks the page without a mouse: Tab must reach all links and details with a visible focus, and first the skip link to
// the devices.
export async function keyboardFaults(page) {
  const faults = [];
  const focused = () => page.evaluate(() => {
    const at = document.activeElement;
    if (at === document.body) return null;
    const style = getComputedStyle(at), box = at.getBoundingClientRect();
    globalThis.reached ??= new Set();
    globalThis.reached.add(at);
    return { text: at.textContent.trim(), href: at.getAttribute("href"), shown: style.outlineStyle !== "none" && box.width > 1 && box.bottom > 0 };
  });
  await page.evaluate(() => {
    document.activeElement.blur();
    globalThis.reachable = [...document.querySelectorAll("a[href]:not([tabindex='-1']), summary, input")]; // without later elements
  });
  let first;
  for (let i = 0; i < 500; i++) {
    await page.keyboard.press("Tab");
    const at = await focused();
    if (!at) break;
    first ??= at;
    if (!at.shown) faults.push(`the focus on ${at.text} is not visible`);
  }
  if (first?.href !== "#devices") faults.push(`Tab begins with ${JSON.stringify(first)}, want the skip link`);
  faults.push(...await page.evaluate(() => globalThis.reachable
    .filter((e) => e.isConnected && !globalThis.reached.has(e)).map((e) => `Tab does not reach ${e.outerHTML.slice(0, 120)}`)));
  await page.focus(".skip");
  await page.keyboard.press("Enter");
  if (await page.evaluate(() => document.activeElement.id) !== "devices") faults.push("the skip link does not focus the devices");
  return faults;
}
